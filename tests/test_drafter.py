"""DSpark drafter (csrc/engine/drafter): its numbers against the definition, in every layout and format."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from drafter_tools import BASE, LAYOUTS, NOISE, check_block
from engine_tools import on_gpu, request, run, text_prompt
from gguf import GGMLQuantizationType as Ggml
from session_tools import main_prompt, plain_reply, same_reply
from test_target import random_tokens

from adaspark import _engine

TARGETS = {"llama": tm.DENSE, "qwen3": tm.QWEN3, "qwen3moe": tm.ROUTED, "lfm2": tm.HYBRID}


def test_drafters_of_the_fixtures_have_something_to_say(models: ModelFiles) -> None:
    """Picks differ over positions and contexts, confidences are spread: equal numbers below mean something."""
    drafter = models.drafter(tm.DENSE, BASE)
    blocks = [reference.draft_block(drafter, random_tokens(seed, 20), seed, 7) for seed in range(5)]
    assert len({t for b in blocks for t in b.ids[:, 0].tolist()}) > 20
    confidence = np.concatenate([b.confidence for b in blocks])
    assert confidence.min() < 0.4
    assert confidence.max() > 0.8
    gaps = np.concatenate([b.values[:, 0] - b.values[:, 1] for b in blocks])
    assert np.median(gaps) > 20 * NOISE


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_block_is_the_definitions(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec
) -> None:
    tiny = models.drafter(tm.DENSE, layout)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, layout)
    committed = random_tokens(70, 40)
    target.prefill(committed)
    for anchor in (committed[-1], 77, tiny.target.text_tokens[9]):
        check_block(tiny, drafter.draft(anchor, tiny.n_draft), committed, anchor, tiny.n_draft)


@pytest.mark.parametrize("spec", TARGETS.values(), ids=TARGETS.keys())
def test_features_of_every_architecture(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec
) -> None:
    tiny = models.drafter(spec, BASE)
    target = load_target(spec)
    drafter = load_drafter(target, spec, BASE)
    committed = random_tokens(71, 50)
    target.prefill(committed)
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7)


def test_a_tied_target_lends_its_embedding_as_the_head(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    layout = tm.DrafterSpec(seed=122, taps=(1, 2))
    target = load_target(tm.TIED)
    drafter = load_drafter(target, tm.TIED, layout)
    committed = random_tokens(72, 30)
    target.prefill(committed)
    check_block(models.drafter(tm.TIED, layout), drafter.draft(9, 7), committed, 9, 7, noise=0.25 if on_gpu() else 0.1)


@pytest.mark.parametrize("layout", [BASE, LAYOUTS["anchor only conditions"]], ids=["anchor", "bonus"])
def test_every_block_length(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec
) -> None:
    """A shorter block is run shorter: its rows do not see the masks of positions nobody asked for."""
    tiny = models.drafter(tm.DENSE, layout)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, layout)
    committed = random_tokens(73, 25)
    target.prefill(committed)
    for n in range(1, tiny.n_draft + 1):
        check_block(tiny, drafter.draft(12, n), committed, 12, n)


@pytest.mark.parametrize("layout", [BASE, LAYOUTS["anchor only conditions"]], ids=["anchor", "bonus"])
def test_a_block_is_cut_below_a_chain_that_is_not_probable_enough(
    load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec
) -> None:
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, layout)
    target.prefill(random_tokens(73, 25))
    whole = drafter.draft(12, drafter.n_draft)
    chain = np.cumprod(whole[2], dtype=np.float32)
    lengths = set()
    for enough in (0.0, *(float(q) * 1.01 for q in chain), 1.0):
        improbable = np.flatnonzero(chain[1:] < enough)
        n = int(improbable[0]) + 2 if improbable.size else drafter.n_draft
        n = n if drafter.kernels.startswith("own") else drafter.n_draft
        lengths.add(n)
        for cut, full in zip(drafter.draft(12, drafter.n_draft, enough), whole, strict=True):
            assert np.array_equal(cut, full[:n])
    assert len(lengths) > 3 or not drafter.kernels.startswith("own")


@pytest.mark.parametrize("n", [-1, 0, 8, 64])
def test_a_length_outside_the_block_is_refused(load_target: LoadTarget, load_drafter: LoadDrafter, n: int) -> None:
    """Nothing is read past the block's rows (B14); the session clamps, see test_field_reports."""
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE)
    target.prefill([5, 6, 7])
    with pytest.raises(ValueError, match="1 to 7"):
        drafter.draft(8, n)
    assert drafter.draft(8, 7)[0].shape == (7, 8)


@pytest.mark.parametrize("anchor", [-1, 320, 2**30])
def test_an_anchor_outside_the_vocabulary_is_refused(
    load_target: LoadTarget, load_drafter: LoadDrafter, anchor: int
) -> None:
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE)
    target.prefill([5, 6, 7])
    with pytest.raises(ValueError, match="vocabulary"):
        drafter.draft(anchor, 3)


def test_drafting_leaves_no_trace(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE)
    committed = random_tokens(74, 20)
    target.prefill(committed)
    first = drafter.draft(8, 7)
    for n in (3, 7, 1):
        drafter.draft(99, n)
    for a, b in zip(first, drafter.draft(8, 7), strict=True):
        np.testing.assert_array_equal(a, b)
    assert drafter.n_past == target.n_past == 20
    more = random_tokens(75, 3)
    target.prefill(more)
    check_block(tiny, drafter.draft(8, 7), committed + more, 8, 7)


def test_features_follow_the_accepted_path(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """Prefill in pieces, trees with the second sibling accepted, rollbacks: always the features of the text kept."""
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE, n_batch=16)
    drafter = load_drafter(target, tm.DENSE, BASE)
    rng = np.random.default_rng(76)
    committed = random_tokens(77, 50)
    target.prefill(committed)
    for turn in range(12):
        tokens = rng.integers(0, 320, 7).tolist()
        target.verify(tokens, [-1, 0, 1, 0, 3, 4, 0])
        path = [[0, 3, 4, 5], [0, 6], [0], [0, 1, 2], []][turn % 5]
        target.commit(path)
        committed += [tokens[r] for r in path]
        if turn in (4, 8, 9):  # before and after features are injected
            keep = len(committed) - (2 if turn == 4 else 20)
            target.rollback(keep)
            committed = committed[:keep]
        assert drafter.n_past == target.n_past == len(committed)
        if turn % 3 == 1:
            anchor = int(rng.integers(0, 320))
            check_block(tiny, drafter.draft(anchor, 7), committed, anchor, 7)
    target.clear()
    assert drafter.n_past == 0
    committed = random_tokens(78, 12)
    target.prefill(committed)
    check_block(tiny, drafter.draft(3, 7), committed, 3, 7)


def test_a_long_context_keeps_every_position(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """Several injections' worth of prompt, then a block at its far end (B11: positions n_past .. n_past + B - 1)."""
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE, n_ctx=700)
    drafter = load_drafter(target, tm.DENSE, BASE)
    committed = random_tokens(79, 600)
    target.prefill(committed)
    check_block(tiny, drafter.draft(7, 7), committed, 7, 7)


def test_a_block_fits_behind_a_full_context(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE, n_ctx=96)
    drafter = load_drafter(target, tm.DENSE, BASE)
    committed = random_tokens(80, 96)
    target.prefill(committed)
    check_block(tiny, drafter.draft(7, 7), committed, 7, 7)


@pytest.mark.parametrize("shift", [-1, 1])
def test_the_list_of_target_layers_is_used_as_given(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, shift: int
) -> None:
    """B12: the same weights fed by blocks one lower or higher give that map's numbers, and not the unshifted ones."""
    layout = tm.DrafterSpec(seed=123, taps=(1, 2))
    tiny = models.drafter(tm.DENSE, layout)
    taps = (1 + shift, 2 + shift)
    path = models.write(tiny.file.edit(set_keys={"dflash.target_layers": list(taps)}))
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, path)
    assert drafter.target_layers == list(taps)
    committed = random_tokens(81, 40)
    target.prefill(committed)
    got = drafter.draft(9, 7)
    check_block(tiny, got, committed, 9, 7, taps=taps)
    with pytest.raises(AssertionError):
        check_block(tiny, got, committed, 9, 7)


def test_confidence_without_a_head_is_the_picks_share(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """The share of the whole draft vocabulary, from logits: not above 1, and well below it where the head is unsure."""
    layout = tm.DrafterSpec(seed=128, confidence=False, markov=3.0)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, layout)
    committed = random_tokens(93, 30)
    target.prefill(committed)
    got = drafter.draft(9, 7)
    check_block(models.drafter(tm.DENSE, layout), got, committed, 9, 7)
    assert got[2].min() < 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_confidence_head_that_is_not_a_number(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, value: float
) -> None:
    """No NaN leaves the drafter, and the text stays the target's."""
    tiny = models.drafter(tm.DENSE, BASE)
    bad = np.full_like(tiny.weights["conf_proj.weight"], value)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, models.write(tiny.file.edit(set_tensors={"conf_proj.weight": bad})))
    target.prefill(random_tokens(94, 20))
    _, _, confidence = drafter.draft(9, 7)
    assert ((confidence >= 0.0) & (confidence <= 1.0)).all()
    target.clear()
    prompt = main_prompt(models, tm.DENSE)
    plain = plain_reply(target, prompt, 60)
    session = _engine.Session(target, drafter)
    same_reply(run(session, target, prompt, request("tree", 16, n_predict=60)), plain)


# ---------------------------------------------------------------------------------------------------------- formats


FORMATS = {"F32": Ggml.F32, "F16": Ggml.F16, "BF16": Ggml.BF16, "Q8_0": Ggml.Q8_0, "Q4_K": Ggml.Q4_K}


@pytest.mark.parametrize("kind", FORMATS.values(), ids=FORMATS.keys())
def test_heads_of_every_format_draft(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, kind: Ggml
) -> None:
    """B17: Markov and output heads as drafters are published. The numbers are those of the stored weights."""
    layout = tm.DrafterSpec(seed=124, rank=256, taps=(0, 1, 2), own_head=True)
    tiny = models.drafter(tm.WIDE, layout)
    tiny = tiny.with_file(
        tiny.file.retype(["markov_w1.weight", "markov_w2.weight", "output.weight", "fc.weight"], kind)
    )
    llama = kind == Ggml.Q4_K  # one of them on llama.cpp's kernels
    target = load_target(tm.WIDE, kernels="llama" if llama else "auto")
    drafter = load_drafter(target, tm.WIDE, models.write(tiny.file), kernels="llama" if llama else "auto")
    committed = random_tokens(82, 30)
    target.prefill(committed)
    # quantised matrices multiply activations rounded to 8 bits
    noise = NOISE if kind in (Ggml.F32, Ggml.F16) else 0.25
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7, noise=noise)

    prompt = text_prompt(models, tm.WIDE, 83, 12)
    target.clear()
    plain = plain_reply(target, prompt, 60)
    reference.assert_decisive(models.target(tm.WIDE), prompt, plain.tokens)
    reply = run(_engine.Session(target, drafter), target, prompt, request("tree", 16, n_predict=60))
    same_reply(reply, plain)
    assert reply.statistics["drafted"] > 0
    assert reply.statistics["accepted"] > 30


@pytest.mark.parametrize("kind", [Ggml.F16, Ggml.BF16], ids=["F16", "BF16"])
def test_a_confidence_head_of_half_precision(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, kind: Ggml
) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    tiny = tiny.with_file(tiny.file.retype(["conf_proj.weight"], kind))
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, models.write(tiny.file))
    committed = random_tokens(84, 30)
    target.prefill(committed)
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7)
