"""DSpark drafter (csrc/engine/drafter, drafter_check): its numbers against the definition, its file against the target."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import on_gpu, request, run
from gguf import GGMLQuantizationType as Ggml
from numpy.typing import NDArray
from test_session import main_prompt, plain_reply, same_reply, text_prompt
from test_target import random_tokens

from adaspark import _engine

BASE = tm.DrafterSpec()
LAYOUTS = {
    "shares the target's head": BASE,
    "own head": tm.DrafterSpec(seed=111, own_head=True),
    "own embedding and head": tm.DrafterSpec(seed=112, own_head=True, own_embedding=True),
    "reduced vocabulary": tm.DrafterSpec(seed=113, reduced=100),
    "tiny vocabulary": tm.DrafterSpec(seed=114, reduced=5),
    "anchor only conditions": tm.DrafterSpec(seed=115, sample_from_anchor=False, block_size=8),
    "anchor only conditions, reduced": tm.DrafterSpec(seed=116, sample_from_anchor=False, block_size=6, reduced=80),
    "no confidence head": tm.DrafterSpec(seed=117, confidence=False),
    "no confidence head, reduced": tm.DrafterSpec(seed=118, confidence=False, reduced=100),
    "one layer, one tap": tm.DrafterSpec(seed=119, n_layer=1, taps=(2,), block_size=4),
    "first block tapped, out of order": tm.DrafterSpec(seed=120, taps=(3, 0)),
    "a block of 16": tm.DrafterSpec(seed=121, block_size=16),
}
TARGETS = {"llama": tm.DENSE, "qwen3": tm.QWEN3, "qwen3moe": tm.ROUTED, "lfm2": tm.HYBRID}
# An F16 cache is the drafter's default: entries are rounded to 11 bits on the way.
NOISE = 0.03 if not on_gpu() else 0.06

Draft = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]


def check_block(
    drafter: tm.TinyDrafter, got: Draft, committed: list[int], anchor: int, n: int, noise: float = NOISE,
    taps: tuple[int, ...] | None = None,
) -> None:  # fmt: skip
    """The ids may swap where two values are closer than the noise; the values at every place may not differ."""
    expected = reference.draft_block(drafter, committed, anchor, n, taps=taps)
    ids, values, confidence = got
    assert ids.shape == values.shape == (n, 8)
    assert confidence.shape == (n,)
    known = min(8, len(drafter.d2t))
    assert (ids[:, known:] == -1).all()
    assert (ids[:, :known] >= 0).all()
    place = {int(token): i for i, token in enumerate(drafter.d2t)}
    for i in range(n):
        assert len(set(ids[i, :known].tolist())) == known
        of_these = expected.all_values[i, [place[t] for t in ids[i, :known].tolist()]]
        np.testing.assert_allclose(values[i, :known], of_these, atol=noise)
        np.testing.assert_allclose(values[i, :known], expected.values[i, :known], atol=noise)
        assert (np.diff(values[i, :known]) <= 0).all()
        if ids[i, 0] != expected.ids[i, 0]:  # a near tie: the chain below hangs on another token
            assert expected.values[i, 0] - expected.values[i, 1] < noise
            return
        assert confidence[i] == pytest.approx(expected.confidence[i], abs=noise)


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


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_properties_come_from_the_file(
    load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec
) -> None:
    drafter = load_drafter(load_target(tm.DENSE), tm.DENSE, layout)
    assert drafter.block_size == layout.block_size
    assert drafter.n_draft == layout.block_size - (0 if layout.sample_from_anchor else 1)
    assert drafter.top_k == 8
    assert drafter.sample_from_anchor == layout.sample_from_anchor
    assert drafter.has_confidence == layout.confidence
    assert drafter.target_layers == list(layout.taps)
    assert drafter.mask_token == tm.MASK
    assert drafter.n_past == 0
    assert bool(drafter.warnings) == (not layout.confidence)


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


# ------------------------------------------------------------------------------------------------ files that are fine


def test_a_drafter_without_a_vocabulary_uses_the_targets(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """B09, B15: no tokens in the file, the mask id under tokenizer.ggml alone."""
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, models.write(tm.without_vocabulary(tiny)))
    assert drafter.mask_token == tm.MASK
    committed = random_tokens(85, 30)
    target.prefill(committed)
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7)


@pytest.mark.parametrize("layout", [tm.DrafterSpec(seed=125, own_head=True), tm.DrafterSpec(seed=125, reduced=100)],
                         ids=["own head", "reduced"])  # fmt: skip
def test_a_padded_vocabulary_is_accepted(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec
) -> None:
    """B15: same tokens, four more rows. The padding has the best logits of all and is never proposed."""
    tiny = models.drafter(tm.DENSE, layout)
    n = tm.VOCABULARY.size
    weights = tiny.weights
    pad = {"markov_w1.weight": np.vstack([weights["markov_w1.weight"], np.zeros((4, layout.rank), np.float32)])}
    if not layout.reduced:
        pad["output.weight"] = np.vstack([weights["output.weight"], 9 * weights["output.weight"][:4]])
        pad["markov_w2.weight"] = np.vstack([weights["markov_w2.weight"], 9 * weights["markov_w2.weight"][:4]])
    tokens = [*tiny.file.keys["tokenizer.ggml.tokens"], *(f"<|padding_{i}|>" for i in range(4))]
    file = tiny.file.edit(
        set_tensors=pad,
        set_keys={
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [*tiny.file.keys["tokenizer.ggml.token_type"], 5, 5, 5, 5],
        },
    )
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, models.write(file))
    committed = random_tokens(86, 30)
    target.prefill(committed)
    seen: set[int] = set()
    for anchor in range(0, n, 5):
        ids, values, confidence = drafter.draft(anchor, 7)
        assert ((ids >= 0) & (ids < n)).all()
        assert np.isfinite(values).all()
        assert ((confidence >= 0) & (confidence <= 1)).all()
        seen |= set(ids[:, 0].tolist())
    assert len(seen) > 10
    if layout.reduced:
        check_block(tiny, drafter.draft(9, 7), committed, 9, 7)


def test_a_padded_vocabulary_with_the_targets_head(models: ModelFiles, load_target: LoadTarget) -> None:
    """The target's head has no rows for the padding: the file cannot be run, and that is said before it is."""
    tiny = models.drafter(tm.DENSE, BASE)
    weights = tiny.weights
    file = tiny.file.edit(
        set_tensors={k: np.vstack([weights[k], np.zeros((4, BASE.rank), np.float32)]) for k in tm.HEAD_TENSORS[:2]},
        set_keys={
            "tokenizer.ggml.tokens": [*tiny.file.keys["tokenizer.ggml.tokens"], *(f"<|p{i}|>" for i in range(4))],
            "tokenizer.ggml.token_type": [*tiny.file.keys["tokenizer.ggml.token_type"], 5, 5, 5, 5],
        },
    )
    target = load_target(tm.DENSE)
    with pytest.raises(_engine.DrafterError, match="324"):
        _engine.Drafter(str(models.write(file)), target, _engine.DrafterOptions())
    assert len(target.prefill([5, 6])) == target.n_vocab


def test_a_missing_layout_key_takes_the_documented_default(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, models.write(tiny.file.edit(drop_keys=["dflash.sample_from_anchor"])))
    assert drafter.sample_from_anchor
    assert len(drafter.warnings) == 1
    assert "dflash.sample_from_anchor" in drafter.warnings[0]
    committed = random_tokens(87, 30)
    target.prefill(committed)
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7)


@pytest.mark.parametrize("declared", [True, None])
def test_a_confidence_head_need_not_be_declared(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, declared: bool | None
) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    file = tiny.file if declared else tiny.file.edit(drop_keys=["dflash.has_confidence_head"])
    assert load_drafter(load_target(tm.DENSE), tm.DENSE, models.write(file)).has_confidence


# ------------------------------------------------------------------------------------------------ files that are not

EMBD, FC = tm.DENSE.n_embd, "fc.weight"


def _changed(tiny: tm.TinyDrafter, name: str) -> tm.Gguf:
    """The drafter files that must be refused, by name."""
    f, w = tiny.file, tiny.weights
    tokens = list(f.keys["tokenizer.ggml.tokens"])
    mask = "tokenizer.ggml.mask_token_id"
    edits: dict[str, tm.Gguf] = {
        "no target layers": f.edit(drop_keys=["dflash.target_layers"]),
        "target layer beyond the target": f.edit(set_keys={"dflash.target_layers": [1, 2, tm.DENSE.n_layer]}),
        "negative target layer": f.edit(set_keys={"dflash.target_layers": [-1, 1, 2]}),
        "fewer target layers than fc takes": f.edit(set_keys={"dflash.target_layers": [1, 2]}),
        "no block size": f.edit(drop_keys=["dflash.block_size"]),
        "block size 0": f.edit(set_keys={"dflash.block_size": 0}),
        "block size 4096": f.edit(set_keys={"dflash.block_size": 4096}),
        "block size a text": f.edit(set_keys={"dflash.block_size": "seven"}),
        "bonus anchor in a block of 1": f.edit(set_keys={"dflash.block_size": 1, "dflash.sample_from_anchor": False}),
        "layout a number": f.edit(set_keys={"dflash.sample_from_anchor": 1}),
        "no mask token": f.edit(drop_keys=[mask]),
        "mask token -1": f.edit(set_keys={mask: np.int32(-1)}),
        "mask token beyond the vocabulary": f.edit(set_keys={mask: 320}),
        "other hidden size": f.edit(set_keys={"dflash.embedding_length": 128}),
        "another vocabulary": f.edit(set_keys={"tokenizer.ggml.tokens": [*tokens[:100], "different", *tokens[101:]]}),
        "a permuted vocabulary": f.edit(set_keys={"tokenizer.ggml.tokens": tokens[::-1]}),
        "no Markov head": f.edit(drop_tensors=["markov_w1.weight", "markov_w2.weight"]),
        "half a Markov head": f.edit(drop_tensors=["markov_w2.weight"]),
        "Markov head of two ranks": f.edit(set_tensors={"markov_w2.weight": w["markov_w2.weight"][:, :32]}),
        "Markov head of another vocabulary": f.edit(set_tensors={"markov_w2.weight": w["markov_w2.weight"][:200]}),
        "Markov codes of another vocabulary": f.edit(set_tensors={"markov_w1.weight": w["markov_w1.weight"][:200]}),
        "confidence head declared but missing": f.edit(drop_tensors=["conf_proj.weight", "conf_proj.bias"]),
        "confidence head of another width": f.edit(set_tensors={"conf_proj.weight": w["conf_proj.weight"][:, :64]}),
        "no fc": f.edit(drop_tensors=[FC]),
        "no encoder norm": f.edit(drop_tensors=["enc.output_norm.weight"]),
        "no block tensor": f.edit(drop_tensors=["blk.1.attn_k.weight"]),
        "a block tensor of another shape": f.edit(set_tensors={"blk.1.attn_k.weight": w["blk.1.attn_k.weight"][:16]}),
        "more blocks than tensors": f.edit(set_keys={"dflash.block_count": 3}),
        "a head of another vocabulary": f.edit(set_tensors={"output.weight": np.zeros((200, EMBD), np.float32)}),
        "d2t without a head": f.edit(set_tensors={"d2t": np.arange(320, dtype=np.int64)}),
    }
    return edits[name]


# What the message must name, so that its reader knows what to change.
REFUSED = {
    "no target layers": "dflash.target_layers",
    "target layer beyond the target": "dflash.target_layers",
    "negative target layer": "dflash.target_layers",
    "fewer target layers than fc takes": "fc.weight",
    "no block size": "dflash.block_size",
    "block size 0": "dflash.block_size",
    "block size 4096": "dflash.block_size",
    "block size a text": "dflash.block_size",
    "bonus anchor in a block of 1": "dflash.block_size",
    "layout a number": "dflash.sample_from_anchor",
    "no mask token": "mask_token_id",
    "mask token -1": "mask_token_id",
    "mask token beyond the vocabulary": "mask_token_id",
    "other hidden size": r"128\D.*\D64\D",
    "another vocabulary": r"320.*token 100 is 'different'",
    "a permuted vocabulary": "token 0",
    "no Markov head": "markov_w1",
    "half a Markov head": "markov_w2",
    "Markov head of two ranks": r"\b32\b",
    "Markov head of another vocabulary": r"200.*320",
    "Markov codes of another vocabulary": r"markov_w1|200",
    "confidence head declared but missing": "conf_proj",
    "confidence head of another width": "conf_proj",
    "no fc": "fc.weight",
    "no encoder norm": "enc.output_norm",
    "no block tensor": "blk.1.attn_k",
    "a block tensor of another shape": "blk.1.attn_k",
    "more blocks than tensors": "blk.2",
    "a head of another vocabulary": r"output|200",
    "d2t without a head": "output.weight",
}


@pytest.mark.parametrize(("name", "message"), REFUSED.items(), ids=REFUSED.keys())
def test_a_drafter_that_cannot_be_right_is_refused(
    models: ModelFiles, load_target: LoadTarget, name: str, message: str
) -> None:
    """Refused at load, in words, with the target as usable as before (B09, B12, B15, S04)."""
    path = models.write(_changed(models.drafter(tm.DENSE, BASE), name))
    target = load_target(tm.DENSE)
    with pytest.raises(_engine.DrafterError, match=message) as error:
        _engine.Drafter(str(path), target, _engine.DrafterOptions())
    assert path.name in str(error.value)
    assert len(target.prefill([5, 6, 7])) == target.n_vocab
    good = _engine.Drafter(str(models.drafter_path(tm.DENSE, BASE)), target, _engine.DrafterOptions())
    assert good.n_draft == 7


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        (np.full(100, 7, np.int64), "d2t"),
        (np.arange(100, dtype=np.int64) + 250, "d2t"),
        (np.arange(100, dtype=np.int64) - 1, "d2t"),
        (np.arange(90, dtype=np.int64), "90"),
        (np.arange(100, dtype=np.int32), "d2t"),
        (np.arange(100, dtype=np.float32), "d2t"),
    ],
    ids=["one token", "beyond the vocabulary", "negative", "too short", "I32", "F32"],
)
def test_a_damaged_reduced_vocabulary_is_refused(
    models: ModelFiles, load_target: LoadTarget, d2t: np.ndarray, message: str
) -> None:
    tiny = models.drafter(tm.DENSE, tm.DrafterSpec(seed=126, reduced=100))
    path = models.write(tiny.file.edit(set_tensors={"d2t": d2t}))
    with pytest.raises(_engine.DrafterError, match=message):
        _engine.Drafter(str(path), load_target(tm.DENSE), _engine.DrafterOptions())


def test_a_drafter_of_another_target_names_both_sizes(models: ModelFiles, load_target: LoadTarget) -> None:
    """S04: one message, before any weight is loaded."""
    path = models.drafter_path(tm.WIDE, tm.DrafterSpec(taps=(0, 1, 2)))
    loaded: list[float] = []

    def progress(share: float) -> bool:
        loaded.append(share)
        return True

    with pytest.raises(_engine.DrafterError, match=r"256\D.*\D64\D"):
        _engine.Drafter(str(path), load_target(tm.DENSE), _engine.DrafterOptions(), progress)
    assert not loaded


def test_a_target_is_no_drafter(models: ModelFiles, load_target: LoadTarget) -> None:
    with pytest.raises(_engine.DrafterError, match="llama"):
        _engine.Drafter(str(models.target_path(tm.DENSE)), load_target(tm.DENSE), _engine.DrafterOptions())


def test_a_drafter_is_no_target(models: ModelFiles) -> None:
    """S05: said in words, not as a missing tensor."""
    with pytest.raises(_engine.ModelError, match="drafter"):
        _engine.Target(str(models.drafter_path(tm.DENSE, BASE)), _engine.TargetOptions())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.5, 0.999])
def test_a_truncated_drafter_is_refused(
    models: ModelFiles, load_target: LoadTarget, tmp_path: Path, share: float
) -> None:
    path = tm.truncated(models.drafter_path(tm.DENSE, BASE), tmp_path / "cut.gguf", share)
    with pytest.raises(_engine.ModelError, match=r"cut\.gguf"):
        _engine.Drafter(str(path), load_target(tm.DENSE), _engine.DrafterOptions())


# --------------------------------------------------------------------------------------------------- window, lifetime


@pytest.mark.parametrize("window", [1, 16, 64, 200])
def test_a_smaller_context_slides(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, window: int
) -> None:
    """S06: the text runs far past the drafter's memory; nothing fails and the drafter goes on being useful."""
    prompt = text_prompt(models, tm.CYCLE, 88, 150)
    layout = tm.DrafterSpec(taps=(0, 1, 2))
    target = load_target(tm.CYCLE)
    plain = plain_reply(target, prompt, 400)
    reference.assert_decisive(models.target(tm.CYCLE), prompt, plain.tokens)
    session = _engine.Session(target, load_drafter(target, tm.CYCLE, layout, n_ctx=window))
    reply = run(session, target, prompt, request("chain", 7, n_predict=400))
    same_reply(reply, plain)
    late = reply.rounds[len(reply.rounds) // 2 :]
    assert sum(r["accepted"] for r in late) > 0.5 * sum(r["drafted"] for r in late)


def test_a_window_that_has_not_filled_changes_nothing(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE, n_ctx=64)
    committed = random_tokens(89, 64)
    target.prefill(committed)
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7)


def test_a_window_that_slid_drafts_from_recent_text_only(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """Some number of recent positions explains the block exactly: nothing older, nothing missing, right positions."""
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE, n_ctx=48)
    committed = random_tokens(90, 170)
    target.prefill(committed)
    ids, values, _ = drafter.draft(9, 1)
    inputs = reference.forward(tiny.target, committed).layer_inputs
    errors = []
    for window in range(8, 58):
        block = reference.draft_block(tiny, committed, 9, 1, window=window, inputs=inputs)
        errors.append(float(np.abs(block.all_values[0, ids[0]] - values[0]).max()))
    assert min(errors) < NOISE
    assert 12 <= 8 + int(np.argmin(errors)) <= 48 + BASE.block_size


def test_rolling_back_over_a_window(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    """A request whose common prefix lies before what the drafter still remembers is answered all the same."""
    target = load_target(tm.DENSE)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, BASE, n_ctx=32))
    prompt = text_prompt(models, tm.DENSE, 91, 200)
    run(session, target, prompt, request("chain", 7, n_predict=50))
    for keep in (150, 20, 199):
        other = prompt[:keep] + text_prompt(models, tm.DENSE, 201 + keep, 10)
        reply = run(session, target, other, request("chain", 7, n_predict=40))
        target.clear()
        plain = plain_reply(target, other, 40)
        same_reply(reply, plain)
        reference.assert_decisive(models.target(tm.DENSE), other, plain.tokens)
        assert reply.statistics["drafted"] > 0


def test_one_drafter_at_a_time(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    target = load_target(tm.DENSE)
    first = load_drafter(target, tm.DENSE, BASE)
    with pytest.raises((ValueError, _engine.AdaSparkError), match="drafter"):
        load_drafter(target, tm.DENSE, dataclasses.replace(BASE, seed=127))
    target.prefill([5, 6, 7])
    assert first.draft(8, 3)[0].shape == (3, 8)


def test_a_drafter_of_a_closed_target(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE)
    session = _engine.Session(target, drafter)
    target.prefill([5, 6, 7])
    target.close()
    with pytest.raises(_engine.BackendError):
        drafter.draft(8, 3)
    with pytest.raises(_engine.BackendError):
        session.begin([5, 6, 7], request("chain", 3))


def test_a_drafter_loaded_late_must_be_shown_the_text(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    """Tokens committed before the drafter came are unknown to it: it says so and does not guess."""
    target = load_target(tm.DENSE)
    target.prefill([5, 6, 7])
    drafter = load_drafter(target, tm.DENSE, BASE)
    with pytest.raises((ValueError, RuntimeError, _engine.AdaSparkError), match="3"):
        drafter.draft(8, 3)
    reply = run(_engine.Session(target, drafter), target, [5, 6, 7, 8], request("chain", 3, n_predict=20))
    assert reply.statistics["drafted"] > 0


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
