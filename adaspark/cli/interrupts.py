"""Ctrl-C: a wish that the work looks at between its steps, so that no step is cut in two."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from adaspark.progress import TerminalProgress, Unit

if TYPE_CHECKING:
    from typing_extensions import Self


class Interrupts:
    """While entered, the first Ctrl-C only sets ``hit``; the second raises KeyboardInterrupt as usual."""

    def __init__(self) -> None:
        self.hit = False
        self._previous: signal._HANDLER = None
        self._installed = False

    def __enter__(self) -> Self:
        self.hit = False
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
            self._installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            signal.default_int_handler(number, frame)
        self.hit = True


class InterruptibleProgress(TerminalProgress):
    """Bars that ask the step to stop once Ctrl-C was pressed."""

    def __init__(self, interrupts: Interrupts, *, color: bool) -> None:
        super().__init__(color=color)
        self._interrupts = interrupts

    def show(self, label: str, done: float, total: float | None, unit: Unit) -> bool:
        super().show(label, done, total, unit)
        return not self._interrupts.hit
