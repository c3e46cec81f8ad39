"""Prompts of a file, as token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaspark.benchmark.conversations import read_conversations

if TYPE_CHECKING:
    from adaspark._engine import Target


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a file: its line (0-based), where it comes from, and its text."""

    line: int
    source: str
    text: str


def read_prompts(path: Path, n: int) -> list[Prompt]:
    """The first turns of ``n`` conversations spread evenly over a JSON lines file."""
    return [Prompt(c.line, c.source, c.turns[0]) for c in read_conversations(path, n)]


def chat_tokens(target: Target, text: str) -> list[int]:
    """The ids of a user's message in the model's own chat template."""
    from adaspark.templates import ChatTemplate

    return ChatTemplate(target.chat_template, target).prompt([{"role": "user", "content": text}])
