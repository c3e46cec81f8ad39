"""Prices of widths (section 3.2, Eq. 5) in plain Python, between one refit and the next and while nothing is idle."""

from __future__ import annotations

from collections import Counter

import numpy as np
from core.oracle import TAU, Law, clamp

WINDOW = 8


class Level:
    """The last eight ratios; they are kept as float32."""

    def __init__(self) -> None:
        self.ratios: list[float] = []

    def add(self, ratio: float) -> None:
        self.ratios = [*self.ratios, float(np.float32(ratio))][-WINDOW:]

    @property
    def value(self) -> float:
        return clamp(min(self.ratios, default=1.0), 0.5, 2.0)


class Markup:
    """What a time is over its price, at the median of those that are within a quarter of it."""

    def __init__(self) -> None:
        self.value, self.seen = 1.0, 0

    def add(self, time_over_price: float) -> None:
        if time_over_price > 1.25:
            return
        self.seen += 1
        step = clamp(0.1 / self.seen, 0.001, 0.02)
        self.value = clamp(self.value * (1 + step if time_over_price > self.value else 1 - step), 1.0, 1.25)


class Timed:
    """The verifies of one width, or what is fixed in a drafted round."""

    def __init__(self, use_law: bool) -> None:
        self.use_law = use_law
        self.law, self.level = Law(), Level()
        self.times: list[float] = []  # at a clock of 1
        self.bands: Counter[int] = Counter()  # samples
        self.known: set[int] = set()
        self.ran = 0.0
        self.anchor = 0.0

    def price(self, context: int) -> float:
        """At a clock of 1, low."""
        return self.law.price(context) * self.level.value if self.use_law else self.anchor

    def lowest(self) -> float:
        """Of the block of eight at hand."""
        return min(self.times[(len(self.times) - 1) // WINDOW * WINDOW :])

    def record(self, context: int, time: float, typical: float) -> float:
        """Measured over law where it says something of the machine, else 0."""
        trained = len(self.law.samples) >= 3
        self.ran = time / self.law.price(context) if trained else 0.0
        self.times.append(time / typical)
        if len(self.times) == 3 or len(self.times) % WINDOW == 0:
            self.anchor = self.lowest()
        band = context.bit_length()
        if not trained:
            self.known.add(band)
        evidence = trained and band in self.known and len(self.times) > 8
        if not evidence or self.bands[band] < 16:
            self.law.add(context, time / typical)
        self.bands[band] += 1
        return self.ran if evidence else 0.0

    def settle(self, clock: float) -> None:
        if self.ran > 0:
            self.level.add(self.ran / clock)


class Prices:
    """Widths, the draft, the clock and the markup."""

    def __init__(self, use_law: bool = True) -> None:
        self.use_law = use_law
        self.widths: dict[int, Timed] = {}
        self.draft = Timed(use_law)
        self.recent: list[float] = []
        self.clock = self.typical = 1.0
        self.markup = Markup()

    def record(self, rows: int, context: int, verify: float, draft: float) -> None:
        width = self.widths.setdefault(rows, Timed(self.use_law))
        low = width.price(context) * self.clock if len(width.times) >= 3 else 0.0
        self.draft.record(context, draft, self.typical)
        ratio = width.record(context, verify, self.typical)
        if ratio > 0:
            self.markup.add(verify / low)
            self.recent = [*self.recent, float(np.float32(ratio))][-WINDOW:]
            least = sorted(clamp(r, 1 / 16, 16) for r in self.recent)
            self.clock = self.typical = least[0]
            if len(least) == WINDOW:  # between the least two, where a share TAU of ratios is below
                self.typical += (TAU * (WINDOW + 1) - 1) * (least[1] - least[0])
        self.draft.settle(self.clock)
        width.settle(self.clock)

    def price(self, rows: int, context: int) -> float:
        return self.widths[rows].price(context) * self.clock * self.markup.value

    def draft_price(self, context: int) -> float:
        known = len(self.draft.times) >= 3
        return (self.draft.price(context) if known else self.draft.lowest()) * self.clock * self.markup.value
