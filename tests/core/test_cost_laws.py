"""csrc/core/context_law and sample_bank: what a width costs at every context (section 3.2)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from core.oracle import Law, refit
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspark import _core

SAMPLES = st.lists(st.tuples(st.integers(1, 40000), st.floats(500.0, 90000.0)), min_size=3, max_size=120)


def assert_same_law(core: _core.CostLaw, plain: Law) -> None:
    assert core.scale == pytest.approx(plain.scale, rel=1e-12)
    assert core.floor == pytest.approx(plain.floor, rel=1e-12)
    np.testing.assert_allclose(core.weights, plain.weights, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(core.squared_gradients, [c.n for c in plain.coordinates], rtol=1e-10)
    for context in (0, 100, 1000, 9000, 60000):
        assert core.price(context) == pytest.approx(plain.price(context), rel=1e-9)


@given(SAMPLES)
def test_online_law_matches_the_plain_one(samples):
    core, plain = _core.CostLaw(), Law()
    for c, t in samples:
        core.add(c, t)
        plain.add(c, t)
    assert_same_law(core, plain)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(50, 12000), st.floats(0.9, 1.4)), min_size=4, max_size=60),
    st.floats(5000, 50000),
    st.floats(0, 2),
)
def test_refit_matches_the_plain_one(points, base, slope):
    core, plain = _core.CostLaw(), Law()
    banked = []
    for c, noise in points:
        t = float(np.float32(base * (1 + slope * c / 8192) * noise))
        core.add(c, t)
        plain.add(c, t)
        banked.append((c, t))
    after = refit(plain, banked)
    assert core.refit() == (after is not plain)
    assert_same_law(core, after)


def test_law_starts_at_its_scale_and_never_falls_with_context():
    law = _core.CostLaw()
    for t in (1000.0, 1100.0, 1050.0):
        law.add(2000, t)
    assert law.price(2000) == pytest.approx(1000.0, rel=0.05)
    prices = [law.price(c) for c in range(0, 60000, 500)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(prices))


def test_a_sparse_bank_prices_long_contexts_after_a_refit():
    # A width measured at three contexts only: the online slope hardly moves, the refit finds it.
    law = _core.CostLaw()
    for c, t in [
        (451, 24.2),
        (453, 25.4),
        (456, 24.5),
        (1600, 25.9),
        (1602, 26.1),
        (8400, 34.2),
        (8421, 34.6),
        (8444, 34.4),
    ]:
        law.add(c, 1000 * t)
    assert law.price(8444) < 28_000
    assert law.refit()
    assert law.price(8444) == pytest.approx(34_200, abs=1500)
    assert law.price(451) == pytest.approx(24_200, abs=1000)


def test_a_steep_slope_is_learned_by_the_refit():
    # Twice as long at 2,000 tokens as at 300. After long replies the bank of the lower band ends far from where the law began.
    rng = np.random.default_rng(5)
    for long_replies in (False, True):
        law, plain, banked = _core.CostLaw(), Law(), []
        for at in (300, 2000):
            for i in range(200 if long_replies else 20):
                t = float(np.float32((2000 + 1.6 * (at + i)) * (1 + 0.02 * rng.random())))
                law.add(at + i, t)
                plain.add(at + i, t)
                banked.append((at + i, t))
        after = refit(plain, banked)
        assert law.refit()
        assert_same_law(law, after)
        for context in (310, 2010):
            assert law.price(context) == pytest.approx(2000 + 1.6 * context, rel=0.05), long_replies


def test_bursts_do_not_enter_the_price():
    # Proposition 3: with a quarter of the rounds free of interference the 0.15-quantile is the machine's own time.
    rng = np.random.default_rng(3)
    law = _core.CostLaw()
    for _ in range(3000):
        late = 0.0 if rng.random() < 0.25 else rng.exponential(0.5)
        law.add(500, 10_000 * (1 + late))
    assert law.price(500) == pytest.approx(10_000, rel=0.03)
