"""A conversation with memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adaspark.config import GenerateOptions
from adaspark.templates import Message

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from adaspark.config import RequestParams
    from adaspark.engine import Engine
    from adaspark.generation import Generation
    from adaspark.result import Result


class Chat:
    """Messages so far and the engine that continues them. A cancelled reply is remembered as far as it came."""

    def __init__(self, engine: Engine, system: str | None = None, **params: Unpack[RequestParams]) -> None:
        GenerateOptions(**params)  # wrong options are told now, not at the first message
        self._engine = engine
        self._params = params
        self._system: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[Message] = list(self._system)
        self._reply: Generation | None = None  # the last one

    def send(self, text: str) -> Generation:
        """Say ``text`` and start the reply; one that has not ended is ended and remembered first.

        Raises as ``Engine.generate``; the message is then not remembered.
        """
        self._end_reply()
        self.messages.append({"role": "user", "content": text})
        try:
            self._reply = self._engine.generate(self.messages, **self._params)
        except BaseException:
            self.messages.pop()
            raise
        self._reply.on_end(self._remember)
        return self._reply

    def clear(self) -> None:
        """Forget everything but the system message."""
        self._end_reply()
        self.messages = list(self._system)

    def undo(self) -> str | None:
        """Forget the last exchange; the text that began it, None where there is none."""
        self._end_reply()
        for index in range(len(self.messages) - 1, -1, -1):
            if self.messages[index]["role"] == "user":
                text = self.messages[index]["content"]
                del self.messages[index:]
                return text
        return None

    def _end_reply(self) -> None:
        if self._reply is not None:
            self._reply.close()

    def _remember(self, result: Result) -> None:
        self.messages.append({"role": "assistant", "content": result.text})
