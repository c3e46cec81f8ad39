"""One reply being written: an iterator of text that ends with a result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from adaspark.errors import BackendError
from adaspark.result import Result, speculation_of, timings_of

if TYPE_CHECKING:
    from typing_extensions import Self

    from adaspark._engine import Session


class Generation(Iterator[str]):
    """Yields the reply's text piece by piece; each piece is valid UTF-8 and no stop string is ever part of one.

    ``result`` is there after the end. The engine runs one request at a time: starting another ends this one.
    """

    def __init__(self, session: Session, lock: threading.RLock, finish: Callable[[str, Session], Result]) -> None:
        self._session: Session | None = session
        self._lock = lock  # the engine's: held for a step, so that another thread's ``Engine.close`` comes between two
        self._finish = finish
        self._chunks: list[str] = []
        self._drained = False  # whether every piece is out
        self._result: Result | None = None
        self._listeners: list[Callable[[Result], None]] = []

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        """The next piece. Raises BackendError when the engine was closed before the reply ended."""
        while True:
            with self._lock:
                if self._result is not None:
                    raise StopIteration
                session = self._live()
                if self._drained:
                    self._end(session)
                    raise StopIteration
                chunk = session.step()
                # A short reply is finished before its first step, which still delivers text: ask afterwards.
                self._drained = session.finished
                if chunk:
                    self._chunks.append(chunk)
                    return chunk

    @property
    def text(self) -> str:
        """The reply so far."""
        return "".join(self._chunks)

    @property
    def finished(self) -> bool:
        return self._result is not None

    @property
    def result(self) -> Result:
        """The finished reply. RuntimeError before the end."""
        if self._result is None:
            msg = "the reply has not ended: read it to the end first, or call read()"
            raise RuntimeError(msg)
        return self._result

    def read(self) -> Result:
        """Read the rest of the reply."""
        for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """End the reply before its next round (any thread). Its finish reason becomes "cancel"."""
        session = self._session  # another thread may let go of it
        if self._result is None and session is not None:
            session.cancel()

    def close(self) -> None:
        """Cancel what is left of the reply; the result then holds what was written."""
        if self._result is None and self._session is not None:
            self.cancel()
            self.read()

    def on_end(self, listener: Callable[[Result], None]) -> None:
        """Call ``listener`` with the result at the end."""
        self._listeners.append(listener)

    def detach(self) -> None:
        """End the reply for an engine that is about to close: what it taught is kept, reading on raises BackendError."""
        session, self._session = self._session, None
        if session is not None and self._result is None:
            session.cancel()
            while not session.finished:
                session.step()
            self._finish(self.text, session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _live(self) -> Session:
        if self._session is None:
            msg = "the engine was closed before the reply ended"
            raise BackendError(msg)
        return self._session

    def _end(self, session: Session) -> None:
        self._result = self._finish(self.text, session)
        self._session = None
        for listener in self._listeners:
            listener(self._result)


def build_result(
    text: str,
    session: Session,
    *,
    model: str,
    drafter: str | None,
    kernels: str,
    arm: str,
    seed: int | None,
    load_ms: float,
    active: bool,
    reason: str | None,
) -> Result:
    """The result of a session that has finished."""
    statistics = session.statistics
    return Result(
        text=text,
        token_ids=tuple(session.token_ids),
        finish_reason=session.finish_reason or "cancel",
        prompt_tokens=statistics["prompt_tokens"],
        reused_tokens=statistics["reused_tokens"],
        completion_tokens=statistics["completion_tokens"],
        model=model,
        drafter=drafter,
        kernels=kernels,
        arm=arm,
        seed=seed,
        timings=timings_of(statistics, load_ms),
        speculation=speculation_of(statistics, active, reason),
    )
