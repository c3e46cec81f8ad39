"""Tree verify and commit (csrc/engine/target): every row is the evaluation of its own path, and nothing else stays."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadTarget, ModelFiles
from engine_tools import Tree, depth_first, random_tree, siblings_first, star
from test_target import F32_NOISE, random_tokens

from adaspark import _engine

ATTENTION = {"llama": tm.DENSE, "qwen3": tm.QWEN3, "qwen3moe": tm.ROUTED}
every_attention_target = pytest.mark.parametrize("spec", ATTENTION.values(), ids=ATTENTION.keys())
N_VOCAB = tm.VOCABULARY.size
MAX_ROWS = 64


def expected_logits(target: tm.TinyTarget, context: list[int], tree: Tree) -> np.ndarray:
    tokens, parents = reference.over_context(context, tree.tokens, tree.parents)
    return reference.forward(target, tokens, parents).logits[len(context) :]


def check_rows(target: tm.TinyTarget, engine: _engine.Target, context: list[int], tree: Tree) -> None:
    """Verify a tree after ``context`` (committed already) and compare every row; the tree is left for commit."""
    picks, logits = engine.verify(tree.tokens, tree.parents, logits=True)
    assert logits is not None
    assert logits.shape == (len(tree.tokens), N_VOCAB)
    np.testing.assert_allclose(logits, expected_logits(target, context, tree), atol=F32_NOISE)
    np.testing.assert_array_equal(picks, logits.argmax(-1))


@every_attention_target
@pytest.mark.parametrize("shape", ["chain", "random", "bushy", "star", "siblings"])
def test_rows_equal_their_paths_at_every_width(
    models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec, shape: str
) -> None:
    """Widths 1 to 64 one after another on one cache (B03: siblings listed before a spine; B04: 63 leaves)."""
    rng = np.random.default_rng(20)
    context = random_tokens(21, 23)
    engine = load_target(spec)
    engine.prefill(context)
    dense = spec is tm.DENSE
    for rows in range(1, MAX_ROWS + 1) if dense else (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 48, 63, 64):
        if shape == "star":
            tree = star(rng, rows, N_VOCAB)
        elif shape == "siblings" and rows >= 5:
            tree = siblings_first(rng, 3, rows - 4, N_VOCAB)
        else:
            tree = random_tree(rng, rows, N_VOCAB, {"chain": 0.0, "random": 0.3}.get(shape, 1.0))
        check_rows(models.target(spec), engine, context, tree)
        engine.commit([])
        assert engine.n_past == engine.n_kv_cells == len(context)


def test_the_reference_would_see_a_misplaced_row(models: ModelFiles) -> None:
    """The tolerance above is worth something: positions by list order, or a visible sibling, are far outside it."""
    target, context = models.target(tm.DENSE), random_tokens(21, 23)
    tree = siblings_first(np.random.default_rng(22), 3, 6, N_VOCAB)
    tokens, parents = reference.over_context(context, tree.tokens, tree.parents)
    right = reference.forward(target, tokens, parents).logits
    by_index = reference.forward(target, tokens, parents, positions=np.arange(len(tokens))).logits
    seen = reference.forward(target, tokens, list(range(-1, len(tokens) - 1)), reference.depths(parents)).logits
    for wrong in (by_index, seen):
        assert np.abs(wrong - right).max(-1)[-5:].min() > 10 * F32_NOISE


@every_attention_target
@pytest.mark.parametrize("cache", ["f32", "f16"])
def test_rows_equal_the_engines_own_chains(load_target: LoadTarget, spec: tm.TargetSpec, cache: str) -> None:
    """Against prefill of each row's path on the same cache format; an F16 cache may round an entry the other way."""
    rng = np.random.default_rng(23)
    context = random_tokens(24, 40)
    engine = load_target(spec, cache_type_k=cache, cache_type_v=cache)
    engine.prefill(context)
    tree = random_tree(rng, 40, N_VOCAB, 0.6)
    _, logits = engine.verify(tree.tokens, tree.parents, logits=True)
    assert logits is not None
    engine.commit([])
    for row in range(len(tree.tokens)):
        alone = engine.prefill([tree.tokens[r] for r in tree.path(row)])
        np.testing.assert_allclose(logits[row], alone, atol=max(F32_NOISE, 0 if cache == "f32" else 0.02))
        engine.rollback(len(context))


@every_attention_target
def test_thirty_rounds_of_random_trees(models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec) -> None:
    """Commit a random path of each tree; the next tree's rows show whether the right cells were kept."""
    thirty_rounds(models, load_target(spec), spec)


@pytest.mark.parametrize("kernels", ["own", "ggml"])
def test_thirty_rounds_of_trees_on_a_hybrid(models: ModelFiles, load_target: LoadTarget, kernels: str) -> None:
    """Convolution windows follow every row's own path, and the accepted one."""
    thirty_rounds(models, load_target(tm.HYBRID, kernels=kernels), tm.HYBRID)


def thirty_rounds(models: ModelFiles, engine: _engine.Target, spec: tm.TargetSpec) -> None:
    rng = np.random.default_rng(25)
    context = random_tokens(26, 10)
    engine.prefill(context)
    for _ in range(30):
        rows = int(rng.integers(1, MAX_ROWS + 1))
        tree = random_tree(rng, rows, N_VOCAB, float(rng.random()))
        check_rows(models.target(spec), engine, context, tree)
        path = tree.path(int(rng.integers(0, rows)))[: int(rng.integers(1, 9))]
        engine.commit(path)
        context += [tree.tokens[r] for r in path]
        assert engine.n_past == engine.n_kv_cells == len(context)
    expected = reference.forward(models.target(spec), [*context, 7]).logits[-1]
    np.testing.assert_allclose(engine.prefill([7]), expected, atol=F32_NOISE)


@pytest.mark.parametrize("rows", [2, 3, 16, 33, 64])
def test_thirty_rounds_of_stars(models: ModelFiles, load_target: LoadTarget, rows: int) -> None:
    """All rows children of the anchor, a different one accepted every round (B04)."""
    rng = np.random.default_rng(rows)
    context = random_tokens(27, 5)
    engine = load_target(tm.DENSE)
    engine.prefill(context)
    for turn in range(30):
        tree = star(rng, rows, N_VOCAB)
        picks, _ = engine.verify(tree.tokens, tree.parents)
        assert picks.shape == (rows,)
        leaf = 1 + (turn * 7) % (rows - 1)
        engine.commit([0, leaf])
        context += [tree.tokens[0], tree.tokens[leaf]]
        assert engine.n_past == engine.n_kv_cells == len(context)
    expected = reference.forward(models.target(tm.DENSE), [*context, 9]).logits[-1]
    np.testing.assert_allclose(engine.prefill([9]), expected, atol=F32_NOISE)


@every_attention_target
@pytest.mark.parametrize("accepted", ["none", "anchor", "all", "sibling"])
def test_commit_keeps_the_path_and_drops_the_rest(
    models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec, accepted: str
) -> None:
    context = random_tokens(28, 12)
    tree = depth_first([40, 41, 42, 43, 44, 45, 46], [-1, 0, 1, 2, 0, 4, 4])
    path = {"none": [], "anchor": [0], "all": [0, 1, 2, 3], "sibling": [0, 4, 6]}[accepted]
    engine = load_target(spec)
    engine.prefill(context)
    for _ in range(3):
        check_rows(models.target(spec), engine, context, tree)
        engine.commit(np.array(path, np.int32))
        context += [tree.tokens[r] for r in path]
        assert engine.n_past == engine.n_kv_cells == len(context)


def test_a_small_prefill_batch_does_not_narrow_the_verify(models: ModelFiles, load_target: LoadTarget) -> None:
    context = random_tokens(29, 30)
    engine = load_target(tm.DENSE, n_batch=4)
    engine.prefill(context)
    check_rows(models.target(tm.DENSE), engine, context, random_tree(np.random.default_rng(30), 64, N_VOCAB, 0.4))
    engine.commit([0])


def test_the_same_tree_gives_the_same_bits(load_target: LoadTarget) -> None:
    engine = load_target(tm.DENSE, n_threads=2)
    engine.prefill(random_tokens(31, 30))
    tree = random_tree(np.random.default_rng(32), 33, N_VOCAB, 0.5)
    results = []
    for _ in range(3):
        results.append(engine.verify(tree.tokens, tree.parents, logits=True)[1])
        engine.commit([])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_logits_only_when_asked(load_target: LoadTarget) -> None:
    engine = load_target(tm.DENSE)
    engine.prefill([5, 6])
    picks, logits = engine.verify([7, 8], [-1, 0])
    assert logits is None
    assert picks.dtype == np.int32
    engine.commit([0])


MALFORMED = {
    "empty": ([], []),
    "no anchor": ([5, 6], [0, 0]),
    "two anchors": ([5, 6], [-1, -1]),
    "parent after child": ([5, 6, 7], [-1, 2, 0]),
    "own parent": ([5, 6], [-1, 1]),
    "parent out of range": ([5, 6], [-1, -2]),
    "fewer parents": ([5, 6, 7], [-1, 0]),
    "token too large": ([5, N_VOCAB], [-1, 0]),
    "negative token": ([5, -1], [-1, 0]),
    "too many rows": ([5] * 65, [*range(-1, 64)]),
    "not depth-first": ([5, 6, 7, 8], [-1, 0, 0, 1]),
}


@pytest.mark.parametrize(("tokens", "parents"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_tree_is_refused(load_target: LoadTarget, tokens: list[int], parents: list[int]) -> None:
    engine = load_target(tm.DENSE)
    engine.prefill([5, 6])
    with pytest.raises(ValueError):  # noqa: PT011 (pybind11 words some of them)
        engine.verify(tokens, parents)
    engine.verify([7, 8], [-1, 0])
    engine.commit([0, 1])
    assert engine.n_past == engine.n_kv_cells == 4


def test_max_rows_is_the_widest_verify(load_target: LoadTarget) -> None:
    engine = load_target(tm.DENSE, max_rows=8)
    assert engine.max_rows == 8
    engine.prefill([5])
    with pytest.raises(ValueError, match="8"):
        engine.verify([5] * 9, [-1, *[0] * 8])
    engine.verify([5] * 8, [-1, *[0] * 7])
    engine.commit([0, 7])


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 1, 3], [0, 7], [0, -1], [0, 0]])
def test_a_path_that_is_no_branch_is_refused(load_target: LoadTarget, path: list[int]) -> None:
    engine = load_target(tm.DENSE)
    engine.prefill([5, 6])
    engine.verify([7, 8, 9, 10], [-1, 0, 1, 0])
    with pytest.raises(ValueError, match="path"):
        engine.commit(path)
    engine.commit([0, 3])
    assert engine.n_past == engine.n_kv_cells == 4


def test_a_tree_that_does_not_fit_the_context_is_refused(models: ModelFiles, load_target: LoadTarget) -> None:
    context = random_tokens(33, 60)
    engine = load_target(tm.DENSE, n_ctx=64)
    engine.prefill(context)
    with pytest.raises(_engine.ContextFullError):
        engine.verify([5] * 5, [-1, 0, 0, 0, 0])
    assert engine.n_past == engine.n_kv_cells == 60
    tree = Tree([5, 6, 7, 8], [-1, 0, 1, 0])
    check_rows(models.target(tm.DENSE), engine, context, tree)
    engine.commit([0, 3])
    assert engine.n_past == engine.n_kv_cells == 62


def test_a_cleared_target_forgets_a_verify(models: ModelFiles, load_target: LoadTarget) -> None:
    engine = load_target(tm.DENSE)
    engine.prefill(random_tokens(34, 30))
    tree = star(np.random.default_rng(35), 64, N_VOCAB)
    engine.verify(tree.tokens, tree.parents)
    engine.clear()
    assert engine.n_past == engine.n_kv_cells == 0
    context = random_tokens(36, 20)
    engine.prefill(context)
    check_rows(models.target(tm.DENSE), engine, context, tree)
    engine.commit([0])


class TestRecurrent:
    """On llama.cpp a hybrid target verifies chains and goes back to any accepted length (B06); a tree is refused (B08)."""

    @pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 9])
    def test_chain_rows_equal_their_prefixes(self, models: ModelFiles, load_target: LoadTarget, rows: int) -> None:
        context = random_tokens(37, 20)
        engine = load_target(tm.HYBRID, kernels="llama")
        engine.prefill(context)
        tree = random_tree(np.random.default_rng(38), rows, N_VOCAB, 0.0)
        check_rows(models.target(tm.HYBRID), engine, context, tree)
        engine.commit([0])
        assert engine.n_past == engine.n_kv_cells == 21

    @pytest.mark.parametrize("rows", [2, 4, 8, 9])
    def test_state_follows_the_accepted_length(self, models: ModelFiles, load_target: LoadTarget, rows: int) -> None:
        """Accepted lengths 1, 2, .., rows in turn and none but the anchor in between."""
        rng = np.random.default_rng(39)
        context = random_tokens(40, 9)
        engine = load_target(tm.HYBRID, kernels="llama")
        engine.prefill(context)
        for turn in range(2 * rows):
            tree = random_tree(rng, rows, N_VOCAB, 0.0)
            check_rows(models.target(tm.HYBRID), engine, context, tree)
            kept = 1 if turn % 2 else 1 + turn // 2
            engine.commit(list(range(kept)))
            context += tree.tokens[:kept]
            assert engine.n_past == engine.n_kv_cells == len(context)

    def test_a_chain_longer_than_the_snapshots_is_refused(self, load_target: LoadTarget) -> None:
        engine = load_target(tm.HYBRID, kernels="llama")
        engine.prefill([5, 6])
        rows = engine.max_chain + 2
        with pytest.raises(ValueError, match=str(engine.max_chain)):
            engine.verify([7] * rows, [*range(-1, rows - 1)])
        engine.verify([7] * (rows - 1), [*range(-1, rows - 2)])
        engine.commit([0])
        assert engine.n_past == engine.n_kv_cells == 3

    def test_a_tree_is_refused_in_words(self, load_target: LoadTarget) -> None:
        engine = load_target(tm.HYBRID, kernels="llama")
        engine.prefill([5, 6])
        with pytest.raises(ValueError, match="chain"):
            engine.verify([7, 8, 9], [-1, 0, 0])
        engine.verify([7, 8], [-1, 0])
        engine.commit([0, 1])
        assert engine.n_past == engine.n_kv_cells == 4
