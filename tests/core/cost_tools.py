"""Rounds for a `_core.WidthTable`, and the prices by rows that it offers."""

from __future__ import annotations

from adaspark import _core

STEEP = {1: (4.8e3, 9e3), 2: (7e3, 14e3), 4: (12.4e3, 21.5e3), 8: (20.9e3, 34.5e3)}  # us at 300 and at 2,000 tokens


def steady(table: _core.WidthTable, rounds: int, rows: int, verify: float, draft: float) -> None:
    for _ in range(rounds):
        table.record(rows, 1000, verify, draft)


def prices_at(table: _core.WidthTable, context: int) -> dict[int, float]:
    return dict(zip(*(x.tolist() for x in table.offer(context)[:2]), strict=True))


def prices(table: _core.WidthTable) -> dict[int, float]:
    return prices_at(table, 1000)
