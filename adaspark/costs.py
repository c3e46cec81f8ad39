"""What a round costs: a table of microseconds by context and rows, to decode a recorded text under another plan."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adaspark.config import MAX_ROWS
from adaspark.errors import TraceError

if TYPE_CHECKING:
    from adaspark import _core

GRID: Final = 64
"""Tokens between two contexts of a table."""

QUANTILE: Final = 0.15
"""The share of samples below a price, as in the learned law (paper, Proposition 3)."""

_FEW: Final = 3  # samples of a width that are too few to price it


@dataclass(frozen=True, slots=True)
class CostTable:
    """Microseconds by context (row i: i * GRID tokens) and rows (column n: a verify of n rows)."""

    verify: NDArray[np.float64]  # (contexts, MAX_ROWS + 1); column 0 is not used
    draft: NDArray[np.float64]  # (contexts,): the drafter's forward and the plan
    commit: NDArray[np.float64]  # (2,): what follows the verify, without and with the drafter
    source: str  # where it comes from, for people


def learned_table(scheduler: _core.Scheduler, longest: int) -> CostTable | None:
    """The cost law a scheduler has learned, up to a context of ``longest`` tokens; None when it has priced only one width.

    A width between two priced ones is interpolated, one beyond them extrapolated by the last slope.
    """
    contexts = range(0, longest + GRID, GRID)
    prices = [scheduler.prices_at(context) for context in contexts]
    known = [i for i, us in enumerate(prices[0]["us"]) if us is not None]
    if len(known) < 2:
        return None
    rows = [int(prices[0]["rows"][i]) for i in known]
    verify = np.stack([widths_between(rows, [at["us"][i] for i in known]) for at in prices])
    draft = np.array([0.0 if at["draft_us"] is None else at["draft_us"] for at in prices])
    return CostTable(verify, draft, np.asarray(prices[0]["commit_us"]), "learned")


def sampled_table(
    rows: NDArray[np.int32], verify: NDArray[np.float64], draft: NDArray[np.float64], commit: NDArray[np.float64],
    drafted: NDArray[np.bool_], longest: int,
) -> CostTable | None:  # fmt: skip
    """A table from the rounds' own times (n,), the same at every context; None when they ran at one width only."""
    counts = np.bincount(rows, minlength=MAX_ROWS + 1)
    known = [int(n) for n in np.flatnonzero(counts > _FEW)]
    if len(known) < 2:
        return None
    by_rows = widths_between(known, [float(np.quantile(verify[rows == n], QUANTILE)) for n in known])
    contexts = longest // GRID + 2
    price = float(np.quantile(draft[drafted], QUANTILE)) if drafted.any() else 0.0
    commits = [float(commit[which].mean()) if which.any() else 0.0 for which in (~drafted, drafted)]
    return CostTable(np.tile(by_rows, (contexts, 1)), np.full(contexts, price), np.array(commits), "sampled")


def read_costs(path: Path, longest: int) -> CostTable:
    """A table from a JSON file (docs/traces.md). TraceError when it is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        contexts = np.arange(0, longest + GRID, GRID)
        lines = sorted(data["verify"], key=lambda line: int(line["rows"]))
        rows = [int(line["rows"]) for line in lines]
        at = np.array([_line(line, contexts) for line in lines])
        if (
            len(rows) < 2
            or rows[0] < 1
            or rows[-1] > MAX_ROWS
            or len(set(rows)) < len(rows)
            or not ((at > 0) & (at < np.inf)).all()
        ):
            msg = f"give two different widths of 1 to {MAX_ROWS} rows at least, with times above 0"
            raise ValueError(msg)
        draft = _line(data["draft"], contexts)
        commit = np.array(data.get("commit_us", [0.0, 0.0]), dtype=np.float64).reshape(2)
        if not all(((us >= 0) & (us < np.inf)).all() for us in (draft, commit)):
            msg = "times of a draft and of what follows a verify are 0 or more"
            raise ValueError(msg)
        verify = np.stack([widths_between(rows, at[:, i].tolist()) for i in range(len(contexts))])
        return CostTable(verify, draft, commit, path.name)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        msg = f"{path} is no table of costs: {type(error).__name__} {error}"
        raise TraceError(msg) from error


def _line(data: dict[str, Any], contexts: NDArray[np.int64]) -> NDArray[np.float64]:
    """``us`` at context 0 and ``us_per_token`` of context beyond it."""
    return float(data["us"]) + float(data.get("us_per_token", 0.0)) * contexts.astype(np.float64)


def widths_between(rows: Sequence[int], us: Sequence[float]) -> NDArray[np.float64]:
    """Microseconds of 0 to MAX_ROWS rows from those of some, ascending: a line between two, the last line beyond them."""
    known, price = np.asarray(rows, dtype=np.float64), np.asarray(us, dtype=np.float64)
    wanted = np.arange(MAX_ROWS + 1, dtype=np.float64)
    out = np.interp(wanted, known, price)
    slope = max(0.0, (price[-1] - price[-2]) / (known[-1] - known[-2]))
    beyond = wanted > known[-1]
    out[beyond] = price[-1] + slope * (wanted[beyond] - known[-1])
    return out
