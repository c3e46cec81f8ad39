"""Whether the machine has a GPU that this build cannot use."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

from adaspark._native import _engine

log = logging.getLogger("adaspark")

_told: set[str] = set()


def unused_gpu() -> str | None:
    """Names the GPU of a machine whose build has no GPU backend, and the remedy; None where all is well."""
    if _engine.backend_info()["gpu_offload"]:
        return None
    if Path("/dev/nvidia0").exists():
        return "this machine has an NVIDIA GPU and this build has no CUDA: pip install . -C cmake.define.GGML_CUDA=ON"
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "this build has no Metal backend: pip install . -C cmake.define.GGML_METAL=ON"
    return None


def warn_about_gpu(n_gpu_layers: int | None) -> None:
    """One warning a process when layers are wanted on a GPU and the build has no backend for one."""
    if n_gpu_layers == 0:
        return
    message = unused_gpu()
    if message is None and n_gpu_layers is not None and not _engine.backend_info()["gpu_offload"]:
        message = "this build has no GPU backend: every layer stays on the CPU"
    if message is not None and message not in _told:
        _told.add(message)
        log.warning("%s", message)
