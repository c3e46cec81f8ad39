"""The pure functions of bench/: loops, intervals, prompts, flags."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

from kit.arms import server_flags
from kit.engine import request_of
from kit.prompts import read_prompts

from adaspark.benchmark.stats import evenly, first_difference, geometric_mean, loop_period, spread


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
