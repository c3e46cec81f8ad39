"""What llama.cpp loads without a question and then dies of (csrc/engine/load_check and the trial forwards) is an error in
words. Everything runs in a child: what is not caught takes its process along."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadTarget, ModelFiles
from engine_tools import in_child, open_drafter, open_target
from gguf import GGMLQuantizationType as Ggml

from adaspark import Engine, _engine
from adaspark.errors import ModelError

LLAMA = {"kernels": "llama"}


def keys(spec: tm.TargetSpec, **changed: Any) -> Callable[[ModelFiles], tm.Gguf]:
    return lambda models: models.target(spec).file.edit(
        set_keys={name.replace("__", "."): value for name, value in changed.items()}
    )


def tensor(name: str, kind: Ggml) -> Callable[[ModelFiles], tm.Gguf]:
    """A tensor stored as bytes of a type; the bytes do not matter."""

    def make(models: ModelFiles) -> tm.Gguf:
        file = models.target(tm.WIDE).file
        shape = np.asarray(file.tensors[name]).shape
        block, size = {Ggml.F16: (1, 2), Ggml.I8: (1, 1), Ggml.Q8_K: (256, 292), Ggml.Q4_0: (32, 18)}[kind]
        data = np.zeros((*shape[:-1], shape[-1] // block * size), np.uint8)
        return file.edit(set_tensors={name: tm.Raw(data, kind)})

    return make


def renamed(models: ModelFiles, architecture: str) -> tm.Gguf:
    """A llama file under another architecture's name."""
    file = models.target(tm.DENSE).file
    changed = {k.replace("llama.", architecture + ".", 1): v for k, v in file.keys.items()}
    return tm.Gguf(architecture, changed, file.tensors)


def spelt(model: str, token: str = "") -> Callable[[ModelFiles], tm.Gguf]:
    """Another kind of tokenizer on the same tokens, with scores; ``token`` is one of them."""
    tokens = [*tm.VOCABULARY.texts[:-1], token or tm.VOCABULARY.texts[-1]]
    scores = [float(-i) for i in range(len(tokens))]
    return lambda models: models.target(tm.DENSE).file.edit(
        set_keys={"tokenizer.ggml.model": model, "tokenizer.ggml.scores": scores, "tokenizer.ggml.tokens": tokens}
    )


CASES: dict[str, tuple[Callable[[ModelFiles], tm.Gguf], str]] = {
    "a norm's constant below zero": (keys(tm.DENSE, llama__attention__layer_norm_rms_epsilon=-1e-5), "rms_epsilon' is -"),
    "a number that is none": (keys(tm.DENSE, llama__rope__freq_base=float("nan")), "freq_base' is nan"),
    "no attention": (keys(tm.HYBRID, lfm2__attention__head_count_kv=[0] * 5), "head_count_kv' gives no block attention"),
    "a norm as halves": (tensor("blk.1.attn_norm.weight", Ggml.F16), "'blk.1.attn_norm.weight' is stored as f16"),
    "a norm in blocks": (tensor("blk.1.ffn_norm.weight", Ggml.Q4_0), "'blk.1.ffn_norm.weight' is stored as q4_0"),
    "a matrix of integers": (tensor("blk.0.attn_q.weight", Ggml.I8), "'blk.0.attn_q.weight' is stored as i8"),
    "a matrix of activations": (tensor("token_embd.weight", Ggml.Q8_K), "'token_embd.weight' is stored as q8_K"),
    "an endless token": (spelt("plamo2", "y" * 100_000), "entry 319 of the metadata key 'tokenizer.ggml.tokens'"),
    "no text to write": (keys(tm.DENSE, llama__attention__causal=False), "'llama.attention.causal' is false"),
    "a diffusion model": (lambda models: renamed(models, "llada"), "'llada' is not a decoder-only language model"),
    "no vocabulary": (keys(tm.DENSE, tokenizer__ggml__model="none"), "no vocabulary"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "part"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("kernels", ["auto", "llama"])
def test_it_is_an_error_in_words(
    models: ModelFiles, make: Callable[[ModelFiles], tm.Gguf], part: str, kernels: str
) -> None:
    path = models.write(make(models))
    kind, message = in_child(path, {"kernels": kernels})
    assert kind == "ModelError"
    assert str(path) in message
    assert part in message


@pytest.mark.parametrize("model", ["llama", "rwkv"])
def test_a_vocabulary_that_spells_nothing(models: ModelFiles, model: str) -> None:
    path = models.write(spelt(model)(models))
    with pytest.raises(ModelError, match="vocabulary cannot spell") as error:
        open_target(path).tokenize("a \x01 b")
    assert str(path) in str(error.value)


def test_an_architecture_that_is_no_name(models: ModelFiles, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(models.target_path(tm.DENSE).read_bytes().replace(b"llama", b"ll\xffma", 1))
    for use in (_engine.read_gguf, open_target):
        with pytest.raises(ModelError, match=r"damaged\.gguf.*'general\.architecture' is no name"):
            use(path if use is open_target else str(path))


def test_a_chat_template_that_is_not_utf8(models: ModelFiles, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    written = models.write(models.target(tm.DENSE).file.edit(set_keys={"tokenizer.chat_template": "UUUU"}))
    path.write_bytes(written.read_bytes().replace(b"UUUU", b"U\xffUU"))
    assert open_target(path).chat_template == "U\ufffdUU"


def test_a_faulty_chat_template_names_its_file(models: ModelFiles) -> None:
    path = models.write(models.target(tm.DENSE).file.edit(set_keys={"tokenizer.chat_template": "{% if %}"}))
    options = {"n_threads": 1, "n_ctx": 64, "n_gpu_layers": 0}
    with pytest.raises(ModelError, match="chat template does not compile") as error:
        Engine(path, None, store=None, **options)  # type: ignore[arg-type]
    assert str(path) in str(error.value)
    with pytest.raises(ModelError, match="the chat template given does not compile"):
        Engine(path, None, store=None, chat_template="{% for", **options)  # type: ignore[arg-type]


def test_a_message_is_utf8_and_not_endless(models: ModelFiles, tmp_path: Path, load_target: LoadTarget) -> None:
    tokens = ["UUUU" + "x" * 8000, *tm.VOCABULARY.texts[1:]]
    drafter = models.drafter(tm.DENSE, tm.DrafterSpec()).file.edit(set_keys={"tokenizer.ggml.tokens": tokens})
    path = tmp_path / "odd.gguf"
    path.write_bytes(models.write(drafter).read_bytes().replace(b"UUUU", b"U\xff\nU"))
    with pytest.raises(_engine.DrafterError) as error:
        open_drafter(path, load_target(tm.DENSE))
    message = str(error.value)
    assert str(path) in message
    assert "'U\ufffd U" in message
    assert message.endswith("trained for this target")
    assert len(message) < 2500


def test_a_reason_is_utf8(models: ModelFiles, tmp_path: Path) -> None:
    """What keeps a file from our own kernels may be the name of a tensor."""
    path = tmp_path / "odd.gguf"
    file = models.drafter(tm.DENSE, tm.DrafterSpec()).file.edit(set_tensors={"UUUU": np.zeros(4, np.float32)})
    path.write_bytes(models.write(file).read_bytes().replace(b"UUUU", b"U\xffUU"))
    assert "U\ufffdUU" in _engine.drafter_refusal(str(path), _engine.TargetOptions())


def test_a_target_whose_blocks_llama_cpp_does_not_hand_out(models: ModelFiles) -> None:
    """llama.cpp aborts on it in the first forward; the target itself is whole, and stays so."""
    file = models.write(tm.qwen2(models.target(tm.DENSE).file))
    target = open_target(file, kernels="llama")
    wanted = target.prefill([5, 6, 7])
    target.clear()
    path = models.drafter_path(tm.DENSE, tm.DrafterSpec())
    with pytest.raises(_engine.DrafterError, match="'qwen2' target"):
        open_drafter(path, target)
    np.testing.assert_array_equal(target.prefill([5, 6, 7]), wanted)
    open_drafter(path, open_target(file, kernels="own"))


def test_a_feed_forward_one_wide(models: ModelFiles) -> None:
    """A matrix of one column is no vector."""
    path = models.target_path(tm.TargetSpec("llama", seed=3, n_layer=2, n_ff=1))
    ggml, llama = (open_target(path, kernels=kernels) for kernels in ("ggml", "llama"))
    np.testing.assert_allclose(ggml.prefill([5, 6, 7]), llama.prefill([5, 6, 7]), atol=1e-3)
