"""DSpark drafter (csrc/engine/drafter_check): its file against the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from drafter_tools import BASE, LAYOUTS, check_block
from test_target import random_tokens

from adaspark import _engine


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
