"""``adaspark-run chat``: a conversation, typed or piped in line by line."""

from __future__ import annotations

import sys
from typing import Any

import click

from adaspark.chat import Chat
from adaspark.cli.flags import CHAT, options
from adaspark.cli.generate import stream
from adaspark.cli.interrupts import Interrupts
from adaspark.cli.output import Output
from adaspark.cli.settings import open_engine, request_options, system_of, usage_errors
from adaspark.errors import ContextFullError, OptionError

_HELP = "/exit ends, /clear forgets the conversation, /regen writes the last reply anew; Ctrl-C stops a reply"


@click.command(CHAT)
@options(CHAT)
@click.pass_obj
def chat(output: Output, /, **values: Any) -> int:
    """Talk with the model. Lines come from the terminal or from stdin; replies go to stdout.

    In the conversation, /exit ends, /clear forgets it, /regen writes the last reply anew.
    """
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    params = request_options(values)
    system = system_of(values)
    if values["prompt"] == "":
        msg = "the prompt (-p) is empty: give some text, or leave it out"
        raise click.UsageError(msg)
    interrupts = Interrupts()
    with open_engine(values, output, interrupts) as engine:
        conversation = Conversation(engine.chat(system, **params), output, interrupts, verbose=values["verbose"] > 0)
        try:
            code = conversation.run(values["prompt"], single=values["single_turn"])
        finally:
            output.partial = {"turns": conversation.turns, "messages": conversation.chat.messages}
        output.emit(output.partial)
    return code


class Conversation:
    """The loop of turns."""

    def __init__(self, chat: Chat, output: Output, interrupts: Interrupts, *, verbose: bool) -> None:
        self.chat = chat
        self.turns: list[dict[str, Any]] = []
        self._output = output
        self._interrupts = interrupts
        self._verbose = verbose
        self._interactive = sys.stdin.isatty()

    def run(self, first: str | None, *, single: bool) -> int:
        """Turns until the input or the user ends; the exit code."""
        if self._interactive and first is None:
            self._output.note(_HELP)
        text = first if first is not None else self._read()
        while text is not None:
            if text == "/exit":
                break
            if self._command(text):
                self._turn(text)
            if self._interrupts.terminated or (self._interrupts.hit and not self._interactive):
                return self._interrupts.code
            if single and self.turns:
                break
            text = self._read()
        return 0

    def _command(self, text: str) -> bool:
        """Obey a command; whether the text is a message after all."""
        if text == "/clear":
            self.chat.clear()
            return False
        if text == "/regen":
            last = self.chat.undo()
            if last is not None:
                self._turn(last)
            return False
        return bool(text.strip())

    def _turn(self, text: str) -> None:
        """One reply."""
        with self._interrupts, usage_errors():
            try:
                generation = self.chat.send(text)
            except (ContextFullError, OptionError) as error:
                if not self._interactive:
                    raise
                self._output.note(f"{error}" + "; /clear starts afresh" * isinstance(error, ContextFullError))
                return
            stream(generation, self._output, self._interrupts)
        self.turns.append(generation.result.to_dict())
        self._output.statistics(generation.result, whole=self._verbose)

    def _read(self) -> str | None:
        """The next line, None at the end of the input."""
        try:
            if self._interactive and sys.stdout.isatty():
                return input("> ")
            if self._interactive:
                click.echo("> ", nl=False, err=True)
            line = sys.stdin.readline()
        except EOFError:
            return None
        return line.removesuffix("\n") if line else None
