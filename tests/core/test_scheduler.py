"""csrc/core/scheduler: whole rounds, what outlives a request, and the choices where the reference engine has a quirk."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from core.driver import Block, make_scheduler, random_block, run_round
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspark import _core


def serve(core: _core.Scheduler, seed: int, requests: int, rounds: int = 60, **kwargs) -> list:
    """Requests of random length; everything follows from the seed."""
    out = []
    for q in range(requests):
        rng = np.random.default_rng((seed, q))
        core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 2000)
        n = int(rng.integers(5, rounds))
        out += [run_round(core, rng, random_block(rng, 7, 9), last=i == n - 1, **kwargs) for i in range(n)]
        core.end_request()
    return out


def fingerprint(rounds: list) -> list:
    return [(r.decision, r.report, r.tree["tokens"].tolist(), r.path) for r in rounds]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 4))
def test_stop_and_resume_equals_never_stopping(seed, before):
    never = make_scheduler()
    serve(never, seed, before)
    stopped = make_scheduler()
    serve(stopped, seed, before)
    resumed = make_scheduler()
    assert resumed.load(stopped.save())
    assert resumed.save() == stopped.save()
    assert fingerprint(serve(resumed, seed + 1, 3)) == fingerprint(serve(never, seed + 1, 3))
    assert resumed.save() == never.save()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40))
def test_saving_in_the_middle_of_a_request_carries_what_was_learned_so_far(seed, rounds):
    abandoned = make_scheduler()
    serve(abandoned, seed, 2)
    rng = np.random.default_rng(seed)
    abandoned.begin_request(np.arange(9, dtype=np.int32), 1, 2000)
    for _ in range(rounds):
        run_round(abandoned, rng, random_block(rng, 7, 9))
    resumed = make_scheduler()
    assert resumed.load(abandoned.save())
    assert fingerprint(serve(resumed, seed, 2)) == fingerprint(serve(abandoned, seed, 2))


def test_damaged_and_foreign_states_are_refused_and_change_nothing():
    core = make_scheduler()
    serve(core, 3, 2)
    good = core.save()
    other = make_scheduler()
    serve(other, 4, 1)
    before = other.save()
    for at in (0, 4, 8, 20, len(good) // 2, len(good) - 1):
        bad = bytearray(good)
        bad[at] ^= 1
        assert not other.load(bytes(bad))
    for bad in (b"", b"ADSP", good[:-1], good + b"\0", good[: len(good) // 2]):
        assert not other.load(bad)
    assert not make_scheduler(max_rows=32).load(good)
    assert not make_scheduler(block=9).load(good)
    assert other.save() == before
    assert other.load(good)


def with_last_number(state: bytes, value: float) -> bytes:
    """The state with another budget for measuring, the last number before the checksum (FNV-1a)."""
    body = state[:-16] + struct.pack("<d", value)
    h = 0xCBF29CE484222325
    for byte in body:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return body + struct.pack("<Q", h)


@pytest.mark.parametrize("budget", [-1e300, -1.5, 8.5, float("nan")])
def test_a_budget_that_no_scheduler_has_is_refused(budget):
    core = make_scheduler()
    serve(core, 3, 1)
    assert core.load(with_last_number(core.save(), 0.5))
    assert not core.load(with_last_number(core.save(), budget))


def cold_start(core: _core.Scheduler, seed: int, **kwargs) -> list:
    rng = np.random.default_rng(seed)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 2000)
    return [run_round(core, rng, random_block(rng, 7, 9), **kwargs) for _ in range(250)]


def test_cold_start_measures_narrow_widths_first_and_still_decodes():
    rounds = cold_start(make_scheduler(), 1, verify_us=lambda _: 10_000.0, draft_us=1000.0)
    asked = [r.report["asked_rows"] for r in rounds[:120] if r.report["reason"] == "measuring"]
    assert asked[:4] == [1, 1, 1, 1]  # the first of a request runs cold and is not learned from
    wider = [n for n in asked[4:] if n > 1]  # one row is timed again soon
    assert wider == sorted(wider)
    assert {wider.count(n) for n in set(wider)} == {3}
    assert all(len(r.path) >= 1 for r in rounds)


def test_nothing_is_measured_in_a_round_that_is_not_timed():
    core = make_scheduler()
    flat = {"verify_us": lambda n: 10_000.0 + n, "draft_us": 100.0}
    rng = np.random.default_rng(2)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    rounds = [run_round(core, rng, random_block(rng, 7, 9), **flat) for _ in range(14)]
    core.end_request()
    asked = [r.report["asked_rows"] for r in rounds if r.report["reason"] == "measuring"]
    assert max(asked) > 1
    assert any(w["high"] > 1 and w["samples"] < 3 for w in core.widths)  # there is more to measure
    for q in range(20):
        rng = np.random.default_rng((4, q))
        core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
        assert run_round(core, rng, random_block(rng, 7, 9), **flat).report["reason"] != "measuring"
        core.end_request()


def test_every_draft_of_an_unknown_drafter_is_paid_from_the_budget():
    """A draft costs six tokens' time: the budget of measuring, 0.5% of the tokens, is in debt by one after each."""
    core = make_scheduler(text=False)
    rng = np.random.default_rng(5)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    tokens, drafts, rounds = 0, [], []
    for _ in range(700):
        r = run_round(core, rng, random_block(rng, 7, 5000), lambda _: 8, lambda n: 5_000.0 * n, 30_000.0)
        rounds.append((tokens, r))
        drafts += [tokens] if r.decision[0] else []
        tokens += len(r.path)
    assert drafts[1] - drafts[0] > 150
    assert drafts[2] - drafts[1] > 150
    measured = [
        t for t, r in rounds if t > drafts[2] and r.report["reason"] == "measuring" and r.report["asked_rows"] > 1
    ]
    assert not measured or measured[0] - drafts[2] > 150  # the third, after which its price is known, is paid too


def test_a_wide_width_is_measured_only_if_it_could_win():
    linear = cold_start(make_scheduler(), 2, verify_us=lambda n: 10_000.0 * n, draft_us=20_000.0)
    assert max(len(r.tree["tokens"]) for r in linear) <= 8
    flat = cold_start(make_scheduler(), 2, verify_us=lambda n: 10_000.0 + n, draft_us=100.0)
    assert max(len(r.tree["tokens"]) for r in flat) >= 32


def test_a_width_whose_first_time_rules_it_out_is_not_measured_again():
    rounds = cold_start(make_scheduler(), 2, verify_us=lambda n: 10_000.0 if n <= 4 else 80_000.0, draft_us=100.0)
    asked = [r.report["asked_rows"] for r in rounds if r.report["reason"] == "measuring"]
    assert (asked.count(2), asked.count(4)) == (3, 3)
    assert asked.count(8) == 1
    assert max(asked) == 8


def test_without_gating_every_round_drafts():
    for r in serve(make_scheduler(gating=False), 5, 2, verify_us=lambda n: 10_000.0 * n):
        assert r.report["kind"] == "draft"


def test_round_kinds_on_a_device_where_drafting_never_pays():
    core = make_scheduler()
    serve(core, 6, 4, verify_us=lambda n: 5000.0 * n, draft_us=60_000.0)
    kinds = [r.report["kind"] for r in serve(core, 7, 4, verify_us=lambda n: 5000.0 * n, draft_us=60_000.0)]
    assert kinds.count("draft") <= 0.05 * len(kinds)


def test_a_text_round_needs_no_drafter():
    core = make_scheduler(block=0)
    passage = np.random.default_rng(1).integers(0, 5000, 40)
    text = np.concatenate([passage] * 6).astype(np.int32)
    at = 100
    core.begin_request(text[:at], int(text[at]), 500)
    kinds = []
    while at < len(text) - 40:
        assert not core.decide(0)[0]
        tree = core.plan()
        kinds.append(core.report["kind"])
        path = [0]
        while len(path) < len(tree["tokens"]) and tree["tokens"][len(path)] == text[at + len(path)]:
            path.append(len(path))
        at += len(path)
        core.observe(np.array(path, np.int32), int(text[at]), 1.0, 10_000.0 + 200.0 * len(tree["tokens"]), 10.0, False)
    assert "text" in kinds
    assert at / len(kinds) > 3  # several tokens a round


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 64])
def test_pinned_rows_are_obeyed_and_nothing_is_measured(rows):
    rounds = serve(make_scheduler(pinned_rows=rows, exploration=False), 8, 2)
    assert {r.report["reason"] for r in rounds} == {"pinned"}
    want = [min(rows, 1 + len(r.candidates["order"])) for r in rounds]
    assert [len(r.tree["tokens"]) for r in rounds] == want
    assert {r.report["kind"] for r in rounds} == ({"plain"} if rows == 1 else {"draft"})


def test_a_chain_of_picks():
    for r in serve(make_scheduler(pinned_rows=4, siblings=False, text=False), 9, 1):
        assert r.tree["parents"].tolist() == [-1, 0, 1, 2]
        assert r.tree["candidates"].tolist() == [-1, 0, 8, 16]


def test_the_room_of_a_round_caps_its_rows():
    core = make_scheduler(gating=False)
    rng = np.random.default_rng(0)
    core.begin_request(np.arange(30, dtype=np.int32), 1, 500)
    for _ in range(40):
        run_round(core, rng, random_block(rng, 7, 9), verify_us=lambda n: 10_000.0 + n)
    held = core.incumbent
    for room in (1, 2, 3, 5):
        core.decide(room)
        block = random_block(rng, 7, 9)
        tree = core.plan_block(
            np.array(block.tokens, np.int32).reshape(-1),
            np.array(block.values, np.float32).reshape(-1),
            np.array(block.confidence, np.float32),
        )
        assert len(tree["tokens"]) <= room
        core.observe(np.array([0], np.int32), 3, 100.0, 10_000.0, 1.0, False)
        assert core.incumbent == held  # a cut offer says nothing about the width to hold


def test_stop_tokens_never_take_a_row_but_stay_in_their_softmax():
    rounds = serve(make_scheduler(pinned_rows=40, stop_tokens=[2]), 10, 2)
    assert all(2 not in r.tree["tokens"][1:] for r in rounds)
    below_stop = 0
    for r in rounds:
        c = r.candidates
        stops = np.flatnonzero(c["tokens"] == 2)
        assert (c["q"][stops] > 0).all()
        assert (c["path_q"][stops] == 0).all()
        below_stop += int(np.isin(c["parents"], stops).sum())
    assert below_stop > 0


def test_exploration_gives_the_last_row_of_every_sixteenth_round_with_text_to_a_text_node():
    rounds = serve(make_scheduler(pinned_rows=6), 14, 1, rounds=400)
    with_text = [r for r in rounds if r.report["text_nodes"] > 0]
    assert all(not r.report["explored"] for i, r in enumerate(with_text) if (i + 1) % 16)
    explored = [r for r in with_text if r.report["explored"]]
    assert explored
    for r in explored:
        last = int(r.tree["candidates"][np.argmax(r.tree["ranks"])])
        assert r.candidates["evidence"][last] == 3
        plain_order = sorted(
            (i for i in range(len(r.candidates["q"])) if r.candidates["path_q"][i] > 0),
            key=lambda i: (-r.candidates["path_q"][i], i),
        )
        assert set(r.tree["candidates"][1:].tolist()) - set(plain_order[:5]) == {last}
    for r in serve(make_scheduler(pinned_rows=6, exploration=False), 14, 1, rounds=400):
        assert not r.report["explored"]


def test_the_last_round_of_a_reply_teaches_no_acceptance_and_no_rate():
    core = make_scheduler(pinned_rows=8)
    rng = np.random.default_rng(3)
    core.begin_request(np.arange(30, dtype=np.int32), 1, 500)
    for _ in range(20):
        run_round(core, rng, random_block(rng, 7, 9))
    before = core.acceptance
    rate = core.rate
    run_round(core, rng, random_block(rng, 7, 9), last=True)
    for key, value in core.acceptance.items():
        np.testing.assert_array_equal(value, before[key])
    assert core.rate == rate


# Where the reference engine has a quirk: the choice taken, and a test of it (docs/scheduler.md).


def flat(n: int) -> float:
    return 10_000.0 + 20.0 * n


def test_measurement_rounds_do_not_move_the_incumbent():
    core = make_scheduler(gating=False)
    rng = np.random.default_rng(1)
    core.begin_request(np.arange(30, dtype=np.int32), 1, 5000)
    measured = followed = 0
    for _ in range(300):
        before = core.incumbent
        r = run_round(core, rng, random_block(rng, 7, 9), verify_us=flat)
        if r.report["reason"] == "measuring":
            measured += 1
            assert core.incumbent == before
        else:  # but for the rounds in which standing evidence moves it
            followed += core.incumbent == r.report["asked_rows"]
    assert measured > 15
    assert followed > 0.97 * (300 - measured)


def test_the_incumbent_is_the_width_asked_for_even_when_the_tree_came_out_short():
    core = make_scheduler(block=1, text=False, gating=False, max_rows=16)
    rng = np.random.default_rng(2)
    core.begin_request(np.arange(30, dtype=np.int32), 1, 5000)
    for _ in range(120):
        r = run_round(core, rng, random_block(rng, 1, 9), verify_us=lambda n: 10_000.0 - 100.0 * n, draft_us=100.0)
    assert r.report["reason"] == "chosen"
    assert core.incumbent == r.report["asked_rows"]


def test_the_first_incumbent_is_the_widest_offered_once_and_is_kept_between_requests():
    core = make_scheduler()
    serve(core, 12, 2, verify_us=flat, draft_us=500.0)
    held = core.incumbent
    assert held > 0
    core.begin_request(np.arange(30, dtype=np.int32), 1, 500)
    assert core.incumbent == held


def test_both_estimates_are_scored_with_the_probabilities_the_tree_was_built_with():
    """The guard sees a whole round before the fitted model has learned anything of it."""
    core = make_scheduler(pinned_rows=8, text=False)
    rng = np.random.default_rng(4)
    core.begin_request(np.arange(30, dtype=np.int32), 1, 5000)
    for _ in range(400):
        r = run_round(core, rng, random_block(rng, 7, 5000))
    before = core.acceptance["guard_fitted"]
    while True:
        r = run_round(core, rng, random_block(rng, 7, 5000))
        if len(r.path) >= 4 and r.report["fitted"]:
            break
        before = core.acceptance["guard_fitted"]
    want = before
    nodes = [int(c) for c in r.tree["candidates"][r.path]]
    for i, parent in enumerate(nodes):
        children = np.flatnonzero(r.candidates["parents"] == parent)
        if children.size == 0:
            continue
        token = int(r.candidates["tokens"][nodes[i + 1]]) if i + 1 < len(nodes) else r.next_token
        hit = r.candidates["tokens"][children] == token
        q = r.candidates["q"][children].astype(float)
        want = want * 0.5 ** (1 / 256) - float(np.log(np.where(hit, q, 1 - q)).sum())
    assert core.acceptance["guard_fitted"] == pytest.approx(want, rel=1e-5)


def test_precision_counts_every_token_of_the_prompt():
    core = make_scheduler()
    passage = list(range(20))
    core.begin_request(np.array(passage * 5, np.int32), 0, 100)
    # From the second pass on every token was proposed by a copy, and rightly.
    assert core.precision[3] > 0.95


def test_gains_learn_from_chosen_and_measured_rounds_but_not_from_explored_ones():
    taught = make_scheduler(pinned_rows=16)
    serve(taught, 13, 2)
    assert any(abs(g - 1.0) > 0.02 for g in taught.gains)
    off = make_scheduler(pinned_rows=16, gains=False)
    serve(off, 13, 2)
    assert off.gains == (1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    "switch", ["text", "acceptance", "offset", "exploration", "law", "rate", "gains", "margin", "siblings", "gating"]
)
def test_every_mechanism_switches_off_alone(switch):
    # Exploration needs candidates left without a row, and sixteen rounds with text.
    base, stream = ({"pinned_rows": 6}, (14, 1, 400)) if switch == "exploration" else ({}, (14, 3, 150))
    on = fingerprint(serve(make_scheduler(**base), *stream))
    core = make_scheduler(**base, **{switch: False})
    rounds = serve(core, *stream)
    assert fingerprint(rounds) != on
    state = core.acceptance
    if switch == "text":
        assert all(r.report["text_nodes"] == 0 for r in rounds)
    elif switch == "acceptance":
        assert not any(r.report["fitted"] for r in rounds)
        assert not state["bucket_labels"].any()
    elif switch == "offset":
        assert state["offset"] == 0.0
    assert all(math.isfinite(r.report["tokens"]) for r in rounds)


@pytest.mark.parametrize(("slope", "worth"), [(150.0, (0.5, 1.3)), (0.0, (0.0, 0.0))])
def test_positions_are_worth_drafting_while_a_row_below_them_may_pay(slope: float, worth: tuple[float, float]) -> None:
    """``enough`` is what the cheapest further row costs, in tokens at the long-run rate; once 16 rows have a price."""
    core = make_scheduler(text=False)
    rng = np.random.default_rng(21)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    rounds = [
        run_round(core, rng, random_block(rng, 7, 5000), lambda _: 0, lambda rows: 10_000.0 + slope * rows, 1000.0)
        for _ in range(300)
    ]
    drafted = [r.decision for r in rounds if r.decision[0]]
    assert [enough for _, _, _, enough in drafted[:5]] == [0.0] * 5
    row = 150.0 * core.rate
    assert worth[0] <= np.median([enough / row for _, _, _, enough in drafted[-50:]]) <= worth[1]


def test_a_block_cut_short_says_nothing_of_the_reach_of_a_width() -> None:
    core = make_scheduler(text=False)
    rng = np.random.default_rng(22)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    for _ in range(400):
        block = random_block(rng, 7, 5000)
        cut = Block(block.tokens[:2], block.values[:2], block.confidence[:2])
        r = run_round(core, rng, cut, lambda _: 0, lambda rows: 10_000.0 + rows, 1000.0)
        assert r.report["reason"] != "measuring" or len(r.tree["tokens"]) == r.report["asked_rows"]
    assert [width["high"] for width in core.widths][-1] == 64


def test_loading_leaves_nothing_of_what_was_learned_before() -> None:
    def served(prompt: int) -> _core.Scheduler:
        core = make_scheduler()
        rng = np.random.default_rng(23)
        core.begin_request(rng.integers(0, 9, prompt).astype(np.int32), 1, 200)
        for _ in range(60):
            run_round(core, rng, random_block(rng, 7, 9))
        core.end_request()
        return core

    state = served(30).save()
    used = served(3000)  # times at contexts that the other has never seen
    assert used.load(state)
    assert used.save() == state


def test_a_probe_verifies_what_it_drafted_while_it_can_pay() -> None:
    """No pick is ever right, so drafting does not pay; what looks again runs two rows all the same, now and then."""
    core = make_scheduler(text=False)
    rng = np.random.default_rng(24)
    core.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    rounds = [
        run_round(core, rng, random_block(rng, 7, 5000), lambda _: 8, lambda rows: 9_000.0 + 1_000.0 * rows, 3000.0)
        for _ in range(600)
    ]
    probes = [len(r.tree["tokens"]) for r in rounds if r.decision[1] and r.report["reason"] == "chosen"]
    assert len(probes) >= 3
    assert set(probes) == {1, 2}
    # A block is 3 ms and a second row 1 ms, of 10 ms a token; 0.5% of the tokens, and the last one may be on credit.
    assert sum(0.3 + 0.1 * (rows - 1) for rows in probes) <= 0.3 + 0.005 * len(rounds) + 0.8
