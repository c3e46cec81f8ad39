"""Pure functions on measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LONGEST_PERIOD = 64  # tokens
LOOP_COPIES = 4  # copies of the period at the end of a reply ...
LOOP_TOKENS = 24  # ... which together are at least this long


def loop_period(tokens: Sequence[int]) -> int | None:
    """The shortest period the end of a reply repeats with, or None.

    Greedy decoding of a small model falls into loops. A drafter predicts a loop almost perfectly, so a comparison that
    counts such replies measures the loop and not the text.
    """
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // LOOP_COPIES) + 1):
        repeated = _repeated(tokens, period) + period  # the first copy has nothing before it to equal
        if repeated >= max(LOOP_COPIES * period, LOOP_TOKENS):
            return period
    return None


def loop_start(tokens: Sequence[int]) -> int | None:
    """How many tokens come before the loop that a reply ends in, its first copy included, which is still text; None
    without a loop."""
    period = loop_period(tokens)
    return None if period is None else len(tokens) - _repeated(tokens, period)


def _repeated(tokens: Sequence[int], period: int) -> int:
    """Tokens at the end that each equal the one a period before."""
    same = 0
    while same < len(tokens) - period and tokens[-1 - same] == tokens[-1 - same - period]:
        same += 1
    return same


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def geometric_mean(ratios: Sequence[float], seed: int = 0, resamples: int = 10_000) -> Interval:
    """Geometric mean of positive ratios; the interval is a percentile bootstrap over them. ValueError when empty."""
    if len(ratios) == 0 or not all(ratio > 0 for ratio in ratios):
        msg = "the geometric mean needs at least one ratio, all above zero"
        raise ValueError(msg)
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    rng = np.random.default_rng(seed)
    means = logs[rng.integers(0, logs.size, (resamples, logs.size))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)))


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and interquartile range."""

    median: float
    low: float
    high: float
    n: int


def spread(values: Sequence[float]) -> Spread:
    """ValueError when empty."""
    if len(values) == 0:
        msg = "no measurements"
        raise ValueError(msg)
    low, median, high = np.percentile(np.asarray(values, dtype=np.float64), [25, 50, 75])
    return Spread(float(median), float(low), float(high), len(values))


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token where two replies differ, one that ends early included; None when equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def evenly(count: int, wanted: int) -> list[int]:
    """``wanted`` indices spread evenly over ``range(count)``; all of them when there are not more."""
    if wanted >= count:
        return list(range(count))
    return [i * count // wanted for i in range(wanted)]
