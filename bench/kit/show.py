"""Terminal output: tables to stdout, progress to stderr, raw results to a file as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from typing_extensions import Self

_OUT = Console()
_ERR = Console(stderr=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> None:
    """Print a table; every column but the first is set right."""
    out = Table()
    for i, column in enumerate(columns):
        out.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        out.add_row(*row)
    # Where the output is not a terminal rich assumes 80 columns and cuts; a table in a file may be as wide as it is.
    console = _OUT if _OUT.is_terminal else Console(width=200)
    # A table's own title and caption would be folded to its width.
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(out)
    if caption is not None:
        console.print(caption, markup=False, highlight=False, style="dim")


def note(text: str) -> None:
    _ERR.print(text, markup=False, highlight=False)


class Bar:
    """A progress bar on stderr."""

    def __init__(self, label: str, total: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=_ERR
        )
        self._task = self._progress.add_task(label, total=total)

    def __enter__(self) -> Self:
        # Off a terminal, rich would print the bar once at the end, which is noise in a log.
        if _ERR.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if _ERR.is_terminal:
            self._progress.stop()

    def step(self, label: str | None = None) -> None:
        self._progress.update(self._task, advance=1, description=label)


class Lines:
    """A JSON lines file, written as the results come; no path, no file."""

    def __init__(self, path: Path | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")

    def write(self, kind: str, **fields: Any) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)
