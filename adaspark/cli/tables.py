"""Tables on stdout."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

_WIDTH = 200  # columns where the output is not a terminal: rich would assume 80 and cut


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None, *, color: bool = True
) -> None:
    """Print a table; every column but the first is set right."""
    out = Table()
    for i, column in enumerate(columns):
        out.add_column(column, justify="left" if i == 0 else "right", no_wrap=i == 0)
    for row in rows:
        out.add_row(*row)
    console = Console(no_color=None if color else True)
    if not console.is_terminal:
        console = Console(width=_WIDTH, no_color=None if color else True)
    # A table's own title and caption would be folded to its width.
    console.print(title, style="bold", markup=False, highlight=False)
    console.print(out)
    if caption is not None:
        console.print(caption, markup=False, highlight=False, style="dim")
