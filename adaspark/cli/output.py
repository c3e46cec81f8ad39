"""What goes where: the result to stdout, everything else to stderr, and exactly one object where JSON is asked for."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from itertools import zip_longest
from typing import Any

import click

from adaspark.result import Result

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class Output:
    """The streams of one run of the command line."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.color = "NO_COLOR" not in os.environ
        self.partial: dict[str, Any] = {}  # what there is of the result, should an error end the work
        self._emitted = False
        self._handler = logging.StreamHandler(sys.stderr)
        self._handler.setFormatter(_Formatter())
        self._loggers = {name: logging.getLogger(name) for name in ("adaspark", "adaspark.llama")}
        self._levels = {name: logger.level for name, logger in self._loggers.items()}
        self._open_line = False  # whether stdout's last line lacks its end

    def configure(self, *, no_color: bool, verbose: int) -> None:
        """Apply the flags that every command has."""
        self.color = self.color and not no_color
        level = _LEVELS[min(verbose, 2)]
        self._loggers["adaspark"].addHandler(self._handler)
        self._loggers["adaspark"].setLevel(level)
        # llama.cpp's own errors come as exceptions with a remedy; its lines help only who asks for them.
        self._loggers["adaspark.llama"].setLevel(level if verbose else logging.CRITICAL)

    def close(self) -> None:
        """Leave logging as it was."""
        self._loggers["adaspark"].removeHandler(self._handler)
        for name, level in self._levels.items():
            self._loggers[name].setLevel(level)

    def write(self, text: str) -> None:
        """A piece of the result; held back in JSON mode, where it is part of the object."""
        if text and not self.as_json:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open_line = not text.endswith("\n")

    def end_line(self) -> None:
        if self._open_line:
            self.write("\n")

    def emit(self, data: dict[str, Any]) -> None:
        """The one object of JSON mode."""
        if self.as_json and not self._emitted:
            # Made whole first: what cannot be written must leave room for the object that says so. File names may hold
            # bytes that are no UTF-8, which Python keeps as lone surrogates.
            text = json.dumps(data, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace").decode("utf-8")
            self._emitted = True
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line for people, on stderr."""
        self._tell(click.style(text, dim=True) if self.color else text)

    def error(self, kind: str, message: str) -> None:
        self.end_line()
        prefix = click.style("error:", fg="red", bold=True) if self.color else "error:"
        self._tell(f"{prefix} {message}")
        self.emit({**self.partial, "error": {"type": kind, "message": message}})

    def statistics(self, result: Result, *, whole: bool = True) -> None:
        """Lines on how the reply came about, the first one alone unless ``whole``; in JSON mode the object has it."""
        if not self.as_json:
            self.note(describe(result))
            for line in details(result) if whole else ():
                self.note(line)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):  # that nobody reads stderr is no reason to lose the result
            click.echo(text, err=True, color=None if self.color else False)


def describe(result: Result) -> str:
    """The statistics of a reply in one line."""
    times, drafts = result.timings, result.speculation
    parts = [f"{result.completion_tokens} tokens"]
    if times.decode_tok_s is not None:
        parts[0] += f", {times.decode_tok_s:.1f} tok/s"
    prompt = f"prompt {result.prompt_tokens} in {times.prefill_ms:.0f} ms"
    parts.append(prompt + (f" ({result.reused_tokens} reused)" if result.reused_tokens else ""))
    if drafts.active and drafts.rounds:
        told = f"{result.arm}: {drafts.accepted} of {drafts.drafted} drafts accepted, {drafts.rounds} rounds"
        if result.arm.startswith("adaspark"):
            told += f" ({drafts.rounds_plain} plain, {drafts.rounds_text} text, {drafts.rounds_draft} drafted)"
        parts.append(told)
    else:
        parts.append(result.arm + (f" ({drafts.reason})" if drafts.reason else ""))
    parts.append(result.finish_reason)
    return "[" + " | ".join(parts) + "]"


def details(result: Result) -> list[str]:
    """What was drafted and accepted, what the models said of it, where the time went: a line each, no empty ones."""
    times, drafts, learning = result.timings, result.speculation, result.speculation.learning
    lines: list[list[str]] = []
    if drafts.rounds and drafts.tokens_per_round is not None:
        widths = ", ".join(f"{width} {share:.0%}" for width, share in sorted(drafts.width_shares.items()))
        lines.append(
            [f"{drafts.tokens_per_round:.2f} tokens a round", f"{drafts.rows} rows", f"rounds by rows: {widths}"]
        )
    if drafts.drafted:
        sources = [f"{name} {s.accepted} of {s.drafted}" for name, s in drafts.sources.items() if s.drafted]
        depths = zip_longest(drafts.accepted_by_depth, drafts.drafted_by_depth, fillvalue=0)
        lines.append(
            ["accepted: " + ", ".join(sources), "by depth: " + " ".join(f"{hit}/{drafted}" for hit, drafted in depths)]
        )
    if learning is not None and drafts.rounds:
        told = [f"drafts expected {learning.expected_accepted:.1f}, accepted {learning.realised_accepted}"]
        if learning.fitted_log_loss is not None and learning.head_log_loss is not None:
            told.append(f"log loss {learning.fitted_log_loss:.3f} fitted, {learning.head_log_loss:.3f} by the head")
        if learning.price_error is not None:
            told.append(f"price of a verify off by {learning.price_error:.1%}, median of {learning.priced_rounds}")
        lines.append(told)
    if drafts.rounds:
        parts = ("draft", "inject", "plan", "verify", "walk", "commit")
        lines.append(["ms: " + ", ".join(f"{part} {getattr(times, part + '_ms'):.1f}" for part in parts)])
    return ["[" + " | ".join(line) + "]" for line in lines]


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {record.getMessage()}"
