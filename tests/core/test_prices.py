"""csrc/core/timed and width_table: an offered price is a typical time (section 3.2, Eq. 5)."""

from __future__ import annotations

import numpy as np
import pytest
from core.driver import make_scheduler, random_block, run_round
from core.price_oracle import Prices
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspark import _core

TRUE = {1: 5e3, 4: 9e3, 8: 14e3}  # us
DRAFT = 3e3

ROUND = st.tuples(
    st.sampled_from([2, 4, 8]), st.sampled_from([300, 310, 1500]), st.floats(0.8, 1.6), st.floats(0.8, 1.6)
)


@settings(max_examples=60)
@given(st.lists(ROUND, min_size=1, max_size=110), st.booleans())
def test_prices_match_the_plain_ones(rounds, law):
    core, plain = _core.WidthTable(64, law), Prices(law)
    for rows, context, verify, draft in rounds:
        core.record(rows, context, 1000.0 * rows * verify, 700.0 * draft)
        plain.record(rows, context, 1000.0 * rows * verify, 700.0 * draft)
        assert core.clock == pytest.approx(plain.clock, rel=1e-9)
        assert core.markup == pytest.approx(plain.markup.value, rel=1e-9)
        offered, prices, draft_price = core.offer(context)
        assert draft_price == pytest.approx(plain.draft_price(context), rel=1e-9)
        for n, us in zip(offered.tolist(), prices.tolist(), strict=True):
            assert us == pytest.approx(plain.price(n, context), rel=1e-9)


def scattered(rng: np.random.Generator, scatter: float) -> float:
    return float(np.exp(scatter * rng.standard_normal()))


def served(table: _core.WidthTable, rng: np.random.Generator, rounds: int, scatter: float, slower: float = 1.0) -> dict:
    """Price / time by what was timed."""
    ratios: dict[object, list[float]] = {"draft": [], **{rows: [] for rows in TRUE}}
    for _ in range(rounds):
        rows = int(rng.choice(list(TRUE)))
        now = slower * (1.0 + 0.5 * (rng.random() < 0.05))  # a neighbour, now and then
        verify, draft = TRUE[rows] * now * scattered(rng, scatter), DRAFT * now * scattered(rng, scatter)
        offered, prices, draft_price = table.offer(1000)
        for n, us in zip(offered.tolist(), prices.tolist(), strict=True):
            if n == rows:
                ratios[n].append(us / verify)
        ratios["draft"].append(draft_price / draft)
        table.record(rows, 1000, verify, draft)
    return ratios


@pytest.mark.parametrize("law", [True, False])
@pytest.mark.parametrize("scatter", [0.01, 0.03, 0.05])
def test_an_offered_price_is_a_typical_time(scatter, law):
    for seed in range(5):
        rng = np.random.default_rng((31, seed))
        table = _core.WidthTable(64, law)
        table.split(8)
        served(table, rng, 200, scatter)
        ratios = served(table, rng, 600, scatter)
        together = [r for rows in TRUE for r in ratios[rows]]
        assert np.median(together) == pytest.approx(1.0, abs=0.01 if law else 0.02)
        assert table.markup > 1.0 + scatter  # the price would be as much too low without
        for own in ratios.values():  # one factor for all
            assert np.median(own) == pytest.approx(1.0, abs=0.8 * scatter + 0.01)


def test_the_chosen_width_costs_what_its_price_says():
    """Whole rounds: the error of an unbiased price is that of the times, and as many lie above it as below."""
    core = make_scheduler(text=False)
    rng = np.random.default_rng(32)
    core.begin_request(rng.integers(0, 9, 2050).astype(np.int32), 1, 4000)
    ratios = []
    for i in range(650):  # all in one context band: times in one that no law knows teach laws, not the markup
        taken = scattered(rng, 0.04)
        r = run_round(
            core,
            rng,
            random_block(rng, 7, 5000),
            lambda position: 0 if position < 2 else 8,
            lambda rows, taken=taken: (9_000.0 + 300.0 * rows) * taken,
            1000.0 * scattered(rng, 0.04),
        )
        price = r.report["verify_us"]
        if i >= 200 and price > 0 and r.report["asked_rows"] == len(r.tree["tokens"]):
            ratios.append(price / ((9_000.0 + 300.0 * len(r.tree["tokens"])) * taken))
    assert len(ratios) > 300
    assert np.median(ratios) == pytest.approx(1.0, abs=0.01)
    assert np.median(np.abs(np.array(ratios) - 1.0)) < 0.04


def test_the_markup_leaves_a_change_of_speed_to_the_clock():
    rng = np.random.default_rng(33)
    table = _core.WidthTable(64)
    table.split(8)
    served(table, rng, 300, 0.03)
    before = table.markup
    for slower in (1.5, 0.7, 1.0):
        served(table, rng, 8, 0.03, slower)
        assert table.markup == pytest.approx(before, abs=0.02)
        ratios = served(table, rng, 200, 0.03, slower)
        assert np.median([r for own in ratios.values() for r in own]) == pytest.approx(1.0, abs=0.02)


def test_a_machine_that_keeps_time_has_no_markup():
    table = _core.WidthTable(64)
    for _ in range(200):
        table.record(1, 1000, 5e3, 3e3)
    assert table.markup == pytest.approx(1.0, abs=0.01)


def test_the_markup_outlives_a_request():
    core, resumed = make_scheduler(), make_scheduler()
    rng = np.random.default_rng(34)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    for _ in range(300):
        taken = scattered(rng, 0.05)
        run_round(core, rng, random_block(rng, 7, 9), None, lambda rows, taken=taken: (9_000.0 + 300.0 * rows) * taken)
    core.end_request()
    assert resumed.load(core.save())
    assert resumed.prices_at(500) == core.prices_at(500)
