"""Conversations of a JSON lines file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from adaspark.benchmark.stats import evenly


@dataclass(frozen=True, slots=True)
class Conversation:
    """One line of a file: its number (from 0), where it comes from, and what the user says, turn by turn."""

    line: int
    source: str
    turns: tuple[str, ...]


def read_conversations(path: Path, n: int | None = None) -> list[Conversation]:
    """``n`` conversations spread evenly over a file, so that every source in it takes part; None for all.

    A line is ``{"source": str, "turns": [str, ...]}``. Raises ValueError naming the line that is not.
    """
    lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    out = []
    for i in evenly(len(lines), len(lines) if n is None else n):
        try:
            data = json.loads(lines[i])
            turns = tuple(str(turn) for turn in data["turns"])
            out.append(Conversation(i, str(data.get("source", "")), turns))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            msg = f'{path}, line {i + 1}: give {{"source": "...", "turns": ["...", ...]}} ({type(error).__name__} {error})'
            raise ValueError(msg) from error
        if not turns:
            msg = f"{path}, line {i + 1}: a conversation has at least one turn"
            raise ValueError(msg)
    return out
