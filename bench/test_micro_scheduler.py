"""What a scheduler round costs: ``pytest bench/test_micro_scheduler.py --benchmark-only -s``.

Everything is timed inside bench/cpp/micro.cpp over a stream of varied rounds on one core; pytest-benchmark's own times
(of the whole program) mean nothing here, its ``extra_info`` holds the nanoseconds. A loaded machine fails the bars: the
program prints, beside the figures over all rounds, those of its quietest window of 1,000 rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kit.native import program

# Nanoseconds: stream or part -> (median, p99).
BARS = {
    "text": (1000.0, 3000.0),
    "drafter_only": (800.0, 3000.0),
}
# The paper's cost model (section 3.2): 11 ns a width priced, 44 ns a training step.
PRICE_ONE_WIDTH = 11.0
TRAINING_STEP = 44.0


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    done = subprocess.run([str(program("micro"))], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def report(name: str, series: dict[str, float]) -> str:
    return f"{name:28s} median {series['median']:8.1f} ns   p99 {series['p99']:8.1f} ns"


def keep(benchmark: Any, figures: dict[str, Any]) -> None:
    """One call that costs nothing, so that pytest-benchmark stores the figures."""
    benchmark.extra_info.update(figures)
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.parametrize("stream", ["text", "drafter_only", "repetitive"])
def test_whole_round(benchmark: Any, figures: dict[str, Any], stream: str) -> None:
    data = figures["streams"][stream]
    keep(benchmark, data)
    print(
        f"\n{stream}: {data['candidates']:.0f} candidates, {data['text_nodes']:.1f} text nodes, {data['rows']:.1f} rows, "
        f"{data['tokens']:.2f} tokens a round ({figures['kernels']})"
    )
    for part in ("decide", "plan", "observe", "round", "quiet_round"):
        print(" ", report(part, data[part]))
    if "round_of_63_text_nodes" in data:
        full = data["round_of_63_text_nodes"]
        print(" ", report("round_of_63_text_nodes", full), f"({full['n']} rounds)")
    if stream in BARS:
        median, p99 = BARS[stream]
        assert data["quiet_round"]["median"] < median
        assert data["quiet_round"]["p99"] < p99


PARTS = [
    "price_24_widths",
    "cost_training_step",
    "price_candidates",
    "order_64_rows",
    "order_16_rows",
    "layout_16_rows",
    "choose_of_24",
    "learn_one_parent",
    "text_chains",
    "text_chains_full",
    "append",
]


@pytest.mark.parametrize("part", PARTS)
def test_part(benchmark: Any, figures: dict[str, Any], part: str) -> None:
    series = figures["parts"][part]
    keep(benchmark, series)
    print("\n ", report(part, series))
    if part == "price_24_widths":
        assert series["median"] / 24 < PRICE_ONE_WIDTH
    elif part == "cost_training_step":
        assert series["median"] < TRAINING_STEP
