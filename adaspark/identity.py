"""What a learned state belongs to: the weights, and all that changes what a round costs or what is accepted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adaspark import _core
from adaspark._native import _engine

if TYPE_CHECKING:
    from adaspark._engine import Drafter, DrafterOptions, Target, TargetOptions

_HEAD: Final = 4 << 20  # bytes from the start: metadata, tensor descriptions, most of a vocabulary
_SAMPLE: Final = 64 << 10  # bytes of each sample
_SAMPLES: Final = 64


def fingerprint(path: Path) -> str:
    """Names a file's content, wherever it lies and whatever it is called.

    A digest of its size, its head and samples spread over the rest: fine-tunes and requantisations differ everywhere, and
    reading all of a large model would cost seconds.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_HEAD))
        rest = size - _HEAD
        if rest > 0:
            for i in range(_SAMPLES):
                file.seek(_HEAD + max(rest - _SAMPLE, 0) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one learned state from another, but for its arm."""

    facts: dict[str, Any]  # what the key is made of
    files: dict[str, Any]  # names of the files; not part of the key

    @property
    def key(self) -> str:
        """32 hexadecimal digits."""
        text = json.dumps(self.facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def identity_of(
    target: Target, drafter: Drafter | None, options: TargetOptions, draft_options: DrafterOptions, version: str
) -> Identity:
    """The identity of a loaded pair. ``version``: of this package."""
    facts: dict[str, Any] = {
        "target": fingerprint(Path(target.path)),
        "drafter": None if drafter is None else fingerprint(Path(drafter.path)),
        # A drafter's shape is part of a state; without one there is no block.
        "block": 0 if drafter is None else drafter.n_draft,
        "max_rows": target.max_rows,
        "kernels": target.kernels,
        "kernels_draft": None if drafter is None else drafter.kernels,
        "devices": [f"{d['type']}: {d['name']}: {d['description'].strip()}" for d in _engine.backend_info()["devices"]],
        "threads": target.n_threads,
        "threads_draft": draft_options.n_threads,
        "gpu_layers": options.n_gpu_layers,
        "gpu_layers_draft": draft_options.n_gpu_layers,
        "flash_attention": options.flash_attention,
        "cache_type_k": options.cache_type_k,
        "cache_type_v": options.cache_type_v,
        "ctx_draft": draft_options.n_ctx,
        "llama_cpp": _engine.llama_version,
        "adaspark": version,
        "state": _core.Scheduler.state_version(),
    }
    files = {"target": Path(target.path).name, "drafter": None if drafter is None else Path(drafter.path).name}
    return Identity(facts, files)
