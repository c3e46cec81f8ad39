"""csrc/core/gains, rate, chooser and draft_gate: section 3.4 and the decision before the drafter runs."""

from __future__ import annotations

import numpy as np
import pytest
from core.oracle import Gain
from hypothesis import given
from hypothesis import strategies as st

from adaspark import _core


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 8), st.floats(0, 30000)), max_size=300))
def test_gains_match_a_batch_ridge_regression(observations):
    core, plain = _core.GainFit(), Gain()
    for o in observations:
        core.observe(*o)
        plain.observe(*o)
    for context in (0, 2000, 4096, 9000, 40000):
        assert core.at(context) == pytest.approx(plain.at(context), rel=1e-6, abs=1e-9)


def test_an_empty_gain_is_one_everywhere_and_two_contexts_are_told_apart():
    fit = _core.GainFit()
    assert [fit.at(c) for c in (0, 5000, 50000)] == [1.0, 1.0, 1.0]
    for _ in range(200):
        fit.observe(1.0, 1.69, 1596)
        fit.observe(1.0, 0.885, 8444)
    assert fit.at(1596) == pytest.approx(1.69, abs=0.06)
    assert fit.at(8444) == pytest.approx(0.885, abs=0.06)


def test_gains_are_clamped():
    fit = _core.GainFit()
    for _ in range(300):
        fit.observe(0.1, 5.0, 4096)
    assert fit.at(4096) == 4.0
    for _ in range(3000):
        fit.observe(1.0, 0.0, 4096)
    assert fit.at(4096) == 0.25


def test_rate_has_a_half_life_of_64_rounds_and_waits_for_eight():
    rate = _core.LongRunRate()
    for i in range(8):
        assert rate.rate(1000, 0) == 0.0, i
        rate.add(1000, 0, 2, 1000)
    assert rate.rate(1000, 0) == pytest.approx(0.002)
    for _ in range(4088):
        rate.add(1000, 0, 2, 1000)
    for _ in range(64):
        rate.add(1000, 0, 4, 1000)
    assert rate.rate(1000, 0) == pytest.approx(0.003, rel=1e-6)
    assert rate.rate(2000, 0) == 0.0  # bands do not mix


def test_a_copy_does_not_make_time_dear_where_there_is_nothing_to_copy():
    rate = _core.LongRunRate()
    for _ in range(8):
        rate.add(1000, 0, 1, 1000)
    for _ in range(7):
        rate.add(1000, 3, 8, 1000)
    assert rate.rate(1000, 0) == pytest.approx(0.001)
    assert 0.001 < rate.rate(1000, 3) < 0.008  # the whole band's, until the bin has eight rounds
    rate.add(1000, 3, 8, 1000)
    assert rate.rate(1000, 3) == pytest.approx(0.008)


WIDTHS = st.lists(st.integers(1, 64), min_size=1, max_size=24, unique=True).map(sorted)


@given(WIDTHS, st.data(), st.booleans(), st.floats(0, 20000))
def test_choice_maximises_eq_7_within_the_margin(rows, data, known, fixed):
    n = len(rows)
    positive = st.floats(1e3, 1e5)
    price = np.array(data.draw(st.lists(positive, min_size=n, max_size=n)))
    draft = np.cumsum(data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
    text = np.cumsum(data.draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
    gains = tuple(data.draw(st.floats(0.25, 4)) for _ in range(4))
    reference = (data.draw(st.floats(0, 3)), data.draw(st.floats(0, 3)))
    rate = data.draw(st.floats(1e-5, 1e-3)) if known else 0.0
    incumbent = data.draw(st.sampled_from([0, *rows]))

    def tokens(i: int) -> float:
        low = [(0, draft[i]), (1, text[i])] if rows[i] < 8 else list(enumerate(reference))
        high = [(0, draft[i] - reference[0]), (1, text[i] - reference[1])] if rows[i] >= 8 else []
        return 1 + sum(gains[2 + s] * x for s, x in low) + sum(gains[s] * x for s, x in high)

    def value(i: int) -> float:
        cost = fixed + price[i]
        return tokens(i) - rate * cost if known else tokens(i) / cost

    got, got_tokens, got_value = _core.choose_width(
        np.array(rows, np.int32), price, draft, text, *reference, rate, fixed, incumbent, gains=gains
    )
    best = max(range(n), key=value)
    want = best
    if incumbent:
        held = rows.index(incumbent)
        bar = value(held) + 0.04 * tokens(held) if known else 1.04 * value(held)
        want = best if value(best) > bar else held
    assert got_value == pytest.approx(value(want), rel=1e-9, abs=1e-9)
    assert got_tokens == pytest.approx(tokens(rows.index(got)), rel=1e-9)


def test_ties_go_to_the_narrower_width_and_a_missing_incumbent_loses():
    rows = np.array([2, 4, 8], np.int32)
    price = np.full(3, 1e4)
    same = np.full(3, 1.0)
    none = np.zeros(3)
    assert _core.choose_width(rows, price, same, none, 1.0, 0.0, 1e-4, 0.0)[0] == 2
    assert _core.choose_width(rows, price, same, none, 1.0, 0.0, 1e-4, 0.0, 16)[0] == 2
    assert _core.choose_width(rows, price, same, none, 1.0, 0.0, 1e-4, 0.0, 8)[0] == 8


def test_one_row_brings_one_token_whatever_the_gains():
    # Half of what was promised comes true: what a narrow tree gives up is no token of a row that verifies nothing.
    rows, price, none = np.array([1], np.int32), np.array([1e4]), np.zeros(1)
    for gains in ((1.0, 1.0, 0.5, 0.5), (0.25, 1.0, 0.5, 1.0), (2.0, 1.0, 1.5, 1.0)):
        assert _core.choose_width(rows, price, none, none, 2.4, 0.5, 1e-4, 1e3, gains=gains)[1] == 1.0


def test_the_reference_width_is_eight_whether_or_not_it_is_offered():
    # Gains of 2 above it, 1 below: S(8) itself is never scaled, whichever widths are on offer.
    rows = np.array([4, 16], np.int32)
    draft = np.array([1.0, 3.0])
    _, tokens, _ = _core.choose_width(
        rows, np.array([1e4, 1e4]), draft, np.zeros(2), 2.0, 0.0, 1e-6, 0.0, gains=(2.0, 2.0, 1.0, 1.0)
    )
    assert tokens == pytest.approx(1 + 2.0 + 2.0 * (3.0 - 2.0))


class GateWorld:
    """Rounds of one token in 5 ms without drafting; drafting adds ``more`` tokens and 12 ms."""

    def __init__(self) -> None:
        self.gate = _core.DraftGate()
        self.gate.begin_request()

    def run(self, rounds: int, more: float, spread: float = 0.0, seed: int = 0) -> list[bool]:
        rng = np.random.default_rng(seed)
        drafted = []
        for _ in range(rounds):
            known = _core.GateInput(1.0, 5000.0, 1 / 5000.0)
            drafted.append(self.gate.decide(known))
            if drafted[-1]:
                tokens = 1.0 + max(0.0, more + spread * rng.standard_normal())
                self.gate.drafted(known, tokens, 17000.0)
                self.gate.outcome(tokens - 1, tokens - 1)
        return drafted


def test_a_drafter_that_pays_runs_and_one_that_does_not_is_probed_ever_less():
    world = GateWorld()
    assert np.mean(world.run(300, 4.0)) > 0.98
    idle = GateWorld().run(4000, 1.0)
    assert np.mean(idle[:200]) < 0.15
    # A probe costs 1.4 tokens here; what probes may cost is 0.5% of the tokens.
    assert np.mean(idle[1000:]) * 1.4 < 0.006
    assert sum(idle[1000:]) >= 3  # but they never stop


def test_probes_are_paid_from_a_credit():
    gate = _core.DraftGate()
    gate.begin_request()
    credit = gate.credit
    assert not gate.pay(credit + 0.01)
    assert gate.credit == credit
    assert gate.pay(credit)
    assert gate.credit == 0.0
    known = _core.GateInput(1.0, 5000.0, 1 / 5000.0)
    for n in range(1, 1000):  # a drafter that loses 1.4 tokens each time: only probes are paid for
        before = gate.credit
        drafted = gate.decide(known)
        earned = min(before + 0.005, 2.0)
        if drafted:
            probe = gate.probing
            assert not probe or earned > 0.0
            gate.drafted(known, 2.0, 17000.0)
            assert gate.credit == pytest.approx(earned - (1.4 if probe else 0.0))
        else:
            assert gate.credit == pytest.approx(earned)
        if n > 5:
            assert not drafted or gate.probing


def test_where_drafting_loses_a_new_kind_of_position_is_only_probed():
    def first_drafts(more: float) -> list[bool]:
        gate = _core.DraftGate()
        gate.begin_request()
        for _ in range(3):  # from here on one kind is familiar
            known = _core.GateInput(1.0, 5000.0, 1 / 5000.0)
            assert gate.decide(known)
            gate.drafted(known, 1.0 + more, 17000.0)
        gate.pay(gate.credit)
        probing = []
        for _ in range(3):
            other = _core.GateInput(2.5, 5000.0, 1 / 5000.0, bin=2)
            drafted = gate.decide(other)
            probing.append(drafted and gate.probing)
            if drafted:
                gate.drafted(other, 2.5, 17000.0)
        return probing

    assert first_drafts(1.0)[0], "the first one is a probe, of the credit that its round brought"
    assert not any(first_drafts(1.0)[1:]), "and the credit is spent"
    assert not any(first_drafts(4.0)), "where drafting pays they are drafts like any other"


@pytest.mark.parametrize("bin", [-1, 4])
def test_a_bin_that_is_none_is_refused(bin):
    with pytest.raises(ValueError, match="0 to 3"):
        _core.GateInput(1.0, 5000.0, 1 / 5000.0, bin=bin)


def test_a_switch_of_workload_is_noticed():
    delays = []
    for seed in range(40):
        world = GateWorld()
        world.run(400 + 17 * seed, 1.5, 0.3, seed)
        after = world.run(400, 4.5, 0.5, seed)
        delays.append(next(i for i in range(380) if np.mean(after[i : i + 20]) > 0.9))
    assert np.mean(delays) < 100
    world = GateWorld()
    world.run(300, 4.5, 0.5)
    lost = world.run(300, 0.5, 0.3)
    assert np.mean(lost[60:]) < 0.05


def test_hopeless_rounds_never_probe():
    gate = _core.DraftGate()
    gate.begin_request()
    for _ in range(500):
        assert not gate.decide(_core.GateInput(1.0, 5000.0, 1 / 5000.0, -0.1))
