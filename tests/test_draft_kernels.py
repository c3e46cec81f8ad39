"""A drafter on our own graph beside a target on llama.cpp (csrc/engine/own_draft, draft_backend): what llama.cpp's drafter
proposes, and when it is not our graph that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from drafter_tools import BASE, LAYOUTS, NOISE, Draft, check_block
from engine_tools import request, run, text_prompt
from gguf import GGMLQuantizationType as Ggml
from session_tools import main_prompt, plain_reply, same_reply
from test_target import random_tokens

from adaspark import _engine
from adaspark.errors import DrafterError, ModelError
from adaspark.identity import identity_of

LLAMA: dict[str, Any] = {"kernels": "llama", "n_gpu_layers": 0}
KINDS = ("own", "llama")
TARGETS = {
    "llama": (tm.DENSE, BASE), "qwen3": (tm.QWEN3, BASE), "qwen3moe": (tm.ROUTED, BASE), "lfm2": (tm.HYBRID, BASE),
    "tied": (tm.TIED, tm.DrafterSpec(seed=122, taps=(1, 2))),
}  # fmt: skip


def same_draft(own: Draft, llama: Draft) -> None:
    """llama.cpp keeps the drafter's cache in F16 and rounds on the way: that is the tolerance."""
    np.testing.assert_array_equal(own[0][:, 0], llama[0][:, 0])
    np.testing.assert_allclose(own[1], llama[1], atol=0.02)
    np.testing.assert_allclose(own[2], llama[2], atol=2e-3)


def drafts(target: _engine.Target, drafter: _engine.Drafter) -> list[Draft]:
    """Blocks after a prompt of several injections, after trees (chains where there are none), and after ways back."""
    out = []
    rng = np.random.default_rng(200)

    def draft(n: int = 0) -> None:
        ids, values, confidence = drafter.draft(int(rng.integers(0, 320)), n or drafter.n_draft)
        out.append((ids.copy(), values.copy(), confidence.copy()))
        assert drafter.n_past == target.n_past

    target.prefill(random_tokens(201, 300))
    draft()
    draft(1)
    for turn in range(6):
        tokens = rng.integers(0, 320, 5).tolist()
        target.verify(tokens, [-1, 0, 1, 0, 3] if target.supports_tree else [-1, 0, 1, 2, 3])
        target.commit(
            [[0, 3, 4], [0], [0, 1, 2], []][turn % 4] if target.supports_tree else [0, 1, 2, 3, 4][: turn % 5]
        )
        if turn % 2:
            draft()
    for keep in (target.n_past - 1, 130, 7):
        if target.rollback(keep) if target.supports_tree else keep == 7 and target.clear() is None:
            target.prefill(random_tokens(202 + keep, 20))
            draft()
    target.clear()
    assert drafter.n_past == 0
    target.prefill(random_tokens(203, 3))
    draft()
    return out


def both(
    load_target: LoadTarget, load_drafter: LoadDrafter, target: tm.TargetSpec | Path, spec: tm.TargetSpec,
    drafter: tm.DrafterSpec | Path, **options: object,
) -> None:  # fmt: skip
    """Our graph, which is the default, and llama.cpp's propose the same."""
    blocks = []
    for kernels in ("auto", "llama"):
        engine = load_target(target, **LLAMA)
        loaded = load_drafter(engine, spec, drafter, n_gpu_layers=0, kernels=kernels, **options)
        assert loaded.kernels.split("/")[0] == ("own" if kernels == "auto" else "llama")
        blocks.append(drafts(engine, loaded))
    for own, llama in zip(*blocks, strict=True):
        same_draft(own, llama)


@pytest.mark.parametrize(("spec", "layout"), TARGETS.values(), ids=TARGETS.keys())
def test_every_architecture_s_drafter_equals_llamas(
    load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec, layout: tm.DrafterSpec
) -> None:
    both(load_target, load_drafter, spec, spec, layout)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("kernels", KINDS)
def test_a_block_is_the_definitions(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec, kernels: str
) -> None:
    tiny = models.drafter(tm.DENSE, layout)
    target = load_target(tm.DENSE, **LLAMA)
    drafter = load_drafter(target, tm.DENSE, layout, n_gpu_layers=0, kernels=kernels)
    assert drafter.kernels.startswith(kernels)
    committed = random_tokens(70, 40)
    target.prefill(committed)
    for anchor in (committed[-1], 77, tiny.target.text_tokens[9]):
        check_block(tiny, drafter.draft(anchor, tiny.n_draft), committed, anchor, tiny.n_draft)


def test_a_window_that_slides(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    both(load_target, load_drafter, tm.DENSE, tm.DENSE, BASE, n_ctx=48)


def test_a_window_that_slides_in_a_long_reply(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    prompt = text_prompt(models, tm.CYCLE, 88, 150)
    target = load_target(tm.CYCLE, **LLAMA)
    plain = plain_reply(target, prompt, 400)
    reference.assert_decisive(models.target(tm.CYCLE), prompt, plain.tokens)
    drafter = load_drafter(target, tm.CYCLE, tm.DrafterSpec(taps=(0, 1, 2)), n_gpu_layers=0, kernels="own", n_ctx=64)
    reply = run(_engine.Session(target, drafter), target, prompt, request("chain", 7, n_predict=400))
    same_reply(reply, plain)
    late = reply.rounds[len(reply.rounds) // 2 :]
    assert sum(r["accepted"] for r in late) > 0.5 * sum(r["drafted"] for r in late)


@pytest.mark.parametrize("spec", [tm.DENSE, tm.QWEN3], ids=["llama", "qwen3"])
def test_text_is_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec
) -> None:
    prompt = main_prompt(models, spec)
    target = load_target(spec, **LLAMA)
    plain = plain_reply(target, prompt, 120)
    reference.assert_decisive(models.target(spec), prompt, plain.tokens)
    session = _engine.Session(target, load_drafter(target, spec, BASE, n_gpu_layers=0, kernels="own"))
    for arm, n in (("chain", 3), ("tree", 16), ("adaspark", 0), ("adaspark", 8)):
        reply = run(session, target, prompt, request(arm, n, n_predict=120))
        same_reply(reply, plain)
        assert arm == "adaspark" or reply.statistics["accepted"] > 30


def test_any_number_of_threads_gives_the_same_bits(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    blocks = []
    for threads in (0, 1, 2, 3):
        target = load_target(tm.DENSE, **LLAMA)
        drafter = load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0, kernels="own", n_threads=threads)
        blocks.append(drafts(target, drafter))
    for other in blocks[1:]:
        for a, b in zip(blocks[0], other, strict=True):
            for x, y in zip(a, b, strict=True):
                assert x.tobytes() == y.tobytes()


def test_the_cache_is_of_the_targets_kind(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """F32 beside an F32 cache; F16 beside all others, which is further from the definition."""
    tiny = models.drafter(tm.DENSE, BASE)
    committed = random_tokens(204, 60)
    expected = reference.draft_block(tiny, committed, 9, 7)
    error = {}
    for cache in ("f32", "f16"):
        target = load_target(tm.DENSE, **LLAMA, cache_type_k=cache, cache_type_v=cache)
        drafter = load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0, kernels="own")
        target.prefill(committed)
        got = drafter.draft(9, 7)
        check_block(tiny, got, committed, 9, 7)
        error[cache] = float(np.abs(got[1][0] - expected.values[0]).max())
    assert error["f32"] < 1e-3
    assert error["f32"] < error["f16"] < NOISE


# ------------------------------------------------------------------------------------------------- what is borrowed


def muse_glimmer(models: ModelFiles) -> Path:
    """An architecture that our graph does not run; what its own head gives is scaled and capped."""
    spec, base, a = tm.QWEN3, models.target(tm.QWEN3).file, "muse-glimmer"
    keys = {k.replace("qwen3.", f"{a}.", 1): v for k, v in base.keys.items()}
    keys |= {
        f"{a}.attention.sliding_window": 128, f"{a}.logit_scale": 0.5, f"{a}.final_logit_softcapping": 4.0,
        f"{a}.attention.sliding_window_pattern": 2,
    }  # fmt: skip
    rng = np.random.default_rng(207)
    extra: dict[str, tm.Tensor] = {}
    for i in range(spec.n_layer):
        for norm in ("post_attention_norm", "post_ffw_norm"):
            extra[f"blk.{i}.{norm}.weight"] = np.full(spec.n_embd, 0.3, np.float32)
        gate = rng.standard_normal((spec.n_head * spec.head_dim, spec.n_embd)) / 8
        extra[f"blk.{i}.attn_gate.weight"] = gate.astype(np.float32)
    return models.write(tm.Gguf(a, keys, {**base.tensors, **extra}))


@pytest.mark.parametrize("layout", [BASE, LAYOUTS["reduced vocabulary"]], ids=["all", "embedding"])
def test_tables_are_borrowed_of_an_architecture_that_scales_them(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, layout: tm.DrafterSpec
) -> None:
    path = muse_glimmer(models)
    with pytest.raises(ModelError, match="muse-glimmer"):
        load_target(path, kernels="own", n_gpu_layers=0)
    both(load_target, load_drafter, path, tm.QWEN3, layout)


@pytest.mark.parametrize("small", [False, True], ids=["two parts", "first part without tensors"])
def test_tables_are_borrowed_of_a_split_file(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, tmp_path: Path, small: bool
) -> None:
    file = models.target(tm.DENSE).file
    names = [n for n in file.tensors if n != "token_embd.weight"]
    writer = gguf.GGUFWriter(tmp_path / "split.gguf", file.architecture, split_max_tensors=len(names) // 2 + 1,
                             small_first_shard=small)  # fmt: skip
    for key, value in file.keys.items():
        kind, element = tm._kv_type(value)
        writer.add_key_value(key, value, kind, element)
    for name in [*names, "token_embd.weight"]:
        writer.add_tensor(name, np.ascontiguousarray(file.tensors[name]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = min(tmp_path.glob("split-00001-of-*.gguf"))
    assert len(list(tmp_path.iterdir())) == (3 if small else 2)
    both(load_target, load_drafter, first, tm.DENSE, BASE)


@pytest.mark.parametrize("kind", [Ggml.F16, Ggml.Q8_0, Ggml.Q4_0], ids=["F16", "Q8_0", "Q4_0"])
def test_tables_of_other_formats(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, kind: Ggml
) -> None:
    """Tables as the file has them; llama.cpp rounds what it multiplies them with to 8 bits, as our kernels do."""
    path = models.write(models.target(tm.WIDE).file.retype(["token_embd.weight", "output.weight"], kind))
    layout = tm.DrafterSpec(seed=124, taps=(0, 1, 2))
    blocks = []
    for kernels in KINDS:
        target = load_target(path, **LLAMA)
        drafter = load_drafter(target, tm.WIDE, layout, n_gpu_layers=0, kernels=kernels)
        target.prefill(random_tokens(205, 40))
        blocks.append(drafter.draft(9, 7))
    noise = 0.02 if kind == Ggml.F16 else 0.25
    np.testing.assert_allclose(blocks[0][1], blocks[1][1], atol=noise)
    np.testing.assert_array_equal(blocks[0][0][:, 0], blocks[1][0][:, 0])


# ------------------------------------------------------------------------------------------- when it is not our graph


def refused(load_target: LoadTarget, load_drafter: LoadDrafter, why: str, path: Path,
            drafter: tm.DrafterSpec | Path, spec: tm.TargetSpec = tm.DENSE) -> None:  # fmt: skip
    """llama.cpp's drafter runs it, without a word; asked for our graph, there is a reason."""
    target = load_target(path, **LLAMA)
    with pytest.raises(DrafterError, match=why) as error:
        load_drafter(target, spec, drafter, n_gpu_layers=0, kernels="own")
    assert "--kernels" not in str(error.value), "the target is on llama.cpp already"
    loaded = load_drafter(target, spec, drafter, n_gpu_layers=0)
    assert loaded.kernels == "llama"
    assert not loaded.warnings
    target.prefill(random_tokens(206, 20))
    assert loaded.draft(9, 7)[0].shape == (7, 8)


def test_a_drafter_that_our_graph_does_not_know(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    scaled = models.write(models.drafter(tm.DENSE, BASE).file.edit(set_keys={"dflash.embedding_scale": 2.0}))
    refused(load_target, load_drafter, "embedding_scale", models.target_path(tm.DENSE), scaled)
    kind = models.write(models.drafter(tm.WIDE, tm.DrafterSpec(taps=(0, 1, 2))).file.retype(["fc.weight"], Ggml.TQ2_0))
    refused(load_target, load_drafter, "tq2_0", models.target_path(tm.WIDE), kind, tm.WIDE)


def test_tables_in_a_format_that_our_kernels_do_not_multiply(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    file = models.target(tm.WIDE).file
    layouts = {
        name: tm.DrafterSpec(seed=124, taps=(0, 1, 2), own_head=name == "own head") for name in ("none", "own head")
    }
    for tensor, layout in (("output.weight", "none"), ("token_embd.weight", "own head")):
        path = models.write(file.retype([tensor], Ggml.TQ2_0))
        refused(load_target, load_drafter, rf"tq2_0.*target's '{tensor}'", path, layouts[layout], tm.WIDE)
    path = models.write(file.retype(["output.weight"], Ggml.TQ2_0))  # nobody borrows it
    assert load_drafter(load_target(path, **LLAMA), tm.WIDE, layouts["own head"], n_gpu_layers=0).kernels != "llama"


def test_layers_on_a_gpu(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    if not _engine.backend_info()["gpu_offload"]:
        pytest.skip("this build has no GPU")
    target = load_target(tm.DENSE, **LLAMA)
    with pytest.raises(DrafterError, match="-ngld"):
        load_drafter(target, tm.DENSE, BASE, n_gpu_layers=-1, kernels="own")
    assert load_drafter(target, tm.DENSE, BASE, n_gpu_layers=-1).kernels == "llama"
    with pytest.raises(DrafterError, match="-ngl"):
        load_drafter(load_target(tm.DENSE, kernels="llama", n_gpu_layers=-1), tm.DENSE, BASE, kernels="own")


@pytest.mark.parametrize("on", ["own", "ggml"])
def test_other_targets_have_their_drafters_with_them(
    load_target: LoadTarget, load_drafter: LoadDrafter, on: str
) -> None:
    target = load_target(tm.DENSE, kernels=on, n_gpu_layers=0)
    other = "own" if on == "ggml" else "llama"
    with pytest.raises(DrafterError, match=rf"'{on}/.*'{other}'"):
        load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0, kernels=other)
    with pytest.raises(ValueError, match="'fast'"):
        load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0, kernels="fast")
    drafter = load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0)
    assert drafter.kernels == target.kernels
    drafter.close()
    if on == "own":
        assert load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0, kernels="own").kernels == target.kernels


# ------------------------------------------------------------------------------------------------------ what it tells


@pytest.mark.parametrize("stop", [False, True])
def test_loading_tells_how_far_it_is_and_can_be_stopped(
    models: ModelFiles, load_target: LoadTarget, stop: bool
) -> None:
    shares: list[float] = []

    def progress(share: float) -> bool:
        shares.append(share)
        return not (stop and share > 0.3)

    options = _engine.DrafterOptions()
    options.n_gpu_layers = 0
    target = load_target(tm.DENSE, **LLAMA)
    path = str(models.drafter_path(tm.DENSE, BASE))
    if stop:
        with pytest.raises(ModelError, match="stopped"):
            _engine.Drafter(path, target, options, progress)
        assert len(target.prefill([5, 6])) == target.n_vocab
    else:
        _engine.Drafter(path, target, options, progress)
        assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert len(shares) > 3


def test_a_learned_state_belongs_to_the_drafters_kernels(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    """A block costs a tenth there: what was learned of one is no price of the other."""
    keys = set()
    for kernels in ("auto", "own", "llama"):
        target = load_target(tm.DENSE, **LLAMA)
        drafter = load_drafter(target, tm.DENSE, BASE, n_gpu_layers=0, kernels=kernels)
        options = _engine.TargetOptions(), _engine.DrafterOptions()
        identity = identity_of(target, drafter, *options, "1")
        assert identity.facts["kernels_draft"] == drafter.kernels
        keys.add(identity.key)
    assert len(keys) == 2


def test_every_block_length_and_a_full_context(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    layout = LAYOUTS["anchor only conditions"]
    tiny = models.drafter(tm.DENSE, layout)
    target = load_target(tm.DENSE, **LLAMA, n_ctx=96)
    drafter = load_drafter(target, tm.DENSE, layout, n_gpu_layers=0, kernels="own")
    committed = random_tokens(80, 96)
    target.prefill(committed)
    for n in range(1, tiny.n_draft + 1):
        check_block(tiny, drafter.draft(7, n), committed, 7, n)
