"""The arithmetic of bench/: loops, intervals, prompts, flags, and what its programs make of their measurements."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import calibration
import cold_start
import compare
import learned_table
import slow_drafter
import tiny_models as tm
import which_width
import workload_switch
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import text_prompt
from kit import learned_costs
from kit.arms import server_flags
from kit.engine import request_of
from kit.local import Local, Reply, round_ms
from kit.prompts import Prompt, read_prompts
from session_tools import plain_reply

from adaspark.benchmark.stats import evenly, first_difference, geometric_mean, loop_period, loop_start, spread
from adaspark.replay import RECORD
from adaspark.scheduler import Scheduler


@pytest.mark.parametrize("period", [1, 2, 7, 30, 64])
def test_a_loop_at_the_end_is_found_with_its_period(period: int) -> None:
    start = list(range(1000, 1050))
    cycle = list(range(period))
    copies = max(4, math.ceil(24 / period))
    assert loop_period(start + cycle * copies) == period
    assert loop_period(start + cycle * copies + cycle[: period // 2]) == period, "the last copy may be cut"


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [1],
        list(range(200)),
        [1] * 23,  # too short to be told from a drawn line
        [*range(100), *[1, 2, 3, 4, 5, 6, 7] * 3],  # three copies: a list may do that
        [*[1, 2] * 50, *range(50)],  # it found its way out
        list(range(65)) * 4,  # longer than any period looked for
    ],
)
def test_text_without_a_loop_at_its_end_has_no_period(tokens: list[int]) -> None:
    assert loop_period(tokens) is None


@pytest.mark.parametrize("period", [1, 7, 64])
def test_a_loop_begins_after_its_first_copy(period: int) -> None:
    text, copy = list(range(1000, 1010)), list(range(period))
    looped = text + copy * max(4, math.ceil(24 / period)) + copy[: period // 2]
    start = loop_start(looped)
    assert start == len(text) + period
    assert loop_period(looped[:start]) is None
    assert loop_start(text) is None


def test_the_geometric_mean_is_that_of_the_ratios_and_lies_inside_its_interval() -> None:
    estimate = geometric_mean([0.5, 2.0, 1.0, 4.0])
    assert estimate.value == pytest.approx(4 ** (1 / 4))
    assert estimate.low < estimate.value < estimate.high
    assert geometric_mean([0.5, 2.0, 1.0, 4.0]) == estimate, "the bootstrap is seeded"


def test_the_interval_of_equal_ratios_is_a_point() -> None:
    estimate = geometric_mean([1.25] * 10)
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((1.25, 1.25, 1.25))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        estimate = geometric_mean(np.exp(rng.normal(0.1, 0.3, 40)).tolist(), resamples=400)
        covered += estimate.low <= math.exp(0.1) <= estimate.high
    assert 0.88 <= covered / 200 <= 0.99


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [1.0, math.nan]])
def test_no_mean_without_positive_ratios(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one ratio"):
        geometric_mean(ratios)


def test_median_and_quartiles() -> None:
    s = spread([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (s.low, s.median, s.high, s.n) == (2.0, 3.0, 4.0, 5)
    with pytest.raises(ValueError, match="no measurements"):
        spread([])


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1, 2, 3], [1, 2], 2), ([], [1], 0)],
)
def test_where_replies_part(a: list[int], b: list[int], at: int | None) -> None:
    assert first_difference(a, b) == at
    assert first_difference(b, a) == at


def test_prompts_are_spread_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"source": f"s{i // 5}", "turns": [f"p{i}", "second turn"]}) for i in range(10)]
    path.write_text("\n".join(lines) + "\n\n", "utf-8")
    assert [p.text for p in read_prompts(path, 4)] == ["p0", "p2", "p5", "p7"]
    assert {p.source for p in read_prompts(path, 2)} == {"s0", "s1"}
    assert len(read_prompts(path, 100)) == 10
    assert evenly(3, 3) == [0, 1, 2]


def test_arms_of_both_sides() -> None:
    made = [request_of(arm, 8) for arm in ("plain", "chain:3", "adaspark:8:no-text")]
    assert [(r.arm, r.arm_n, r.text, r.n_predict) for r in made] == [
        ("plain", 0, True, 8), ("chain", 3, True, 8), ("adaspark", 8, False, 8),
    ]  # fmt: skip
    assert server_flags("plain", "d.gguf") == []
    assert server_flags("ngram-map-k", None) == ["--spec-type", "ngram-map-k"]
    assert server_flags("draft-dspark:7", "d.gguf") == [
        "--spec-type", "draft-dspark", "-md", "d.gguf", "--spec-draft-n-max", "7",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="needs --drafter"):
        server_flags("draft-dspark", None)


# ------------------------------------------------------------------------------------------------------------- compare


def replies(*ms: float, steps: int = 120, loop: bool = False) -> list[compare.Reply]:
    """One reply a pass, each of this many milliseconds."""
    return [{"steps": steps, "decode_ms": t, "tokens": [1] * 30 if loop else list(range(30))} for t in ms]


def test_a_prompt_s_ratio_is_the_median_of_its_passes() -> None:
    assert compare.median_ratio(replies(50.0), replies(100.0)) == pytest.approx(2.0)
    assert compare.median_ratio(replies(100.0, 50.0, 300.0), replies(90.0, 100.0, 90.0)) == pytest.approx(0.9)


def test_slow_replies_are_told_by_their_lines_the_slowest_first() -> None:
    plain = replies(100.0, 100.0, 100.0)
    pairs = [
        (replies(104.0, 60.0, 105.0), plain),
        (replies(50.0, 50.0, 200.0), plain),
        (replies(125.0, 125.0, 90.0), plain),
        (replies(200.0, 200.0, 200.0, steps=99), replies(100.0, 100.0, 100.0, steps=99)),  # too short to tell
        (replies(125.0, 125.0, 125.0, loop=True), plain),
    ]
    lines = [0, 3, 5, 7, 9]
    assert compare.long_ratios(pairs, lines, looped=False) == [
        (pytest.approx(0.8), 5), (pytest.approx(100 / 104), 0), (pytest.approx(2.0), 3),
    ]  # fmt: skip
    assert compare.long_ratios(pairs, lines, looped=True) == [(pytest.approx(0.8), 9)]


# ---------------------------------------------------------------------------------------------------------- cold start


def test_sequences_bring_every_prompt_to_every_place() -> None:
    prompts = [Prompt(i, "s", f"p{i}") for i in range(6)]
    runs = cold_start.sequences(prompts, 6, 3)
    assert [[p.line for p in run] for run in runs[:2]] == [[0, 1, 2], [1, 2, 3]]
    for place in range(3):
        assert sorted(run[place].line for run in runs) == list(range(6))
    assert [run[0].line for run in cold_start.sequences(prompts, 3, 2)] == [0, 2, 4]


def test_ratios_by_request_are_to_the_arm_that_is_best_over_all() -> None:
    rates = [
        [{"plain": 100.0, "chain:3": 150.0, "adaspark": 75.0}, {"plain": 100.0, "chain:3": 120.0, "adaspark": 180.0}],
        [{"plain": 200.0, "chain:3": 100.0, "adaspark": 200.0}, {"plain": 100.0, "chain:3": 250.0, "adaspark": 250.0}],
    ]
    assert cold_start.best_pinned(rates, ["plain", "chain:3"]) == "chain:3"
    first, second = cold_start.by_request(rates, "adaspark", "chain:3")
    assert first.value == pytest.approx(math.sqrt(0.5 * 2.0))
    assert second.value == pytest.approx(math.sqrt(1.5 * 1.0))


def rounds(n: int, **columns: object) -> np.ndarray:
    out = np.zeros(n, dtype=RECORD)
    for name, values in columns.items():
        out[name] = values
    return out


def test_time_spent_measuring_is_a_share_of_the_rounds_time() -> None:
    record = rounds(3, draft_us=[100.0, 0.0, 0.0], verify_us=[800.0, 2500.0, 500.0], commit_us=100.0, reason=[1, 0, 2])
    assert round_ms(record).tolist() == pytest.approx([1.0, 2.6, 0.6])
    assert cold_start.measuring(Reply([], 3, 4.2, record)) == pytest.approx(1.0 / 4.2)
    assert cold_start.measuring(Reply([], 0, 0.0, rounds(0))) == 0.0


# ------------------------------------------------------------------------------------------------------- learned table


def test_a_slope_has_no_steps_and_a_step_is_after_its_row() -> None:
    slope = {n: 2.0 + 0.3 * n for n in range(1, 33)}
    assert learned_costs.steps(slope) == []
    stairs = {n: t + (1.5 if n > 8 else 0.0) + (3.0 if n > 16 else 0.0) for n, t in slope.items()}
    found = learned_costs.steps(stairs)
    assert [step.rows for step in found] == [8, 16]
    assert found[0].ratio == pytest.approx(stairs[9] / stairs[8])
    assert learned_costs.steps({n: stairs[n] for n in (1, 2, 4, 8, 12, 16)}) == [], "no two widths in a row, no step"


@pytest.mark.parametrize(
    ("learned", "rows", "within"),
    [
        ({4: 3.0, 8: 4.0, 16: 8.0}, 8, True),
        ({4: 3.0, 9: 6.0, 16: 8.0}, 9, True),
        ({4: 3.0, 12: 6.0, 16: 8.0}, 4, False),  # 4 and 12 are equally far: the narrower
        ({7: 3.0, 16: 3.1, 24: 5.0}, 7, False),  # the table does not rise there
        ({4: 3.0, 8: 4.0}, None, False),  # nothing beyond 8 rows was measured
        ({}, None, False),
    ],
)
def test_a_step_is_looked_for_between_priced_widths(learned: dict[int, float], rows: int | None, within: bool) -> None:
    found = learned_costs.find(learned_costs.Step(8, 1.5), learned)
    assert found.rows == rows
    assert found.within_a_row == within
    if rows == 8:
        assert found.ratio == 2.0


def test_errors_of_chosen_prices_are_those_of_the_second_half_that_were_priced_and_filled() -> None:
    first = Reply([], 1, 1.0, rounds(3, verify_price=1.0, verify_us=9.0, rows=4, asked_rows=4))
    record = rounds(
        4, verify_price=[5.0, 11.0, 0.0, 8.0], verify_us=10.0, rows=[4, 4, 4, 4], asked_rows=[4, 4, 4, 8]
    )  # fmt: skip
    assert learned_table.chosen_errors([first, Reply([], 1, 1.0, record)]) == pytest.approx([0.1])


# ----------------------------------------------------------------------------------------------------- workload switch


def served(before: int, tokens: int, ms: float, n: int, looped: bool = False) -> workload_switch.Served:
    """``n`` rounds alike."""
    return workload_switch.Served(before, (tokens,) * n, (ms,) * n, looped)


def test_rounds_are_counted_from_the_switch_on() -> None:
    reply = served(90, 2, 3.0, 30)
    assert reply.between(0, None) == (60, 90.0)
    assert reply.between(100, None) == (40, 60.0)
    assert reply.between(50, 100) == (20, 30.0)
    assert reply.between(0, 90) == (0, 0)
    assert reply.between(200, None) == (0, 0)


def test_late_ratios_leave_out_the_start_loops_and_tails() -> None:
    pairs = [
        (served(0, 1, 9.0, 100), served(0, 2, 1.0, 60)),  # nothing of the live store's is late
        (served(100, 2, 2.0, 40), served(60, 2, 4.0, 80)),  # late: all of one, half of the other
        (served(140, 1, 1.0, 40, looped=True), served(140, 1, 1.0, 40)),
        (served(180, 1, 1.0, 15), served(180, 1, 1.0, 40)),  # 15 tokens are too few
    ]
    assert workload_switch.late_ratios(pairs, 100) == pytest.approx([2.0])
    late = workload_switch.late_ratio(pairs, 100)
    assert late is not None
    assert late.value == pytest.approx(2.0)
    assert workload_switch.late_ratio(pairs[:1], 100) is None


def test_rates_of_a_window_are_pooled_and_unknown_where_nothing_ran() -> None:
    pairs = [(served(0, 1, 2.0, 50), served(0, 1, 4.0, 50)), (served(50, 3, 2.0, 50), served(50, 1, 4.0, 50))]
    assert workload_switch.window_rates(pairs, 0, 100) == pytest.approx((1000.0, 250.0))
    assert all(math.isnan(rate) for rate in workload_switch.window_rates(pairs, 100, None))


# -------------------------------------------------------------------------------------------------------- slow drafter


def test_the_walk_goes_down_to_the_child_that_is_its_row_s_pick() -> None:
    #        0 - 1 - 2
    #        |   ` - 3 - 4
    #        ` - 5
    tokens, parents = [7, 1, 2, 3, 4, 5], [-1, 0, 1, 1, 3, 0]
    assert slow_drafter.walk(tokens, parents, [1, 3, 0, 4, 9, 0]) == [0, 1, 3, 4]
    assert slow_drafter.walk(tokens, parents, [5, 3, 0, 4, 9, 0]) == [0, 5]
    assert slow_drafter.walk(tokens, parents, [6, 1, 1, 1, 1, 1]) == [0]


def test_rounds_driven_from_python_give_the_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    target = load_target(tm.CYCLE)
    prompt = text_prompt(models, tm.CYCLE, 120, 12)
    plain = plain_reply(target, prompt, 61)
    local = Local(target, load_drafter(target, tm.CYCLE, tm.DrafterSpec(taps=(0, 1, 2))))
    scheduler = Scheduler(pinned_rows=4, gating=False)
    for _ in range(2):
        run = slow_drafter.decode(local, scheduler, prompt, 60, 0.0)
        assert list(run.ids) == plain.tokens[1:]
        assert run.drafted == run.rounds < 60


# --------------------------------------------------------------------------------------------------------- which width


def test_a_curve_s_prices_are_the_means_of_its_passes_at_one_context(tmp_path: Path) -> None:
    lines = ["model,kernels,what,context,n,pass,median_ms"]
    for kernels, factor in (("ggml/CUDA0", 1.0), ("llama", 2.0)):
        for context, n, number, ms in (
            (450, 1, 0, 1.0),
            (450, 1, 1, 1.2),
            (450, 9, 0, 3.0),
            (900, 1, 0, 7.0),
            (900, 9, 0, 9.0),
        ):
            lines.append(f"m,{kernels},rows,{context},{n},{number},{factor * ms}")
        lines += [f"m,{kernels},draft,{context},7,0,{factor * 0.3}" for context in (450, 900)]
        lines += [f"m,{kernels},draft,{context},3,0,0.1" for context in (450, 900)]
    path = tmp_path / "verify_cost_small.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    ours, llama = which_width.curves(path, path, None)
    assert (ours.name, llama.name) == ("small, ggml", "small, llama")
    assert ours.contexts == [450, 900]
    table = ours.at(450, 1000, [5.0, 50.0])
    np.testing.assert_allclose(table.verify[:, [1, 5, 9]], np.tile([1100.0, 2050.0, 3000.0], (len(table.verify), 1)))
    np.testing.assert_allclose(table.draft, 300.0)
    assert llama.at(900, 1000, [5.0, 50.0]).draft[0] == pytest.approx(600.0)
    share = which_width.curves(path, None, 0.2)[0]
    assert share.at(900, 1000, [5.0, 50.0]).draft[0] == pytest.approx(1400.0)


def test_calibration_pools_rounds_by_where_they_are() -> None:
    def round_(reply: int, kind: str, accepted: int, expected: float, **kw: bool) -> calibration.Round:
        state = {"chosen": True, "looped": False, "loops": False} | kw
        return calibration.Round(
            reply=reply, kind=kind, accepted=accepted, expected=expected, fitted_loss=1.0, head_loss=1.0 + reply, labelled=2,
            **state,
        )  # fmt: skip

    rounds = [
        round_(0, "draft", 3, 2.0),
        round_(0, "draft", 9, 1.0, chosen=False),
        round_(1, "text", 2, 4.0),
        round_(1, "plain", 0, 0.0),
        round_(2, "text", 5, 4.0, loops=True),
        round_(2, "text", 31, 25.0, loops=True, looped=True),
    ]
    run = calibration.Run(rounds, tokens=100, time_us=1e6)
    assert run.ratio == pytest.approx(5 / 6)
    assert run.predicted_better() == [True, True]
    told = dict(calibration.lines([run]))
    assert told["replies without a loop"] == "5 / 6.0 = 0.833"
    assert told["their drafted rounds"] == told["... of the first 6 replies"] == "3 / 2.0 = 1.500"
    assert told["before a loop"] == "5 / 4.0 = 1.250"
    assert told["inside a loop"] == "31 / 25.0 = 1.240"
    assert told["all"] == "41 / 35.0 = 1.171"
    assert told["runs within 3%"] == "0 of 1"
    assert told["log loss, fitted / head"] == "0.5000 / 1.0000"
    assert told["tokens a second"] == "100.0"
