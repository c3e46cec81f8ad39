"""The own graph: on its CPU kernels (csrc/engine/graph, csrc/kernels) and in ggml's operations (csrc/engine/ggml_graph)
equal to llama.cpp; on the CPU kernels equal bits at any width."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Tree, depth_first, f32_noise, on_gpu, open_target, random_tree, request, run
from gguf import GGMLQuantizationType as Ggml
from numpy.typing import NDArray
from test_target import random_tokens

from adaspark import _engine
from adaspark.errors import DrafterError, ModelError

N_VOCAB = tm.VOCABULARY.size
WIDTHS = (1, 2, 3, 4, 8, 16, 33, 64)
DENSE_TARGETS = {"llama": tm.DENSE, "qwen3": tm.QWEN3, "tied": tm.TIED, "wide": tm.WIDE}
OWN_TARGETS = DENSE_TARGETS | {
    "qwen3moe": tm.ROUTED, "wide qwen3moe": tm.WIDE_ROUTED, "lfm2": tm.HYBRID, "lfm2moe": tm.HYBRID_ROUTED,
    "wide lfm2moe": tm.WIDE_HYBRID,
}  # fmt: skip
every_own_target = pytest.mark.parametrize("spec", OWN_TARGETS.values(), ids=OWN_TARGETS.keys())
every_target = pytest.mark.parametrize("spec", DENSE_TARGETS.values(), ids=DENSE_TARGETS.keys())
both_executors = pytest.mark.parametrize("kernels", ["own", "ggml"])
# Largest difference of a logit (they reach about 5) from llama.cpp's. It rounds the activations of these formats itself
# (F16 and BF16 to that format, the others to 8 bits with an F16 scale).
FORMATS = {
    Ggml.F16: 0.02, Ggml.BF16: 0.15, Ggml.Q8_0: 0.25, Ggml.Q4_0: 0.25, Ggml.Q4_1: 0.25, Ggml.Q5_0: 0.25, Ggml.Q5_1: 0.25,
    Ggml.Q4_K: 0.25, Ggml.Q5_K: 0.25, Ggml.Q6_K: 0.25,
}  # fmt: skip


def retyped(models: ModelFiles, kind: Ggml, spec: tm.TargetSpec = tm.WIDE) -> Path:
    file = models.target(spec).file
    if kind.name.endswith("_K"):  # these only llama.cpp can write; some tensors of a Q4_K and a Q5_K file are Q6_K
        path = models.folder / f"{spec.architecture}-{kind.name}.gguf"
        _engine.quantize(str(models.target_path(spec)), str(path), kind.name, None, 1)
        return path
    matrices = [
        n for n, t in file.tensors.items() if np.asarray(t).ndim > 1 and "gate_inp" not in n and ".conv." not in n
    ]
    return models.write(file.retype(matrices, kind))


def compare(own: _engine.Target, llama: _engine.Target, noise: float) -> None:
    """Prefill, a tree, what a commit leaves of it, and a plain step."""
    rng = np.random.default_rng(7)
    context = random_tokens(6, 150)
    tree = random_tree(rng, 40, N_VOCAB, 0.5)
    path = tree.path(max(range(40), key=lambda r: len(tree.path(r))))
    results = []
    for engine in (own, llama):
        out = [engine.prefill(context)]
        picks, logits = engine.verify(tree.tokens, tree.parents, logits=True)
        assert logits is not None
        np.testing.assert_array_equal(picks, logits.argmax(-1))
        engine.commit(path)
        out += [logits, engine.prefill([9])]
        engine.rollback(100)
        results.append([*out, engine.prefill([11, 12])])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=noise)


def rows_of_llama(llama: _engine.Target, context: list[int], tree: Tree) -> list[NDArray[np.float32]]:
    """Logits of a tree's rows, each path run alone: a hybrid model takes no trees there, nor anything back."""
    out = []
    for row in range(len(tree.tokens)):
        llama.clear()
        out.append(llama.prefill([*context, *(tree.tokens[r] for r in tree.path(row))]))
    return out


def compare_hybrid(own: _engine.Target, llama: _engine.Target, noise: float) -> None:
    """Trees over paths shorter and longer than the windows, what a commit leaves, and ways back near and far."""
    rng = np.random.default_rng(8)
    context = random_tokens(6, 150)
    np.testing.assert_allclose(own.prefill(context), llama.prefill(context), atol=noise)
    for rows, branching in ((1, 0.0), (9, 0.9), (24, 0.5), (5, 0.2)):
        tree = random_tree(rng, rows, N_VOCAB, branching)
        _, logits = own.verify(tree.tokens, tree.parents, logits=True)
        assert logits is not None
        np.testing.assert_allclose(logits, rows_of_llama(llama, context, tree), atol=noise)
        path = tree.path(int(rng.integers(0, rows)))
        own.commit(path)
        context += [tree.tokens[r] for r in path]
        assert own.n_past == own.n_kv_cells == len(context)
    own.verify([5, 6], [-1, 0])
    own.commit([])
    for back in (len(context) - 1, 130, 128, 127, 64, 63, 1):
        own.rollback(back)
        assert own.n_past == own.n_kv_cells == back
        llama.clear()
        np.testing.assert_allclose(own.prefill([11, 12]), llama.prefill([*context[:back], 11, 12]), atol=noise)
    own.clear()
    llama.clear()
    np.testing.assert_allclose(own.prefill([7]), llama.prefill([7]), atol=noise)


@both_executors
@pytest.mark.parametrize("spec", [tm.ROUTED, tm.WIDE_ROUTED], ids=["narrow", "wide"])
def test_routed_equals_llama(load_target: LoadTarget, spec: tm.TargetSpec, kernels: str) -> None:
    compare(load_target(spec, kernels=kernels), load_target(spec, kernels="llama"), f32_noise())


@both_executors
@pytest.mark.parametrize("spec", [tm.HYBRID, tm.HYBRID_ROUTED, tm.WIDE_HYBRID], ids=["lfm2", "lfm2moe", "wide"])
def test_hybrid_equals_llama(load_target: LoadTarget, spec: tm.TargetSpec, kernels: str) -> None:
    own = load_target(spec, kernels=kernels)
    assert own.supports_tree
    assert own.kernels.startswith(f"{kernels}/")
    compare_hybrid(own, load_target(spec, kernels="llama"), f32_noise())


def test_the_ring_of_a_hybrids_inputs_is_gone_round(load_target: LoadTarget) -> None:
    """Small prefill batches: the device keeps few inputs, and windows of old positions come back from elsewhere."""
    ggml, llama = load_target(tm.HYBRID, kernels="ggml", n_batch=7, max_rows=5), load_target(tm.HYBRID, kernels="llama")
    context = random_tokens(13, 200)
    for end in (1, 2, 9, 64, 65, 128, 200):
        ggml.prefill(context[ggml.n_past : end])
    for back in (197, 130, 129, 64, 63, 2, 0):
        ggml.rollback(back)
        llama.clear()
        tokens = random_tokens(back, 20)
        ggml.prefill(tokens[:11])
        _, logits = ggml.verify(tokens[11:16], [-1, 0, 1, 2, 3], logits=True)
        assert logits is not None
        ggml.commit([0, 1, 2, 3, 4])
        expected = llama.prefill([*context[:back], *tokens[:16]])
        np.testing.assert_allclose(logits[-1], expected, atol=f32_noise())
        np.testing.assert_allclose(ggml.prefill(tokens[16:]), llama.prefill(tokens[16:]), atol=f32_noise())
        context = [*context[:back], *tokens]
        context += random_tokens(90 + back, max(5, 200 - len(context)))
        ggml.prefill(context[ggml.n_past :])


@both_executors
@pytest.mark.parametrize("kind", [Ggml.F16, Ggml.Q8_0, Ggml.Q4_K], ids=["F16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("spec", [tm.WIDE_ROUTED, tm.WIDE_HYBRID], ids=["routed", "hybrid"])
def test_experts_in_every_kind_of_format(
    models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec, kind: Ggml, kernels: str
) -> None:
    """Equal to llama.cpp; on the CPU's kernels equal bits at any width too."""
    path = retyped(models, kind, spec)
    ours, llama = (load_target(path, kernels=k) for k in (kernels, "llama"))
    (compare_hybrid if spec.conv_layers else compare)(ours, llama, max(FORMATS[kind], f32_noise()))
    if kernels == "own":
        check_bits(path, N_VOCAB, 130, "f16")


def test_equal_experts_go_to_the_lower_index(models: ModelFiles, load_target: LoadTarget) -> None:
    """The router cannot tell expert 3 from expert 1: what expert 3 would do does not matter."""
    file = models.target(tm.ROUTED).file
    router: dict[str, tm.Tensor] = {}
    swapped: dict[str, tm.Tensor] = {}
    for name, t in file.tensors.items():
        if "gate_inp" in name:
            router[name] = np.stack([*np.asarray(t)[:3], np.asarray(t)[1]])
        elif "_exps" in name:
            values = np.asarray(t).copy()
            values[3] = 0.0
            swapped[name] = values
    one = {"qwen3moe.expert_used_count": 1}
    paths = [models.write(file.edit(set_keys=one, set_tensors=router | extra)) for extra in ({}, swapped)]
    first, second = (load_target(path, kernels="own").prefill(random_tokens(9, 70)) for path in paths)
    np.testing.assert_array_equal(first, second)


@both_executors
@every_target
def test_f32_equals_llama(load_target: LoadTarget, spec: tm.TargetSpec, kernels: str) -> None:
    own = load_target(spec, kernels=kernels)
    assert own.kernels.startswith(f"{kernels}/")
    compare(own, load_target(spec, kernels="llama"), f32_noise())


@both_executors
def test_qwen2_equals_llama(models: ModelFiles, load_target: LoadTarget, kernels: str) -> None:
    path = models.write(tm.qwen2(models.target(tm.DENSE).file))
    compare(load_target(path, kernels=kernels), load_target(path, kernels="llama"), f32_noise())


@pytest.mark.parametrize("attention", ["off", "on"])
@pytest.mark.parametrize("cache", ["f32", "f16"])
@pytest.mark.parametrize("spec", [tm.DENSE, tm.ROUTED], ids=["dense", "routed"])
def test_ggml_attention_and_routing_equal_llama(
    load_target: LoadTarget, spec: tm.TargetSpec, cache: str, attention: str
) -> None:
    """llama.cpp's fused attention rounds an F32 cache to F16 first, ours does not: there the plain one is the reference."""
    ggml, llama = (
        load_target(
            spec, kernels=kernels, cache_type_k=cache, cache_type_v=cache,
            flash_attention="off" if kernels == "llama" and cache == "f32" else attention,
        ) for kernels in ("ggml", "llama")
    )  # fmt: skip
    compare(ggml, llama, max(f32_noise(), 5e-3 if (attention, cache) == ("on", "f16") else 0))


@both_executors
@pytest.mark.parametrize("kind", FORMATS, ids=[k.name for k in FORMATS])
def test_formats_equal_llama(models: ModelFiles, load_target: LoadTarget, kind: Ggml, kernels: str) -> None:
    path = retyped(models, kind)
    compare(load_target(path, kernels=kernels), load_target(path, kernels="llama"), FORMATS[kind])


def test_ggml_runs_formats_the_kernels_do_not_know(models: ModelFiles, load_target: LoadTarget) -> None:
    path = retyped(models, Ggml.TQ2_0)
    assert "TQ2_0" in load_target(path).kernels_reason.upper()
    compare(load_target(path, kernels="ggml"), load_target(path, kernels="llama"), 0.25)


def test_a_graph_is_kept_from_one_context_to_the_next(load_target: LoadTarget) -> None:
    """Widths that alternate, padded rows, a cache that grows over several windows and goes back: all on kept graphs."""
    engine, llama = (load_target(tm.DENSE, kernels=k, n_ctx=1024) for k in ("ggml", "llama"))
    rng = np.random.default_rng(12)
    for length in (3, 260, 700, 40):
        context = random_tokens(50 + length, length)
        for e in (engine, llama):
            e.clear()
            e.prefill(context)
        for rows in (1, 9, 2, 23, 1, 9, 64, 2):
            tree = random_tree(rng, rows, N_VOCAB, 0.5)
            logits = []
            for e in (engine, llama):
                logits.append(e.verify(tree.tokens, tree.parents, logits=True)[1])
                e.commit(tree.path(rows - 1))
            np.testing.assert_allclose(*logits, atol=f32_noise())


def rows_at_width(engine: _engine.Target, tokens: list[int], width: int) -> list[bytes]:
    """Logits of every token of a chain run ``width`` rows at a time, rolled back afterwards."""
    before, out = engine.n_past, []
    for first in range(0, len(tokens), width):
        part = tokens[first : first + width]
        _, logits = engine.verify(part, list(range(-1, len(part) - 1)), logits=True)
        assert logits is not None
        engine.commit(list(range(len(part))))
        out += [row.tobytes() for row in logits]
    engine.rollback(before)
    return out


def check_bits(path: Path, n_vocab: int, n_context: int, cache: str) -> None:
    rng = np.random.default_rng(n_context)
    context, tokens = rng.integers(0, n_vocab, n_context).tolist(), rng.integers(0, n_vocab, 64).tolist()
    expected: list[bytes] = []
    for threads in (1, 2, 3):
        engine = open_target(path, kernels="own", n_threads=threads, cache_type_k=cache, cache_type_v=cache)
        engine.prefill(context)
        expected = expected or rows_at_width(engine, tokens, 1)
        for width in WIDTHS if threads < 3 else (1, 5, 64):
            assert rows_at_width(engine, tokens, width) == expected, (threads, width)
        for n in (1, 7, 64):
            assert engine.prefill(tokens[:n]).tobytes() == expected[n - 1], (threads, n)
            engine.rollback(n_context)
        tree = random_tree(rng, 64, n_vocab, 0.5)
        _, logits = engine.verify(tree.tokens, tree.parents, logits=True)
        assert logits is not None
        engine.commit([])
        for row in range(0, 64, 7):
            alone = engine.prefill([tree.tokens[r] for r in tree.path(row)])
            engine.rollback(n_context)
            assert logits[row].tobytes() == alone.tobytes(), (threads, row)
        engine.close()


@every_own_target
@pytest.mark.parametrize("n_context", [1, 127, 200])
def test_a_rows_bits_do_not_depend_on_the_others(models: ModelFiles, spec: tm.TargetSpec, n_context: int) -> None:
    """Widths, threads, chains, trees and prefill; the chunks of attention are cut at 128 and 256."""
    check_bits(models.target_path(spec), N_VOCAB, n_context, "f16" if n_context == 200 else "f32")


@pytest.mark.parametrize("kind", FORMATS, ids=[k.name for k in FORMATS])
def test_bits_of_formats(models: ModelFiles, kind: Ggml) -> None:
    check_bits(retyped(models, kind), N_VOCAB, 130, "f16")


Q8_CACHE = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
Q8_TARGETS = {"heads of 32": tm.QWEN3, "heads of 64": tm.WIDE, "hybrid": tm.WIDE_HYBRID}


@pytest.mark.parametrize("spec", [tm.QWEN3, tm.WIDE], ids=["heads of 32", "heads of 64"])
def test_q8_0_cache_equals_llama(load_target: LoadTarget, spec: tm.TargetSpec) -> None:
    """llama.cpp rounds the queries to 8 bits as well: that is the tolerance."""
    own, llama = (load_target(spec, kernels=k, flash_attention="on", **Q8_CACHE) for k in ("own", "llama"))
    compare(own, llama, 0.25)


@pytest.mark.parametrize("spec", Q8_TARGETS.values(), ids=Q8_TARGETS.keys())
def test_q8_0_cache_is_near_an_f32_cache_and_keeps_bits(
    models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec
) -> None:
    context = random_tokens(10, 300)
    exact, coarse = (load_target(spec, kernels="own", **cache).prefill(context) for cache in ({}, Q8_CACHE))
    difference = np.abs(exact - coarse).max()
    assert 0 < difference < 0.1
    check_bits(models.target_path(spec), N_VOCAB, 200, "q8_0")


@pytest.mark.parametrize(
    ("kernels", "cache", "spec"),
    [
        ("own", "f32", tm.DENSE), ("own", "f16", tm.DENSE), ("own", "q8_0", tm.WIDE), ("own", "f16", tm.HYBRID_ROUTED),
        ("ggml", "f16", tm.DENSE), ("ggml", "f16", tm.HYBRID_ROUTED),
    ],
)  # fmt: skip
def test_a_committed_branch_is_the_chain_it_stands_for(
    load_target: LoadTarget, kernels: str, cache: str, spec: tm.TargetSpec
) -> None:
    """On our kernels to the bit; ggml's products give a row alone other bits than in company."""
    engine = load_target(spec, kernels=kernels, cache_type_k=cache, cache_type_v=cache)
    context = random_tokens(8, 125)
    tree = depth_first([40, 41, 42, 43, 44, 45, 46, 47], [-1, 0, 1, 2, 0, 4, 5, 6])
    engine.prefill(context)
    engine.verify(tree.tokens, tree.parents)
    engine.commit([0, 4, 5, 6, 7])
    after = engine.prefill([3])
    engine.clear()
    chain = engine.prefill([*context, 40, 44, 45, 46, 47, 3])
    if kernels == "own":
        assert after.tobytes() == chain.tobytes()
    np.testing.assert_allclose(after, chain, atol=0.02)


@pytest.mark.parametrize("kind", [Ggml.Q4_0, Ggml.Q8_0], ids=["Q4_0", "Q8_0"])
def test_greedy_text_of_every_arm_is_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, kind: Ggml
) -> None:
    """On quantised weights too, where llama.cpp's rows depend on the width."""
    file = models.target(tm.DENSE).file
    path = models.write(file.retype([n for n, t in file.tensors.items() if np.asarray(t).ndim == 2], kind))
    target = load_target(path, kernels="own", cache_type_k="f16", cache_type_v="f16", n_threads=2)
    drafter = load_drafter(target, tm.DENSE, tm.DrafterSpec())
    session = _engine.Session(target, drafter)
    for seed in range(4):
        prompt = random_tokens(30 + seed, 20)
        plain = run(session, target, prompt, request(n_predict=160, ignore_eos=True))
        for arm, n in (("chain", 3), ("chain", 7), ("tree", 8), ("tree", 33)):
            reply = run(session, target, prompt, request(arm, n, n_predict=160, ignore_eos=True))
            assert reply.tokens == plain.tokens, (seed, arm, n)


DRAFTERS = {
    "borrowed": tm.DrafterSpec(),
    "bonus anchor": tm.DrafterSpec(sample_from_anchor=False),
    "reduced": tm.DrafterSpec(own_head=True, reduced=60),
    "own tables": tm.DrafterSpec(own_head=True, own_embedding=True, confidence=False),
}


@pytest.mark.parametrize("n_vocab", [1024, 2048, 2500])
def test_candidates_come_from_every_part_of_a_large_vocabulary(
    load_target: LoadTarget, load_drafter: LoadDrafter, n_vocab: int
) -> None:
    """ggml finds the best 8 in pieces of 1,024 columns; our kernels, on the CPU, look at the whole row."""
    cycle = tuple(np.random.default_rng(61).permutation(n_vocab)[:200].tolist())
    large = dataclasses.replace(tm.DENSE, n_vocab=n_vocab, cycle=cycle)
    blocks, noise = [], f32_noise() if on_gpu() else 1e-3
    for kernels, device in (("ggml", {}), ("own", {"n_gpu_layers": 0})):
        target = load_target(large, kernels=kernels, **device)
        drafter = load_drafter(target, large, tm.DrafterSpec(), **device)
        rng = np.random.default_rng(60)
        target.prefill(rng.integers(0, n_vocab, 50).tolist())
        blocks.append([drafter.draft(int(rng.integers(0, n_vocab)), drafter.n_draft)[:2] for _ in range(8)])
    found = set()
    for (ids, values), (expected_ids, expected_values) in zip(*blocks, strict=True):
        for row in range(len(ids)):
            np.testing.assert_allclose(values[row], expected_values[row], atol=noise)
            if (ids[row] != expected_ids[row]).any():
                # Rounding on a GPU may swap neighbours, or the eighth for a ninth; another pick begins another chain.
                assert on_gpu()
                gaps = np.append(-np.diff(expected_values[row]), 0.0)
                near = (gaps < noise) | (np.append(0.0, gaps[:-1]) < noise)
                assert near[ids[row] != expected_ids[row]].all()
                if ids[row, 0] != expected_ids[row, 0]:
                    break
        found |= set((ids // 1024).ravel().tolist())
    assert found == set(range((n_vocab + 1023) // 1024))


@both_executors
@pytest.mark.parametrize("spec", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_drafter_equals_llama(
    load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.DrafterSpec, kernels: str
) -> None:
    """llama.cpp keeps the drafter's cache in F16 and rounds on the way: that is the tolerance."""
    blocks = []
    for engine in (kernels, "llama"):
        target = load_target(tm.DENSE, kernels=engine)
        drafter = load_drafter(target, tm.DENSE, spec, kernels="auto" if engine == kernels else "llama")
        target.prefill(random_tokens(40, 90))
        rounds = []
        for _ in range(3):
            rounds.append([part.copy() for part in drafter.draft(7, drafter.n_draft)])
            target.verify([7, 8, 9], [-1, 0, 0])
            target.commit([0, 2])
        blocks.append(rounds)
    for (ids, values, confidence), (llama_ids, llama_values, llama_confidence) in zip(*blocks, strict=True):
        np.testing.assert_array_equal(ids[:, 0], llama_ids[:, 0])
        np.testing.assert_allclose(values, llama_values, atol=0.02)
        np.testing.assert_allclose(confidence, llama_confidence, atol=2e-3)


@pytest.mark.parametrize("spec", [tm.DENSE, tm.HYBRID], ids=["llama", "lfm2"])
@pytest.mark.parametrize("rotated", [3, 1000])
def test_a_rotation_that_would_abort_is_refused(models: ModelFiles, spec: tm.TargetSpec, rotated: int) -> None:
    """llama.cpp does not ask in every architecture, and stops the process in the middle of a forward."""
    file = models.target(spec).file
    path = models.write(file.edit(set_keys={f"{spec.architecture}.rope.dimension_count": rotated}))
    for kernels in ("auto", "llama"):
        with pytest.raises(ModelError, match=r"rope\.dimension_count"):
            open_target(path, kernels=kernels)


@pytest.mark.parametrize("rotated", [0, 15, 32])
def test_a_drafter_s_rotation_is_checked(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, rotated: int
) -> None:
    file = models.drafter(tm.DENSE, tm.DrafterSpec()).file
    path = models.write(file.edit(set_keys={"dflash.rope.dimension_count": rotated}))
    for kernels in ("auto", "llama"):
        with pytest.raises(DrafterError, match=r"rope\.dimension_count"):
            load_drafter(load_target(tm.DENSE, kernels=kernels), tm.DENSE, path)


@both_executors
def test_what_the_own_graph_cannot_run_goes_to_llama(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, kernels: str
) -> None:
    base = models.target(tm.DENSE).file
    other = models.write(
        tm.Gguf("internlm2", {k.replace("llama.", "internlm2.", 1): v for k, v in base.keys.items()}, base.tensors)
    )
    unknown = load_target(other, kernels="auto")
    assert (unknown.kernels, unknown.kernels_reason) == ("llama", "architecture 'internlm2'")
    with pytest.raises(ModelError, match="internlm2"):
        load_target(other, kernels=kernels)
    with pytest.raises(ValueError, match="kernels"):
        load_target(tm.DENSE, kernels="fast")
    coarse = load_target(tm.WIDE, cache_type_k="q4_0", cache_type_v="q4_0", flash_attention="on")
    assert coarse.kernels == "llama"
    assert "cache types" in coarse.kernels_reason
    with pytest.raises(ModelError, match="heads of 16" if kernels == "own" else "cache types"):
        load_target(tm.DENSE, kernels=kernels, **Q8_CACHE)
    drafter = models.drafter(tm.DENSE, tm.DrafterSpec()).file
    odd = models.write(drafter.edit(set_tensors={"extra.weight": np.zeros((4, 4), np.float32)}))
    assert "extra.weight" in _engine.drafter_refusal(str(odd), _engine.TargetOptions())
    with pytest.raises(DrafterError, match="--kernels llama"):
        load_drafter(load_target(tm.DENSE, kernels=kernels), tm.DENSE, odd)
