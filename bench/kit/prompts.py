"""Prompts of a file, as token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit.stats import evenly

if TYPE_CHECKING:
    from adaspark._engine import Target


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a file: its line (0-based), where it comes from, and its text."""

    line: int
    source: str
    text: str


def read_prompts(path: Path, n: int) -> list[Prompt]:
    """``n`` prompts spread evenly over a JSON lines file, so that every source in it takes part.

    A line is ``{"source": str, "turns": [str, ...]}``; the first turn is the prompt.
    """
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    return [Prompt(i, str(lines[i].get("source", "")), str(lines[i]["turns"][0])) for i in evenly(len(lines), n)]


def chat_tokens(target: Target, text: str) -> list[int]:
    """The ids of a user's message in the model's own chat template."""
    from adaspark.templates import ChatTemplate  # after load_engine(), which may have put in another build

    return ChatTemplate(target.chat_template, target).prompt([{"role": "user", "content": text}])
