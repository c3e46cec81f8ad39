"""Bars appear on a terminal's stderr and nowhere else; a machine's unused GPU is told once."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from adaspark import _engine, devices
from adaspark.progress import NoProgress, TerminalProgress


class Stream(io.StringIO):
    """A stderr that is a terminal, or not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("terminal")
def test_bars_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for is_terminal in (True, False):
        stream = Stream(terminal=is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        progress = TerminalProgress()
        assert progress.show("Requantising", 0, None, "share")
        assert progress.show("Requantising", 0, None, "share")
        progress.clear()
        progress.clear()
        assert ("Requantising" in stream.getvalue()) == is_terminal
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("terminal")
def test_a_quick_step_does_not_flicker(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(terminal=True)
    monkeypatch.setattr(sys, "stderr", stream)
    progress = TerminalProgress()
    for done in range(10):
        progress.show("Loading", done, 10, "share")
    progress.clear()
    assert stream.getvalue() == ""


def test_no_progress_never_stops() -> None:
    progress = NoProgress()
    assert progress.show("x", 1, 2, "bytes")
    progress.clear()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def build(*, nvidia: bool, offload: bool) -> None:
        info = _engine.backend_info()
        info["gpu_offload"] = offload
        monkeypatch.setattr(_engine, "backend_info", lambda: info)
        monkeypatch.setattr(Path, "exists", lambda path: nvidia and path == Path("/dev/nvidia0"))
        monkeypatch.setattr(devices.platform, "system", lambda: "Linux")
        monkeypatch.setattr(devices, "_told", set())

    return build


@pytest.mark.parametrize(
    ("nvidia", "offload", "layers", "words"),
    [
        (True, False, None, "GGML_CUDA=ON"),
        (True, False, 0, None),
        (True, True, 99, None),
        (False, False, None, None),
        (False, False, 99, "stays on the CPU"),
        (False, False, -1, "stays on the CPU"),
    ],
)
def test_a_gpu_that_the_build_cannot_use(
    machine: Any, caplog: pytest.LogCaptureFixture, nvidia: bool, offload: bool, layers: int | None, words: str | None
) -> None:
    machine(nvidia=nvidia, offload=offload)
    with caplog.at_level(logging.WARNING, "adaspark"):
        devices.warn_about_gpu(layers)
        devices.warn_about_gpu(layers)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (words is not None)
    assert words is None or words in messages[0]
