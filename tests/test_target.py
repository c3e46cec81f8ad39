"""Target: loading, vocabulary, prefill, rollback (csrc/engine/target)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadTarget, ModelFiles
from engine_tools import f32_noise, on_gpu

from adaspark import _engine

ARCHITECTURES = {
    "llama": tm.DENSE, "qwen3": tm.QWEN3, "qwen3moe": tm.ROUTED, "lfm2": tm.HYBRID, "lfm2moe": tm.HYBRID_ROUTED,
    "llama-tied": tm.TIED,
}  # fmt: skip
every_target = pytest.mark.parametrize("spec", ARCHITECTURES.values(), ids=ARCHITECTURES.keys())

F32_NOISE = f32_noise()


def noise_of(spec: tm.TargetSpec) -> float:
    """Where the head is the embedding logits reach 30 and more."""
    return F32_NOISE * (5 if spec.tied and on_gpu() else 1)


def random_tokens(seed: int, n: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, tm.VOCABULARY.size, n).tolist()


@every_target
def test_prefill_gives_the_logits_of_the_definition(
    models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec
) -> None:
    tokens = random_tokens(1, 57)
    expected = reference.forward(models.target(spec), tokens).logits[-1]
    logits = load_target(spec).prefill(tokens)
    assert logits.shape == (tm.VOCABULARY.size,)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, atol=noise_of(spec))


@every_target
def test_prefill_in_pieces_equals_one_prefill(load_target: LoadTarget, spec: tm.TargetSpec) -> None:
    """Pieces of a call (n_batch) and pieces of a prompt (several calls) give the same state."""
    tokens = random_tokens(2, 61)
    whole = load_target(spec).prefill(tokens)
    small = load_target(spec, n_batch=7)
    np.testing.assert_allclose(small.prefill(tokens), whole, atol=noise_of(spec))
    assert small.n_past == small.n_kv_cells == 61
    small.clear()
    assert small.n_past == small.n_kv_cells == 0
    for start, end in ((0, 1), (1, 20), (20, 60), (60, 61)):
        logits = small.prefill(np.array(tokens[start:end], np.int32))
        assert small.n_past == small.n_kv_cells == end
    np.testing.assert_allclose(logits, whole, atol=noise_of(spec))


@every_target
def test_properties_come_from_the_file(load_target: LoadTarget, spec: tm.TargetSpec) -> None:
    target = load_target(spec, n_ctx=512)
    assert target.architecture == spec.architecture
    assert (target.n_vocab, target.n_embd, target.n_layer) == (tm.VOCABULARY.size, spec.n_embd, spec.n_layer)
    assert target.n_ctx == 512
    assert target.n_threads == 1
    assert target.max_rows == 64
    assert target.chat_template == tm.CHAT_TEMPLATE
    assert (target.bos_token, target.eos_token, target.add_bos) == (tm.IM_START, tm.IM_END, False)
    assert target.supports_tree == (not spec.conv_layers or target.kernels != "llama")
    assert target.max_chain == (63 if target.supports_tree else 8)
    assert spec.architecture.removesuffix("moe") in target.description
    assert not target.closed


def test_context_zero_means_the_models_own(load_target: LoadTarget) -> None:
    assert load_target(tm.DENSE, n_ctx=0).n_ctx == tm.DENSE.n_ctx_train


def test_a_model_without_optional_keys(models: ModelFiles, load_target: LoadTarget) -> None:
    file = models.target(tm.DENSE).file.edit(
        drop_keys=["tokenizer.chat_template", "tokenizer.ggml.add_bos_token", "general.name"]
    )
    target = load_target(models.write(file))
    assert target.chat_template is None
    assert len(target.prefill([5, 6, 7])) == target.n_vocab


def test_add_bos_is_read(models: ModelFiles, load_target: LoadTarget) -> None:
    """One BOS when the model asks for it and the caller does (S14)."""
    file = models.target(tm.DENSE).file.edit(set_keys={"tokenizer.ggml.add_bos_token": True})
    target = load_target(models.write(file))
    assert target.add_bos
    assert target.tokenize("a", add_special=True) == [tm.IM_START, *target.tokenize("a")]
    assert tm.IM_START not in target.tokenize("a")


class TestVocabulary:
    @pytest.fixture
    def target(self, load_target: LoadTarget) -> _engine.Target:
        return load_target(tm.DENSE)

    @pytest.mark.parametrize(
        "text", ["", "a", " the cat and the others", "x\ny\t z", "é中😀", "नमस्ते", "👩‍👩‍👧", "\x00\x7f", "Ж" * 30]
    )
    def test_bytes_of_tokens_spell_the_text(self, target: _engine.Target, text: str) -> None:
        tokens = target.tokenize(text)
        assert b"".join(target.token_bytes(t) for t in tokens) == text.encode()

    def test_merges_are_used(self, target: _engine.Target) -> None:
        assert target.tokenize(" the") == [tm.VOCABULARY.token(b" the")]
        assert target.tokenize("é") == [tm.VOCABULARY.token(b"\xc3\xa9")]
        assert len(target.tokenize("Ж")) == 2, "a character without a merge is split over tokens"

    def test_control_tokens_stay_text_unless_asked_for(self, target: _engine.Target) -> None:
        text = "<|im_start|>a<|im_end|>"
        assert not {tm.IM_START, tm.IM_END} & set(target.tokenize(text))
        assert target.tokenize(text, parse_special=True) == [tm.IM_START, *target.tokenize("a"), tm.IM_END]

    def test_control_tokens_have_no_bytes_unless_asked_for(self, target: _engine.Target) -> None:
        assert target.token_bytes(tm.IM_END) == b""
        assert target.token_bytes(tm.IM_END, special=True) == b"<|im_end|>"
        assert target.token_text(tm.IM_END) == "<|im_end|>"

    def test_every_token_has_its_bytes(self, target: _engine.Target) -> None:
        assert [target.token_bytes(t) for t in range(target.n_vocab)] == list(tm.VOCABULARY.pieces)

    def test_several_tokens_end_a_generation(self, target: _engine.Target) -> None:
        assert [t for t in range(target.n_vocab) if target.is_eog(t)] == [tm.END_OF_TEXT, tm.IM_END]

    @pytest.mark.parametrize("token", [-1, 320, 2**31 - 1])
    @pytest.mark.parametrize("name", ["token_bytes", "token_text"])
    def test_ids_outside_the_vocabulary_are_refused(self, target: _engine.Target, name: str, token: int) -> None:
        with pytest.raises((ValueError, IndexError)):
            getattr(target, name)(token)
        assert not target.is_eog(token)


@pytest.mark.parametrize("spec", [tm.DENSE, tm.QWEN3, tm.ROUTED], ids=["llama", "qwen3", "qwen3moe"])
def test_rollback_leaves_no_trace(models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec) -> None:
    first, second = random_tokens(3, 40), random_tokens(4, 20)
    target = load_target(spec)
    target.prefill(first)
    for keep in (33, 17, 1, 0):
        target.rollback(keep)
        assert target.n_past == target.n_kv_cells == keep
        logits = target.prefill(second)
        expected = reference.forward(models.target(spec), first[:keep] + second).logits[-1]
        np.testing.assert_allclose(logits, expected, atol=F32_NOISE)
        target.rollback(keep)


def test_rollback_needs_a_committed_length(load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE)
    target.prefill([5, 6, 7])
    for n in (-1, 4):
        with pytest.raises(ValueError, match="rollback"):
            target.rollback(n)
    assert target.n_past == target.n_kv_cells == 3


def test_a_recurrent_model_starts_again_after_clear(models: ModelFiles, load_target: LoadTarget) -> None:
    target = load_target(tm.HYBRID)
    tokens = random_tokens(5, 30)
    target.prefill(random_tokens(6, 50))
    target.clear()
    np.testing.assert_allclose(
        target.prefill(tokens), reference.forward(models.target(tm.HYBRID), tokens).logits[-1], atol=F32_NOISE
    )


def test_prefill_reports_progress_and_can_be_stopped(load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_batch=16)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> bool:
        seen.append((done, total))
        return True

    target.prefill(random_tokens(7, 50), progress)
    assert {total for _, total in seen} == {50}
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}), "progress only goes forward"
    assert seen[-1] == (50, 50)

    target.clear()

    def stop(done: int, total: int) -> bool:
        return done < min(32, total)

    assert len(target.prefill(random_tokens(7, 50), stop)) == 0, "no logits of a prompt cut short"
    assert target.n_past == target.n_kv_cells == 32, "what was decoded stays, and is counted"


def test_an_exception_of_the_progress_callback_comes_through(load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_batch=16)

    def progress(done: int, total: int) -> bool:
        message = f"stopped at {done} of {total}"
        raise KeyboardInterrupt(message)

    with pytest.raises(KeyboardInterrupt, match="stopped"):
        target.prefill(random_tokens(8, 50), progress)
    target.clear()
    assert len(target.prefill([5])) == target.n_vocab


def test_a_prefill_that_does_not_fit_changes_nothing(models: ModelFiles, load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_ctx=64)
    tokens = random_tokens(9, 64)
    target.prefill(tokens[:40])
    with pytest.raises(_engine.ContextFullError, match="64"):
        target.prefill(random_tokens(10, 25))
    assert target.n_past == target.n_kv_cells == 40
    logits = target.prefill(tokens[40:])
    np.testing.assert_allclose(logits, reference.forward(models.target(tm.DENSE), tokens).logits[-1], atol=F32_NOISE)
    assert target.n_past == target.n_kv_cells == 64


@pytest.mark.parametrize("tokens", [[], [-1], [5, 320], [2**31 - 1]])
def test_prefill_refuses_what_is_no_token(load_target: LoadTarget, tokens: list[int]) -> None:
    target = load_target(tm.DENSE)
    target.prefill([5, 6])
    with pytest.raises(ValueError):  # noqa: PT011 (pybind11 words some of them)
        target.prefill(tokens)
    assert target.n_past == target.n_kv_cells == 2


@pytest.mark.parametrize("flash_attention", ["auto", "on", "off"])
@pytest.mark.parametrize(("cache", "noise"), [("f32", F32_NOISE), ("f16", 0.02), ("bf16", 0.2), ("q8_0", 0.2)])
def test_attention_and_cache_formats(
    models: ModelFiles, load_target: LoadTarget, flash_attention: str, cache: str, noise: float
) -> None:
    # heads of 64: a Q8_0 cache needs rows of a multiple of 32
    tokens = random_tokens(11, 50)
    expected = reference.forward(models.target(tm.WIDE), tokens).logits[-1]
    if flash_attention != "off":
        noise = max(noise, 0.02)  # F16 inside
    v = "f32" if flash_attention == "off" and cache == "q8_0" else cache  # a quantised V cache needs flash attention
    target = load_target(tm.WIDE, flash_attention=flash_attention, cache_type_k=cache, cache_type_v=v)
    np.testing.assert_allclose(target.prefill(tokens), expected, atol=noise)


def test_plain_text_is_the_definitions(models: ModelFiles, load_target: LoadTarget) -> None:
    """Forty tokens chosen by the engine's argmax are those of the numpy model."""
    prompt = models.target(tm.DENSE).text_tokens[54:66]
    expected = reference.greedy(models.target(tm.DENSE), prompt, 40)
    reference.assert_decisive(models.target(tm.DENSE), prompt, expected)
    target = load_target(tm.DENSE)
    logits, got = target.prefill(prompt), []
    for _ in range(40):
        got.append(int(logits.argmax()))
        logits = target.prefill(got[-1:])
    assert got == expected


def test_load_reports_progress(models: ModelFiles) -> None:
    seen: list[float] = []

    def progress(share: float) -> bool:
        seen.append(share)
        return True

    _engine.Target(str(models.target_path(tm.DENSE)), _engine.TargetOptions(), progress).close()
    assert seen == sorted(seen)
    assert 0.0 <= seen[0] <= seen[-1] == 1.0


def test_close_frees_once_and_for_all(load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE)
    target.prefill([5, 6, 7])
    target.close()
    assert target.closed
    target.close()
    uses: list[Callable[[], object]] = [
        lambda: target.prefill([5]), lambda: target.verify([5], [-1]), lambda: target.commit([0]), target.clear,
        lambda: target.rollback(0), lambda: target.tokenize("a"), lambda: target.token_bytes(5),
        lambda: target.n_kv_cells, lambda: target.is_eog(5), lambda: target.token_text(5),
        lambda: _engine.Session(target),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(_engine.BackendError):
            use()


def test_two_targets_do_not_share_state(models: ModelFiles, load_target: LoadTarget) -> None:
    a, b = load_target(tm.DENSE), load_target(tm.QWEN3)
    first, second = random_tokens(12, 20), random_tokens(13, 30)
    a.prefill(first[:10])
    logits_b = b.prefill(second)
    logits_a = a.prefill(first[10:])
    np.testing.assert_allclose(logits_a, reference.forward(models.target(tm.DENSE), first).logits[-1], atol=F32_NOISE)
    np.testing.assert_allclose(logits_b, reference.forward(models.target(tm.QWEN3), second).logits[-1], atol=F32_NOISE)
    assert (a.n_past, b.n_past) == (20, 30)


def test_logits_are_the_callers(load_target: LoadTarget) -> None:
    """An array handed out keeps its values when the engine goes on."""
    target = load_target(tm.DENSE)
    logits = target.prefill(random_tokens(14, 10))
    kept = logits.copy()
    target.prefill(random_tokens(15, 10))
    target.close()
    np.testing.assert_array_equal(logits, kept)


def test_log_lines_reach_the_callback(models: ModelFiles) -> None:
    lines: list[tuple[int, str]] = []
    _engine.set_log_callback(lambda level, text: lines.append((level, text)))
    try:
        _engine.Target(str(models.target_path(tm.DENSE)), _engine.TargetOptions()).close()
    finally:
        _engine.set_log_callback(None)
    assert lines
    assert {level for level, _ in lines} <= {logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR}
    before = len(lines)
    _engine.Target(str(models.target_path(tm.DENSE)), _engine.TargetOptions()).close()
    assert len(lines) == before, "a removed callback hears nothing more"


def test_backend_info_describes_this_machine() -> None:
    info = _engine.backend_info()
    assert info["llama_version"] == _engine.llama_version != ""
    assert any(device["type"] == "cpu" for device in info["devices"])
    assert all(0 <= device["memory_free"] <= device["memory_total"] for device in info["devices"])


def test_read_gguf_reads_metadata_only(models: ModelFiles) -> None:
    path = models.target_path(tm.DENSE)
    summary = _engine.read_gguf(str(path))
    assert summary["architecture"] == "llama"
    assert summary["name"] == "tiny llama"
    assert summary["file_size"] == path.stat().st_size
    assert summary["n_tensors"] == len(models.target(tm.DENSE).file.tensors)
    assert summary["chat_template"] == tm.CHAT_TEMPLATE
    metadata = summary["metadata"]
    assert metadata["llama.block_count"] == tm.DENSE.n_layer
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["llama.rope.freq_base"] == pytest.approx(10000.0)
    assert "tokenizer.ggml.tokens" not in metadata, "long arrays are left out"
    drafter = _engine.read_gguf(str(models.drafter_path(tm.DENSE, tm.DrafterSpec())))
    assert drafter["metadata"]["dflash.target_layers"] == [1, 2, 3]
    assert drafter["chat_template"] is None


def test_quantize_writes_a_model_that_loads(models: ModelFiles, load_target: LoadTarget) -> None:
    source, destination = models.target_path(tm.WIDE), models.folder / "wide-q8_0.gguf"
    _engine.quantize(str(source), str(destination), "Q8_0", None, 1)
    assert destination.stat().st_size < 0.5 * source.stat().st_size
    tokens = random_tokens(16, 30)
    expected = reference.forward(models.target(tm.WIDE), tokens).logits[-1]
    logits = load_target(destination).prefill(tokens)
    assert 0.0 < np.abs(logits - expected).max() < 1.0
    assert logits.argmax() == expected.argmax()


def test_quantize_can_set_the_embeddings_format(models: ModelFiles) -> None:
    source = str(models.target_path(tm.WIDE))
    sizes = []
    for kind in ("Q8_0", "Q4_0"):
        destination = models.folder / f"wide-embedding-{kind}.gguf"
        _engine.quantize(source, str(destination), "Q4_0", kind, 1)
        sizes.append(destination.stat().st_size)
    assert sizes[1] < sizes[0]


def test_a_failed_quantize_leaves_no_file(models: ModelFiles) -> None:
    destination = models.folder / "never.gguf"
    with pytest.raises(_engine.AdaSparkError):
        _engine.quantize(str(models.folder / "missing.gguf"), str(destination), "Q8_0", None, 1)
    with pytest.raises((ValueError, _engine.AdaSparkError), match="Q9_9"):
        _engine.quantize(str(models.target_path(tm.WIDE)), str(destination), "Q9_9", None, 1)
    damaged = tm.truncated(models.target_path(tm.WIDE), models.folder / "damaged.gguf", 0.6)
    with pytest.raises(_engine.AdaSparkError):
        _engine.quantize(str(damaged), str(destination), "Q8_0", None, 1)
    assert not [p for p in models.folder.iterdir() if p.name.startswith("never")]
