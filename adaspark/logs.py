"""Logging: everything goes to ``logging.getLogger("adaspark")``; llama.cpp's own lines to its child ``llama``."""

from __future__ import annotations

import logging

from adaspark._native import _engine

log = logging.getLogger("adaspark")
llama_log = log.getChild("llama")


def _forward(level: int, text: str) -> None:
    # Called from inside llama.cpp: an exception here would cross C code, so a broken handler must not raise.
    try:
        if llama_log.isEnabledFor(level) and (line := text.rstrip()):
            llama_log.log(level, "%s", line)
    except Exception:  # noqa: BLE001
        return


def capture_llama_log() -> None:
    """Send llama.cpp's and ggml's log lines to the logger ``adaspark.llama`` instead of stderr."""
    _engine.set_log_callback(_forward)
