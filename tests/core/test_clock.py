"""csrc/core/width_table: a machine that changes its speed, told by the clock from all that is no such change."""

from __future__ import annotations

import pytest
from core.cost_tools import STEEP, prices, prices_at, steady

from adaspark import _core


def test_a_slower_machine_reprices_widths_that_did_not_run():
    table = _core.WidthTable(64)
    for rows, t in {2: 20e3, 4: 22e3, 8: 25e3}.items():
        steady(table, 20, rows, t, 8e3)
    before = dict(zip(*(x.tolist() for x in table.offer(1000)[:2]), strict=True))
    steady(table, 8, 4, 33e3, 12e3)
    after = dict(zip(*(x.tolist() for x in table.offer(1000)[:2]), strict=True))
    for rows in (2, 8):
        assert after[rows] / before[rows] == pytest.approx(1.5, rel=0.05)
    steady(table, 8, 4, 22e3 * 100, 8e3)
    assert table.clock == pytest.approx(16.0)
    steady(table, 8, 4, 22e3, 8e3)
    table.refit()
    assert prices(table) == pytest.approx({2: 20e3, 4: 22e3, 8: 25e3}, rel=0.06)  # nothing learned is off by more


def test_a_request_that_grows_teaches_the_slope():
    # One long reply, twice as long a verify at its end: the laws learn it, not the clock.
    table = _core.WidthTable(64)
    for context in range(300, 2300, 4):
        table.record(1, context, 2000.0 + context)
    table.refit()
    for _ in range(8):
        table.record(1, 2100, 4100.0)
    assert table.clock == pytest.approx(1.0, abs=0.2)
    assert prices_at(table, 300)[1] == pytest.approx(2300.0, rel=0.2)


def test_a_law_of_few_samples_does_not_move_the_clock():
    table = _core.WidthTable(64)
    steady(table, 20, 1, 10e3, 0)
    for us in (30e3, 30e3, 30e3, 20e3, 20e3, 20e3):  # its first three met a busy moment
        steady(table, 1, 4, us, 0)
    assert table.clock == pytest.approx(1.0, abs=0.03)
    assert prices(table)[1] == pytest.approx(10e3, rel=0.03)
    assert prices(table)[4] == pytest.approx(20e3, rel=0.06)  # its level and its law both come down


def test_the_clock_runs_without_the_drafter():
    table = _core.WidthTable(64)
    for rows, t in {1: 10e3, 2: 20e3, 4: 22e3}.items():
        steady(table, 20, rows, t, 8e3)
    before = table.offer(1000)
    for _ in range(8):
        table.record(1, 1000, 15e3)  # plain rounds only, on a machine that has become half as slow again
    after = table.offer(1000)
    assert (after[1] / before[1]).tolist() == pytest.approx([1.5] * 3, rel=0.05)
    assert after[2] / before[2] == pytest.approx(1.5, rel=0.05)  # the drafter's price follows too


def test_a_slowdown_that_the_clock_s_own_law_has_learned_still_reprices_the_others():
    table = _core.WidthTable(64)
    for rows, t in {2: 20e3, 4: 22e3, 8: 25e3}.items():
        steady(table, 20, rows, t, 8e3)
    table.refit()
    before = dict(zip(*(x.tolist() for x in table.offer(1000)[:2]), strict=True))
    for _ in range(3):  # requests at 4 rows on a machine half as slow again; each ends in a refit
        steady(table, 60, 4, 33e3, 12e3)
        table.refit()
    after = dict(zip(*(x.tolist() for x in table.offer(1000)[:2]), strict=True))
    for rows in (2, 4, 8):
        assert after[rows] / before[rows] == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize("factor", [1.5, 0.6, 3.0])
def test_a_change_of_speed_for_good_reprices_all_for_good(factor):
    table = _core.WidthTable(64)
    for rows, t in {1: 18e3, 2: 20e3, 4: 22e3, 8: 25e3}.items():
        steady(table, 20, rows, t, 8e3)
    table.refit()
    before = prices(table)
    seen = []
    for _ in range(400):  # one width runs, and its law does not absorb what the clock tells
        steady(table, 1, 4, 22e3 * factor, 8e3 * factor)
        seen.append(prices(table))
    for after in seen[10:]:
        for rows in (1, 2, 4, 8):
            assert after[rows] / before[rows] == pytest.approx(factor, rel=0.06), rows
    table.refit()
    steady(table, 3, 1, 18e3 * factor, 0)  # a width that has not run since is not stale either
    assert prices(table)[1] / before[1] == pytest.approx(factor, rel=0.06)


def test_a_slow_drift_is_not_absorbed_by_the_law_that_runs():
    # Measured beside one another while the machine was slow, after which one of them ran alone as it became quicker.
    table = _core.WidthTable(64)
    for rows in (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1):
        steady(table, 1, rows, {1: 10e3, 2: 11e3}[rows], 0)
    for i in range(60):
        steady(table, 1, 1, 10e3 - 5e3 * i / 59, 0)
    assert prices(table)[1] == pytest.approx(5e3, rel=0.05)
    assert prices(table)[2] == pytest.approx(5.5e3, rel=0.15)  # the law that ran took over the first rounds of it


def test_a_drafter_alone_that_slows_moves_its_own_price_only():
    table = _core.WidthTable(64)
    for rows, t in {2: 20e3, 4: 22e3, 8: 25e3}.items():
        steady(table, 20, rows, t, 8e3)
    before = prices(table)
    steady(table, 20, 4, 22e3, 12e3)
    assert table.clock == pytest.approx(1.0, abs=0.03)
    assert prices(table) == pytest.approx(before, rel=0.03)
    assert table.offer(1000)[2] == pytest.approx(12e3, rel=0.03)


def test_a_width_first_measured_on_a_slower_machine_costs_what_it_took_and_less_on_a_quicker_one():
    table = _core.WidthTable(64)
    steady(table, 20, 1, 10e3, 0)
    steady(table, 8, 1, 15e3, 0)
    steady(table, 3, 4, 33e3, 0)
    assert prices(table)[4] == pytest.approx(33e3, rel=0.03)
    steady(table, 8, 1, 10e3, 0)
    assert prices(table)[4] == pytest.approx(22e3, rel=0.03)


def test_a_machine_that_slows_now_and_then_is_left_to_the_clock():
    table = _core.WidthTable(64)
    steady(table, 20, 1, 10e3, 0)
    for _ in range(20):
        steady(table, 7, 1, 15e3, 0)
        steady(table, 1, 1, 10e3, 0)
    assert prices(table)[1] == pytest.approx(10e3, rel=0.1)


def test_requests_at_two_contexts_in_turns_are_no_machine_that_changes_its_speed():
    table = _core.WidthTable(64)
    for request in range(8):
        far = request % 2
        for _ in range(12):
            for rows, us in STEEP.items():
                table.record(rows, (300, 2000)[far], us[far])
        assert table.clock == pytest.approx(1.0, abs=0.06)
        table.refit()
    for far, context in enumerate((300, 2000)):
        for rows, price in prices_at(table, context).items():
            assert price == pytest.approx(STEEP[rows][far], rel=0.08), (context, rows)


def test_the_clock_runs_at_a_context_that_a_refit_has_seen():
    table = _core.WidthTable(64)
    for _ in range(2):
        for far, context in enumerate((300, 2000)):
            for _ in range(20):
                table.record(1, context, STEEP[1][far])
            table.refit()
    for _ in range(8):
        table.record(1, 2000, 1.5 * STEEP[1][1])
    assert prices_at(table, 300)[1] == pytest.approx(1.5 * STEEP[1][0], rel=0.08)
