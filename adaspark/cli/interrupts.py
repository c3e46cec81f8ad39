"""Ctrl-C and SIGTERM: wishes that the work looks at between its steps, so that no step is cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from adaspark.progress import TerminalProgress, Unit

if TYPE_CHECKING:
    from typing_extensions import Self

INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM


class Terminated(BaseException):
    """SIGTERM, as KeyboardInterrupt is Ctrl-C."""


def stop(number: int, _frame: FrameType | None = None) -> None:
    """Handle a signal by its exception."""
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


@contextlib.contextmanager
def handling(handler: Callable[[int, FrameType | None], Any]) -> Iterator[None]:
    """Handle both signals by ``handler``, but for those that the caller has set to be ignored."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for handled, before in previous.items():
            signal.signal(handled, before)


class Interrupts:
    """While entered, the first signal is only noted; the second raises as usual."""

    def __init__(self) -> None:
        self.number = 0  # of the signal; 0: none came
        self._handling: contextlib.AbstractContextManager[None] | None = None

    @property
    def hit(self) -> bool:
        return self.number != 0

    @property
    def terminated(self) -> bool:
        return self.number == signal.SIGTERM

    @property
    def code(self) -> int:
        """The exit code of a program that a signal ended, else 0."""
        return 128 + self.number if self.hit else 0

    def stop(self) -> None:
        """Raise what the signal stands for."""
        stop(self.number)

    def __enter__(self) -> Self:
        self.number = 0
        self._handling = handling(self._on_signal)
        self._handling.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handling is not None:
            self._handling.__exit__(None, None, None)
        self._handling = None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            stop(number, frame)
        self.number = number


class InterruptibleProgress(TerminalProgress):
    """Bars that ask the step to stop once a signal came."""

    def __init__(self, interrupts: Interrupts, *, color: bool) -> None:
        super().__init__(color=color)
        self._interrupts = interrupts

    def show(self, label: str, done: float, total: float | None, unit: Unit) -> bool:
        super().show(label, done, total, unit)
        return not self._interrupts.hit
