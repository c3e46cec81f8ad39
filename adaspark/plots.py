"""Plots of traces and their replays: PNG files, with matplotlib (the extra ``bench``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adaspark.errors import AdaSparkError
from adaspark.replay import KINDS, LAST, ArmReplay, Recorded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from adaspark import _core

BINS: Final = 10  # equal-count bins of the calibration plot (paper, Figure 10)
_COLORS: Final = {"plain": "tab:gray", "text": "tab:orange", "draft": "tab:blue", "fixed": "tab:green"}


def new_figure(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    """An empty figure. AdaSparkError where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        msg = "plots need matplotlib: pip install 'adaspark[bench]'"
        raise AdaSparkError(msg) from error
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path


def learned(requests: Sequence[Recorded]) -> list[Recorded]:
    """Those of the arm adaspark that ran at least one round."""
    return [recorded for recorded in requests if len(recorded.record) and recorded.record["kind"][0] < 3]


def plot_trace(folder: Path, requests: Sequence[Recorded], schedulers: Sequence[_core.Scheduler]) -> list[Path]:
    """Widths over time, cost law against samples, calibration, log loss; what the trace has nothing for is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [_widths(folder, requests), _costs(folder, requests, schedulers)]
    if any((recorded.record["labelled"] > 0).any() for recorded in learned(requests)):
        written.append(_log_loss(folder, requests))
    if len(calibration(requests)[0]) > 0:
        written.append(_calibration(folder, requests))
    return written


def _widths(folder: Path, requests: Sequence[Recorded]) -> Path:
    figure, axes = new_figure("Rows of each round", "round", "rows")
    record = np.concatenate([recorded.record for recorded in requests])
    rounds = np.arange(len(record))
    for kind, name in enumerate(KINDS):
        which = record["kind"] == kind
        if which.any():
            axes.plot(rounds[which], record["rows"][which], ".", ms=4, color=_COLORS[name], label=name)
    for end in np.cumsum([len(recorded.record) for recorded in requests])[:-1]:
        axes.axvline(float(end) - 0.5, color="0.85", lw=0.8, zorder=0)
    axes.set_yscale("log", base=2)
    axes.set_yticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes.legend(title="round")
    return save(figure, folder / "widths.png")


def _costs(folder: Path, requests: Sequence[Recorded], schedulers: Sequence[_core.Scheduler]) -> Path:
    figure, axes = new_figure("Verify times and learned laws", "context, tokens", "milliseconds")
    record = np.concatenate([recorded.record[1:] for recorded in requests])  # the first round of a request runs cold
    law = max(schedulers, key=lambda s: sum(width["samples"] for width in s.widths), default=None)
    shown = np.unique(record["rows"])
    shown = shown[np.argsort([-int((record["rows"] == rows).sum()) for rows in shown])][:8]
    contexts = np.linspace(0, max((recorded.longest for recorded in requests), default=1), 60).astype(int)
    for number, rows in enumerate(np.sort(shown)):
        which = record["rows"] == rows
        color = f"C{number}"
        axes.plot(
            record["context"][which], record["verify_us"][which] / 1e3, ".", ms=3, alpha=0.5, color=color,
            label=f"{rows} rows",
        )  # fmt: skip
        if law is None:
            continue
        prices = [law.prices_at(int(context)) for context in contexts]
        if rows in prices[0]["rows"]:
            at = prices[0]["rows"].index(rows)
            line = [np.nan if p["us"][at] is None else p["us"][at] / 1e3 for p in prices]
            axes.plot(contexts, line, "-", color=color)
    if len(record):
        axes.set_ylim(0, float(np.quantile(record["verify_us"], 0.99)) / 1e3 * 1.1)
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return save(figure, folder / "costs.png")


def calibration(requests: Sequence[Recorded]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """S and accepted drafts of every learned round with drafts that the reply's end did not cut short."""
    parts = [recorded.record for recorded in learned(requests)]
    if not parts:
        return np.empty(0), np.empty(0)
    record = np.concatenate(parts)
    record = record[(record["rows"] > 1) & ((record["flags"] & LAST) == 0)]
    return record["sum_q"].astype(np.float64), record["path"].astype(np.float64) - 1.0


def _calibration(folder: Path, requests: Sequence[Recorded]) -> Path:
    expected, accepted = calibration(requests)
    ratio = accepted.sum() / max(expected.sum(), 1e-9)
    figure, axes = new_figure(
        f"Accepted over expected drafts: {ratio:.3f} ({len(expected)} rounds)", "expected drafts S", "accepted drafts"
    )
    bins = [part for part in np.array_split(np.argsort(expected), BINS) if len(part)]
    x, y = ([float(values[part].mean()) for part in bins] for values in (expected, accepted))
    top = max([*x, *y]) * 1.05 or 1.0
    axes.plot([0, top], [0, top], "--", color="0.6")
    axes.plot(x, y, "o-")
    return save(figure, folder / "calibration.png")


def _log_loss(folder: Path, requests: Sequence[Recorded]) -> Path:
    figure, axes = new_figure("Log loss of a request, nats a labelled parent", "request", "log loss")
    losses = []
    for number, recorded in enumerate(learned(requests)):
        record = recorded.record
        labelled = int(record["labelled"].sum())
        if labelled:
            losses.append((number, record["fitted_loss"].sum() / labelled, record["head_loss"].sum() / labelled))
    number, fitted, head = np.array(losses, dtype=np.float64).T
    better = float((fitted < head).mean())
    axes.plot(number, head, "s-", color="tab:gray", label="head-based estimate")
    axes.plot(number, fitted, "o-", color="tab:blue", label=f"fitted model (lower in {better:.0%})")
    axes.legend()
    return save(figure, folder / "log_loss.png")


def regret(adaptive: ArmReplay, pinned: Sequence[ArmReplay]) -> tuple[ArmReplay, NDArray[np.float64]]:
    """The best of some pinned widths, and milliseconds lost to it by the n-th token of the replay."""
    best = max(pinned, key=lambda arm: arm.tokens_per_second)
    return best, (_clock(adaptive) - _clock(best)) / 1e3


def _clock(arm: ArmReplay) -> NDArray[np.float64]:
    """Microseconds after each token of a replay; a round's tokens come at its end."""
    out, start = [], 0.0
    for columns in arm.columns:
        tokens = columns[:, 3].astype(np.int64) + 1
        out.append(start + np.repeat(np.cumsum(columns[:, 4]), tokens))
        start += float(columns[:, 4].sum())
    return np.concatenate(out) if out else np.empty(0)


def plot_regret(folder: Path, adaptive: ArmReplay, pinned: Sequence[ArmReplay]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    best, lost = regret(adaptive, pinned)
    figure, axes = new_figure(f"Time lost to the best pinned width ({best.arm})", "tokens", "milliseconds")
    axes.plot(np.arange(1, len(lost) + 1), lost, label=adaptive.arm)
    for arm in pinned:
        if arm is not best:
            axes.plot(np.arange(1, len(lost) + 1), (_clock(arm) - _clock(best)) / 1e3, lw=0.8, alpha=0.6, label=arm.arm)
    axes.axhline(0.0, color="0.6", lw=0.8)
    limit = 2.0 * max(1.0, float(np.abs(lost).max(initial=0.0)))
    axes.set_ylim(-limit, limit)
    axes.legend()
    return save(figure, folder / "regret.png")


def plot_rates(path: Path, title: str, rows: Sequence[dict[str, Any]]) -> Path:
    """Bars with intervals: ``label``, ``value``, and where there are any ``low`` and ``high``."""
    figure, axes = new_figure(title, "", "")
    values = np.array([row["value"] for row in rows], dtype=np.float64)
    names = [str(row["label"]) for row in rows]
    if all("low" in row for row in rows):
        low, high = (np.array([row[end] for row in rows], dtype=np.float64) for end in ("low", "high"))
        axes.barh(names, values, xerr=np.stack([values - low, high - values]), capsize=3)
    else:
        axes.barh(names, values)
    axes.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    return save(figure, path)
