"""Progress of long steps: a protocol for the library, bars on a terminal's stderr for the command line."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Unit = Literal["bytes", "tokens", "share", "count"]

# A bar for a step that is over in a blink would only flicker.
_DELAY_S = 0.4


class Progress(Protocol):
    """Receives the progress of downloads, loads and prefills."""

    def show(self, label: str, done: float, total: float | None, unit: Unit) -> bool:
        """Step ``label`` has done ``done`` of ``total`` (None = unknown). False asks for a stop, where one can stop."""

    def clear(self) -> None:
        """The steps are over; output may follow."""


class NoProgress:
    """Shows nothing and never stops."""

    def show(self, label: str, done: float, total: float | None, unit: Unit) -> bool:  # noqa: ARG002
        return True

    def clear(self) -> None:
        return None


class TerminalProgress:
    """Bars on stderr. They vanish when the step is over, and never appear where stderr is not a terminal."""

    def __init__(self, *, color: bool = True) -> None:
        self._color = color
        self._enabled = sys.stderr.isatty()
        self._bars: Bars | None = None
        self._label = ""
        self._since = 0.0

    def show(self, label: str, done: float, total: float | None, unit: Unit) -> bool:
        if not self._enabled:
            return True
        if label != self._label:
            self.clear()
            self._label, self._since = label, time.monotonic()
        if self._bars is None and (total is None or time.monotonic() - self._since > _DELAY_S):
            self._bars = self._start(unit)
            self._bars.add_task(label, total=total)
        if self._bars is not None:
            self._bars.update(self._bars.task_ids[0], completed=done, total=total)
        return True

    def clear(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._label = ""

    def _start(self, unit: Unit) -> Bars:
        from rich import progress
        from rich.console import Console

        last = {
            "bytes": progress.DownloadColumn(),
            "tokens": progress.TextColumn("{task.completed:.0f} tokens"),
            "share": progress.TextColumn(""),
            "count": progress.MofNCompleteColumn(),
        }[unit]
        bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            last,
            progress.TimeRemainingColumn(),
            console=Console(stderr=True, no_color=True if not self._color else None),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bars.start()
        return bars
