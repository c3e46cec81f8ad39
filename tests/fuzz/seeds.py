"""The valid files that the fuzzer damages: a tiny pair of every architecture and of most weight formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import parts
import tiny_models as tm
from gguf import GGMLQuantizationType as Ggml

from adaspark import _engine


@dataclass(frozen=True)
class Pair:
    name: str
    target: parts.File
    drafter: parts.File


def in_format(file: tm.Gguf, kind: Ggml) -> tm.Gguf:
    """The matrices whose rows are whole blocks of a format, stored in it."""
    block = parts.block_of(kind)[0]
    names = [
        name
        for name, w in file.tensors.items()
        if not isinstance(w, tm.Raw) and w.ndim == 2 and w.shape[1] % block == 0 and "shortconv.conv" not in name
    ]
    return file.retype(names, kind)


def _small(spec: tm.TargetSpec) -> tm.TargetSpec:
    convolutions = tuple(i for i in spec.conv_layers if i < 2)
    return dataclasses.replace(spec, n_layer=2, conv_layers=convolutions, dense_lead=min(spec.dense_lead, 1))


_DRAFTER = tm.DrafterSpec(n_layer=1, taps=(0, 1))
_WIDE = dataclasses.replace(tm.WIDE, n_layer=1)
_PAIRS: tuple[tuple[tm.TargetSpec, Ggml, tm.DrafterSpec, Ggml], ...] = (
    (tm.DENSE, Ggml.F32, _DRAFTER, Ggml.F32),
    (tm.DENSE, Ggml.Q8_0, dataclasses.replace(_DRAFTER, sample_from_anchor=False), Ggml.Q8_0),
    (tm.TIED, Ggml.F16, dataclasses.replace(_DRAFTER, reduced=60), Ggml.F16),
    (tm.QWEN3, Ggml.Q4_0, dataclasses.replace(_DRAFTER, own_head=True, own_embedding=True), Ggml.Q4_0),
    (tm.ROUTED, Ggml.Q5_1, dataclasses.replace(_DRAFTER, confidence=False), Ggml.F32),
    (tm.HYBRID, Ggml.BF16, _DRAFTER, Ggml.BF16),
    (tm.HYBRID_ROUTED, Ggml.Q4_1, _DRAFTER, Ggml.F32),
    (_WIDE, Ggml.Q4_K, dataclasses.replace(_DRAFTER, taps=(0,)), Ggml.Q4_K),
    (dataclasses.replace(_WIDE, architecture="qwen3"), Ggml.Q5_0, dataclasses.replace(_DRAFTER, taps=(0,)), Ggml.Q5_0),
)


def pairs(folder: Path) -> list[Pair]:
    out = []

    def add(name: str, target: tm.Gguf, drafter: tm.Gguf) -> None:
        out.append(Pair(name, _parsed(target.write, folder), _parsed(drafter.write, folder)))

    for number, (spec, kind, draft_spec, draft_kind) in enumerate(_PAIRS):
        small = _small(spec) if spec.n_layer > 1 else spec
        target = tm.make_target(small)
        drafter = tm.make_drafter(target, draft_spec)
        drafter_file = tm.without_vocabulary(drafter) if number == 5 else drafter.file
        add(f"{spec.architecture}-{kind.name}", in_format(target.file, kind), in_format(drafter_file, draft_kind))
        if number == 0:
            add("qwen2-F32", tm.qwen2(target.file), drafter.file)
        if number == 7:  # formats that gguf-py does not write
            source = str(target.file.write(folder / "f32.gguf"))
            for name in ("Q5_K", "Q6_K"):
                wanted = folder / f"{name}.gguf"
                _engine.quantize(source, str(wanted), name, None, 1)
                out.append(Pair(f"llama-{name}", parts.parse(wanted.read_bytes()), out[-1].drafter))
    return out


def odd_pair(rng: Random, folder: Path) -> Pair | None:
    """A sound pair of unusual shapes; None where such a model cannot be made."""
    architecture = rng.choice(("llama", "qwen3", "qwen3moe", "lfm2", "lfm2moe"))
    n_kv = rng.choice((1, 2, 3))
    spec = tm.TargetSpec(
        architecture,
        seed=rng.randrange(1000),
        n_embd=rng.choice((8, 16, 24, 32, 48, 64, 96)),
        n_layer=rng.choice((1, 2)),
        n_head=n_kv * rng.choice((1, 2, 5)),
        n_head_kv=n_kv,
        head_dim=rng.choice((2, 4, 6, 8, 12, 16, 20, 32, 40, 64, 128, 256, 576)),
        n_ff=rng.choice((1, 7, 16, 32, 33, 64)),
        n_expert=rng.choice((1, 2, 5)) if architecture.endswith("moe") else 0,
        n_expert_used=1 if architecture.endswith("moe") else 0,
        n_ctx_train=rng.choice((1, 2, 16, 40, 64, 2048)),
        n_vocab=rng.choice((320, 304, 333)),
        conv_layers=(0,) if architecture.startswith("lfm2") else (),
        conv_window=rng.choice((1, 2, 3, 16, 17)),
        tied=rng.random() < 0.3,
    )
    drafter = tm.DrafterSpec(
        n_layer=1,
        n_head=rng.choice((1, 2, 3)),
        n_head_kv=1,
        head_dim=rng.choice((8, 16, 32, 48)),
        n_ff=rng.choice((16, 32, 33)),
        rank=rng.choice((1, 16, 32, 64, 96)),
        block_size=rng.choice((1, 2, 7, 16, 32)),
        sample_from_anchor=rng.random() < 0.5,
        taps=(0,) * rng.choice((1, 2, 3)),
        reduced=rng.choice((0, 0, 1, 2, 40)),
        own_head=rng.random() < 0.3,
        own_embedding=rng.random() < 0.3,
    )
    try:
        target = tm.make_target(spec)
        return Pair(
            "odd", _parsed(target.file.write, folder), _parsed(tm.make_drafter(target, drafter).file.write, folder)
        )
    except (ValueError, IndexError, ZeroDivisionError):
        return None


def _parsed(write: Callable[[Path], Path], folder: Path) -> parts.File:
    return parts.parse(write(folder / "seed.gguf").read_bytes())
