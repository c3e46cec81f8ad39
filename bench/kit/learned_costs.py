"""What ``learned_table.py`` makes of its measurements: learned prices against times, and where each has its steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adaspark.costs import QUANTILE
from kit.page import Table, ran_on, read_results

LEAST_STEP = 0.08  # of T(n), above the slope around it
AROUND = 4  # rows on either side that make the slope
ERROR = "Error of the chosen width's price in the second half of the requests"


@dataclass(slots=True)
class Measured:
    """One context: milliseconds by rows, measured directly, and the learned price of the widths that have one."""

    context: int
    median: dict[int, float] = field(default_factory=dict)
    low: dict[int, float] = field(default_factory=dict)  # the quantile a law is fitted to
    high: dict[int, float] = field(default_factory=dict)  # the upper quartile
    learned: dict[int, float] = field(default_factory=dict)
    samples: dict[int, int] = field(default_factory=dict)  # of a learned width

    def direct(self, times: Mapping[int, Sequence[float]]) -> None:
        """Take over what was measured."""
        for n, values in sorted(times.items()):
            self.median[n], self.low[n], self.high[n] = map(float, np.quantile(values, [0.5, QUANTILE, 0.75]))


@dataclass(frozen=True, slots=True)
class Step:
    """T(rows + 1) is clearly above the slope around it."""

    rows: int
    ratio: float  # T(rows + 1) / T(rows)


@dataclass(frozen=True, slots=True)
class Found:
    """A step of T(n) and the learned table's own that is nearest; None: no width beyond the step was measured."""

    step: Step
    rows: int | None
    ratio: float | None

    @property
    def within_a_row(self) -> bool:
        return (
            self.rows is not None
            and self.ratio is not None
            and abs(self.rows - self.step.rows) <= 1
            and self.ratio > 1.0 + LEAST_STEP
        )


def steps(times: Mapping[int, float], least: float = LEAST_STEP) -> list[Step]:
    """The steps of a table that holds consecutive widths; other widths say nothing about a row."""
    rise = {n: times[n + 1] - times[n] for n in times if n + 1 in times}
    out = []
    for n in sorted(rise):
        around = [rise[m] for m in range(n - AROUND, n + AROUND + 1) if m != n and m in rise]
        if around and rise[n] - float(np.median(around)) > least * times[n]:
            out.append(Step(n, times[n + 1] / times[n]))
    return out


def find(step: Step, learned: Mapping[int, float]) -> Found:
    """The priced width nearest to a step. A width is priced at the next one that has a price, so the table's steps lie
    just above these."""
    tops = sorted(learned)
    if not tops or tops[-1] <= step.rows:
        return Found(step, None, None)
    i = min(range(len(tops) - 1), key=lambda i: abs(tops[i] - step.rows), default=None)
    if i is None:
        return Found(step, None, None)
    return Found(step, tops[i], learned[tops[i + 1]] / learned[tops[i]])


def tables(measured: Iterable[Measured], alone: Mapping[int, float], mixed: Mapping[int, float]) -> list[Table]:
    out = []
    for at in measured:
        rows = []
        for n in sorted(set(at.learned) & set(at.median)):
            price, low, median = at.learned[n], at.low[n], at.median[n]
            errors = [f"{price / low - 1:+.1%}", f"{price / median - 1:+.1%}"]
            rows.append(
                [str(n), f"{price:.3f}", f"{low:.3f}", errors[0], f"{median:.3f}", errors[1], str(at.samples[n])]
            )
        out.append(
            Table(
                f"context {at.context}: learned and measured, ms",
                ["rows", "learned", f"{QUANTILE} quantile", "error", "median", "error", "rounds"], rows,
                "rounds: how often the width ran while it was learned",
            )
        )  # fmt: skip
        found = [find(step, at.learned) for step in steps(at.median)]
        out.append(
            Table(
                f"context {at.context}: steps of T(n)",
                ["after rows", "T(n+1)/T(n)", "table's own after", "ratio", "within a row"],
                [[str(f.step.rows), f"{f.step.ratio:.2f}", *_told(f)] for f in found] or [["none", "-", "-", "-", "-"]],
                f"a step: a row that costs {LEAST_STEP:.0%} of T(n) more than the rows around it",
            )
        )
    turns = [[str(n), f"{ms:.3f}", f"{mixed[n]:.3f}", f"{mixed[n] / ms:.3f}"] for n, ms in alone.items()]
    return [*out, Table("widths in turns, ms", ["rows", "alone", "in turns", "ratio"], turns, "medians")]


def _told(found: Found) -> list[str]:
    if found.rows is None or found.ratio is None:
        return ["-", "-", "no width beyond it was worth measuring"]
    return [str(found.rows), f"{found.ratio:.2f}", "yes" if found.within_a_row else "no"]


def page(path: Path) -> list[str]:
    """The tables of a stored run as Markdown; nothing where there is no such file."""
    run, records = read_results(path)
    if not run:
        return []
    measured: dict[int, Measured] = {}
    alone, mixed = {}, {}
    for r in records:
        if r["kind"] == "width":
            at = measured.setdefault(r["context"], Measured(r["context"]))
            if r["median_ms"] is not None:
                at.median[r["rows"]], at.low[r["rows"]] = r["median_ms"], r["low_ms"]
            if r["learned_ms"] is not None:
                at.learned[r["rows"]], at.samples[r["rows"]] = r["learned_ms"], r["samples"]
        elif r["kind"] == "alternating":
            alone[r["rows"]], mixed[r["rows"]] = r["alone_ms"], r["alternating_ms"]
    what = f"{ran_on(run)}; {run['requests']} requests. {ERROR}: {run['price_error']}."
    return [what, *(part for t in tables(measured.values(), alone, mixed) for part in t.markdown())]
