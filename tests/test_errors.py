"""Errors of loading (csrc/engine/load_error, gguf_file, backend): a Python exception in words, never a dead interpreter.

What could take the process down (S21) runs in a child of its own, which must live to print the exception's name.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadTarget, ModelFiles
from engine_tools import in_child

from adaspark import _engine


def test_a_child_runs_a_good_model(models: ModelFiles) -> None:
    assert in_child(models.target_path(tm.DENSE)) == ("ran", "320")


@pytest.fixture
def damaged(models: ModelFiles, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file that is no model, by name."""
    name, path = request.param, tmp_path / "damaged.gguf"
    good = models.target_path(tm.DENSE)
    data = good.read_bytes()
    file = models.target(tm.DENSE).file
    if name == "directory":
        path.mkdir()
    elif name == "empty":
        path.touch()
    elif name == "text":
        path.write_text("This is not a model.\n" * 100)
    elif name == "zeros":
        path.write_bytes(bytes(10_000))
    elif name == "header only":
        path.write_bytes(data[:24])
    elif name == "version 99":
        path.write_bytes(data[:4] + (99).to_bytes(4, "little") + data[8:])
    elif name == "a trillion tensors":
        path.write_bytes(data[:8] + (10**12).to_bytes(8, "little") + data[16:])
    elif name == "a trillion keys":
        path.write_bytes(data[:16] + (10**12).to_bytes(8, "little") + data[24:])
    elif name.startswith("cut at"):
        tm.truncated(good, path, float(name.split()[-1]))
    elif name == "unknown architecture":
        file.edit(architecture="frobnicator").write(path)
    elif name == "an encoder":
        file.edit(architecture="bert").write(path)
    elif name.startswith("no key"):
        file.edit(drop_keys=[name.split()[-1]]).write(path)
    elif name.startswith("no tensor"):
        file.edit(drop_tensors=[name.split()[-1]]).write(path)
    elif name == "another shape":
        file.edit(set_tensors={"blk.0.attn_q.weight": np.zeros((64, 32), np.float32)}).write(path)
    elif name == "no heads":
        file.edit(set_keys={"llama.attention.head_count": 0}).write(path)
    elif name == "a vocabulary of nothing":
        file.edit(set_keys={"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.token_type": [1]}).write(path)
    elif name == "no tokenizer":
        file.edit(drop_keys=[k for k in file.keys if k.startswith("tokenizer.")]).write(path)
    elif name == "unknown tokenizer":
        file.edit(set_keys={"tokenizer.ggml.model": "frobnicator"}).write(path)
    else:
        raise AssertionError(name)
    return path


DAMAGED = [
    "directory", "empty", "text", "zeros", "header only", "version 99", "a trillion tensors", "a trillion keys",
    "cut at 0.01", "cut at 0.1", "cut at 0.5", "cut at 0.99", "unknown architecture", "an encoder",
    "no key llama.block_count", "no key llama.attention.head_count", "no key llama.embedding_length",
    "no tensor token_embd.weight", "no tensor blk.2.ffn_up.weight", "another shape", "no heads",
    "a vocabulary of nothing", "no tokenizer", "unknown tokenizer",
]  # fmt: skip


@pytest.mark.parametrize("damaged", DAMAGED, indirect=True)
def test_a_damaged_target_is_an_error_in_words(damaged: Path) -> None:
    kind, message = in_child(damaged)
    assert kind == "ModelError"
    assert str(damaged) in message
    assert len(message) > len(str(damaged)) + 10


@pytest.mark.parametrize("damaged", DAMAGED[:12], indirect=True)
def test_read_gguf_says_the_same_of_the_header(damaged: Path) -> None:
    """No weights are read, so a file cut behind its header may pass; one without a whole header may not."""
    if damaged.is_file() and damaged.stat().st_size > 100_000:
        assert damaged.name in str(damaged)
        with pytest.raises(_engine.ModelError, match=r"damaged\.gguf"):
            _engine.Target(str(damaged), _engine.TargetOptions())
        return
    with pytest.raises(_engine.ModelError, match=r"damaged\.gguf"):
        _engine.read_gguf(str(damaged))


@pytest.mark.parametrize("path", ["/nowhere/model.gguf", "", "missing.gguf", "\u00e9\u4e2d.gguf", "a" * 5000])
def test_a_missing_file(load_target: LoadTarget, path: str) -> None:
    for use in (
        lambda: _engine.Target(path, _engine.TargetOptions()),
        lambda: _engine.read_gguf(path),
    ):
        with pytest.raises(_engine.ModelError) as error:
            use()
        assert path[:50] in str(error.value)
    target = load_target(tm.DENSE)
    with pytest.raises(_engine.ModelError):
        _engine.Drafter(path, target, _engine.DrafterOptions())
    assert len(target.prefill([5])) == target.n_vocab


def test_a_path_of_any_letters_loads(models: ModelFiles, tmp_path: Path) -> None:
    path = tmp_path / "модель 中 é.gguf"
    path.write_bytes(models.target_path(tm.DENSE).read_bytes())
    target = _engine.Target(str(path), _engine.TargetOptions())
    assert target.path == str(path)
    target.close()


OPTIONS = {
    "negative context": ({"n_ctx": -1}, {"ValueError"}),
    "no batch": ({"n_batch": 0}, {"ValueError"}),
    "negative threads": ({"n_threads": -1}, {"ValueError"}),
    "no rows": ({"max_rows": 0}, {"ValueError"}),
    "a million rows": ({"max_rows": 10**6}, {"ValueError"}),
    "unknown cache type": ({"cache_type_k": "f12"}, {"ValueError"}),
    "unknown flash attention": ({"flash_attention": "maybe"}, {"ValueError"}),
    "a quantised V cache without flash attention": (
        {"cache_type_v": "q8_0", "flash_attention": "off"}, {"ValueError", "ModelError"},
    ),
    "a cache type the heads are too narrow for": ({"cache_type_k": "q8_0"}, {"ValueError", "ModelError"}),
    "an absurd context": ({"n_ctx": 2**31 - 1}, {"ValueError"}),
    "a context of a terabyte": ({"n_ctx": 10**9}, {"OutOfMemoryError"}),
    "an absurd batch": ({"n_batch": 2**31 - 1}, {"ran"}),
    "beyond 32 bits": ({"n_ctx": 2**40}, {"TypeError", "ValueError", "OverflowError"}),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "kinds"), OPTIONS.values(), ids=OPTIONS.keys())
def test_options_out_of_range(models: ModelFiles, fields: dict[str, object], kinds: set[str]) -> None:
    kind, message = in_child(models.target_path(tm.DENSE), fields)
    assert kind in kinds
    if kind == "OutOfMemoryError":
        assert "-c" in message, "the remedy is named"
        assert "MiB" in message or "GiB" in message, "and how much was needed"


def test_a_drafters_absurd_context(models: ModelFiles, load_target: LoadTarget) -> None:
    """B18: a drafter's context is bounded by the target's, so it cannot be what does not fit."""
    target = load_target(tm.DENSE)
    options = _engine.DrafterOptions()
    options.n_ctx = 2**31 - 1
    drafter = _engine.Drafter(str(models.drafter_path(tm.DENSE, tm.DrafterSpec())), target, options)
    target.prefill([5, 6, 7])
    assert drafter.draft(8, 7)[0].shape == (7, 8)
    options.n_ctx = -1
    with pytest.raises(ValueError, match="n_ctx"):
        _engine.Drafter(str(models.drafter_path(tm.DENSE, tm.DrafterSpec())), target, options)


@pytest.mark.parametrize("stop", ["at once", "in the middle", "by an exception"])
def test_a_stopped_load(models: ModelFiles, stop: str) -> None:
    calls: list[float] = []

    def progress(share: float) -> bool:
        calls.append(share)
        if stop == "by an exception":
            message = "enough"
            raise RuntimeError(message)
        return stop == "in the middle" and share < 0.3

    expected = RuntimeError if stop == "by an exception" else _engine.ModelError
    with pytest.raises(expected):
        _engine.Target(str(models.target_path(tm.WIDE)), _engine.TargetOptions(), progress)
    assert calls
    assert calls[-1] < 1.0


def test_errors_form_one_family() -> None:
    family = [
        _engine.ModelError, _engine.DrafterError, _engine.ContextFullError, _engine.OutOfMemoryError,
        _engine.BackendError,
    ]  # fmt: skip
    assert all(issubclass(e, _engine.AdaSparkError) for e in family)
    assert issubclass(_engine.DrafterError, _engine.ModelError)
    assert not issubclass(_engine.ContextFullError, _engine.ModelError)
