"""Progress and notes to stderr, raw results to a file as JSON lines. Tables: ``adaspark.cli.tables``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from typing_extensions import Self

_ERR = Console(stderr=True)


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
