"""Tables for the terminal and for a page of results, and the raw results they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaspark.cli.tables import table
from kit.show import read_lines

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """``note`` says what the columns are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str

    def show(self) -> None:
        table(self.title, self.columns, self.rows, self.note)

    def markdown(self) -> list[str]:
        """Paragraphs."""
        title = self.title[:1].upper() + self.title[1:]
        return [f"### {title}", markdown_rows(self.columns, self.rows), self.note[:1].upper() + self.note[1:] + "."]


def markdown_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read_results(path: Path) -> tuple[Record, list[Record]]:
    """The first line of a results file, which says what ran, and the others; nothing where there is no file."""
    records = list(read_lines(path)) if path.is_file() else []
    return (records[0], records[1:]) if records else ({}, [])


def ran_on(run: Record) -> str:
    """What a results file was measured with, for people."""
    kernels = f", kernels {run['kernels']}" if "kernels" in run else ""
    return f"{run['target']}, {run['threads']} threads{kernels}, {run['n_predict']} tokens a reply at most"
