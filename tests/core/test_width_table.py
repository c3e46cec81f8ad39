"""csrc/core/width_table: classes and their splits, widths offered, prices of those that seldom run (section 3.2)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from core.cost_tools import STEEP, prices, prices_at, steady
from hypothesis import given
from hypothesis import strategies as st

from adaspark import _core


def measured(table: _core.WidthTable, times: dict[int, float], context: int = 1000) -> None:
    for rows, t in times.items():
        table.split(rows)
        for _ in range(3):
            table.record(rows, context, t)


def test_envelope_drops_a_width_dearer_than_a_wider_one():
    table = _core.WidthTable(64)
    measured(table, {8: 29e3, 16: 33e3, 32: 79e3, 64: 67e3})
    rows, prices, _ = table.offer(1000)
    assert rows.tolist() == [8, 16, 64]
    assert prices.tolist() == pytest.approx([29e3, 33e3, 67e3], rel=0.02)
    assert table.price_at_least(24) == pytest.approx(67e3, rel=0.02)


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e3, 1e5), min_size=1, max_size=12),
    st.lists(st.floats(0, 1), min_size=63, max_size=63),
    st.floats(0.25, 4),
    st.floats(0.25, 4),
    st.floats(1e-6, 1e-3),
)
def test_proposition_2_a_class_top_maximises_the_value(price, q, gain_draft, gain_text, rate):
    # T constant on each class and sums that do not fall with n: no width inside a class beats the best top.
    tops = sorted(price)
    split = np.array(q) < 0.5
    draft = np.concatenate([[0.0], np.cumsum(np.where(split, q, 0.0))])
    text = np.concatenate([[0.0], np.cumsum(np.where(split, 0.0, q))])
    gains = (gain_draft, gain_text, gain_draft, gain_text)

    def value(n: int) -> float:
        top = next(t for t in tops if t >= n)
        cost = min(price[t] for t in tops if t >= top)  # the cheapest class that holds n rows
        return 1 + gain_draft * draft[n - 1] + gain_text * text[n - 1] - rate * cost

    best = max(value(n) for n in range(1, tops[-1] + 1))
    offered = [t for t in tops if price[t] <= min(price[u] for u in tops if u >= t)]
    _, _, got = _core.choose_width(
        np.array(offered, np.int32),
        np.array([price[t] for t in offered]),
        np.array([draft[t - 1] for t in offered]),
        np.array([text[t - 1] for t in offered]),
        draft[7],
        text[7],
        rate,
        0.0,
        gains=gains,
    )
    assert got == pytest.approx(best, abs=1e-9)


def test_a_width_that_ran_at_one_context_only_grows_as_the_others_do():
    table = _core.WidthTable(64)
    for request in range(4):
        far = request % 2
        for rows, us in STEEP.items():
            for _ in range(12 if rows < 8 else 5 * far):  # 8 rows at 2,000 tokens alone
                table.record(rows, (300, 2000)[far], us[far])
        table.refit()
    assert prices_at(table, 2000)[8] == pytest.approx(STEEP[8][1], rel=0.05)
    assert prices_at(table, 300)[8] == pytest.approx(STEEP[8][0], rel=0.15)


def test_a_refit_leaves_the_price_at_hand():
    # The level is relative to the law: a law that has learned what the level made up for must not count it twice.
    table = _core.WidthTable(64)
    for far, context in enumerate((300, 2000)):
        for _ in range(20):
            table.record(1, context, STEEP[1][far])
    before = prices_at(table, 2000)[1]
    table.refit()
    assert before == pytest.approx(STEEP[1][1], rel=0.02)
    assert prices_at(table, 2000)[1] == pytest.approx(before, rel=0.02)


def bad_minute() -> _core.WidthTable:
    """2 and 4 rows were timed four times each at twice what they cost, one row at what it costs."""
    table = _core.WidthTable(64)
    steady(table, 20, 1, 5e3, 0)
    for rows, us in {2: 14e3, 4: 25e3}.items():
        steady(table, 4, rows, us, 0)
    return table


def test_two_quick_runs_of_an_idle_width_move_its_price_and_one_does_not():
    table = bad_minute()
    steady(table, 130, 1, 5e3, 0)
    assert table.idle() == 2
    before = prices(table)[2]
    steady(table, 1, 2, 7e3, 0)
    assert prices(table)[2] == pytest.approx(before, rel=0.05)
    assert table.clock == pytest.approx(1.0, abs=0.02)  # and the machine has not become any quicker
    steady(table, 8, 1, 5e3, 0)
    assert table.idle() == 2  # looked at again soon
    steady(table, 1, 2, 7e3, 0)
    assert prices(table)[2] == pytest.approx(7e3, rel=0.05)
    assert prices(table)[1] == pytest.approx(5e3, rel=0.02)
    table.refit()
    assert prices(table)[2] == pytest.approx(7e3, rel=0.05)


def test_a_price_that_is_confirmed_is_doubted_half_as_often():
    table = bad_minute()
    seen = []
    for round_ in range(3000):
        idle = table.idle() == 2
        seen += [round_] if idle else []
        steady(table, 1, 2 if idle else 1, 14e3 if idle else 5e3, 0)
    gaps = np.diff(seen)
    assert len(seen) == 4
    assert all(1.9 * a <= b <= 2.1 * a + 16 for a, b in itertools.pairwise(gaps))


def test_a_width_of_many_samples_is_doubted_too():
    table = _core.WidthTable(64)
    for rows, us in {1: 5e3, 2: 14e3}.items():
        steady(table, 40, rows, us, 0)
    steady(table, 120, 1, 5e3, 0)
    assert table.idle() == 0
    steady(table, 16, 1, 5e3, 0)
    assert table.idle() == 2


def test_a_level_forgets_a_burst_within_eight_runs():
    table = _core.WidthTable(64)
    steady(table, 12, 1, 10e3, 0)
    steady(table, 8, 1, 14e3, 0)
    assert table.offer(1000)[1][0] > 13e3
    steady(table, 1, 1, 10e3, 0)
    assert table.offer(1000)[1][0] < 10.5e3


def test_only_class_tops_teach():
    table = _core.WidthTable(64)
    table.record(7, 100, 10e3)
    assert all(samples == 0 for _, _, samples, _ in table.classes)


def test_reach_and_shortfalls():
    table = _core.WidthTable(64)
    table.came_out_short(64, 57)
    assert table.classes[-1][:2] == (33, 57)
    for _ in range(3):
        table.came_out_short(16, 12)
    assert [c[1] for c in table.classes if c[3]] == [16]
    narrow = _core.WidthTable(64)
    narrow.came_out_short(64, 20)  # nothing of the class can be built: the class goes
    assert [c[1] for c in narrow.classes] == [1, 2, 4, 8, 16, 32]


@given(st.lists(st.integers(1, 64), max_size=40))
def test_splits_keep_the_classes_a_partition(splits):
    table = _core.WidthTable(64)
    for s in splits:
        tops = [c[1] for c in table.classes]
        assert table.split(s) == (s not in tops and len(tops) < 24)
    classes = table.classes
    assert classes[0][0] == 1
    assert classes[-1][1] == 64
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(classes))
    assert len(classes) <= 24


def split_from(tops: list[int], time: dict[int, float], tokens: list[float], held: int) -> int:
    price = np.array([time.get(t, math.inf) for t in tops])
    best = max(tokens[t] / time[t] for t in tops if t in time)
    return _core.split_point(np.array(tops, np.int32), price, np.array(tokens), held, best, 0.0)


def test_splits_go_to_the_nearest_width_that_could_win():
    # 10 + w ms, half a token a row, held at 8, nothing narrower measured. Each is measured before the next.
    tops = [1, 2, 4, 8, 16, 32, 64]
    tokens = [1 + 0.5 * max(n - 1, 0) for n in range(65)]
    time = {t: 10.0 + t for t in range(1, 65)}
    rate = tokens[8] / time[8]
    got = []
    for _ in range(3):
        price = np.array([time[t] if t >= 8 else math.inf for t in tops])
        at = _core.split_point(np.array(tops, np.int32), price, np.array(tokens), 8, rate, 0.0)
        got.append(at)
        tops = sorted([*tops, at])
    assert got == [9, 12, 10]


def test_a_steep_step_is_split_at_the_held_width_and_a_saturated_one_not_at_all():
    flat = {1: 30.0, 2: 30.0, 4: 30.0, 8: 30.0, 16: 46.0, 32: 60.0, 64: 90.0}
    saturated = [min(1 + 0.5 * max(n - 1, 0), 4.0) for n in range(65)]
    assert split_from([1, 2, 4, 8, 16, 32, 64], flat, saturated, 8) == 0
    step = {8: 25.0, 16: 25.0, 32: 45.0}
    tokens = [1 + 0.15 * max(n - 1, 0) for n in range(65)]
    assert split_from([8, 16, 32], step, tokens, 16) == 17
    step[17] = 45.0
    assert split_from([8, 16, 17, 32], step, tokens, 16) == 0
