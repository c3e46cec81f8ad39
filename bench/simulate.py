"""Simulated serving: the scheduler against every pinned arm on known cost laws, from an empty store.

``python bench/simulate.py`` prints, for each cost law, tokens per second over the best pinned arm (plain decoding and
trees of 2 to 48 rows) after the first request and over all of them, the share of the first request spent measuring
widths, how close the chosen width's price comes to its time, how well a switch of workload, a slowdown of the machine
or a bad minute at the start is made good, and requests at two contexts in turns, without and with a cold start; each
with a 95% interval over seeds.
The world is bench/cpp/world.h: which candidate is accepted is drawn from a known softmax, verify times follow a known
law with jitter, bursts and drift.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kit.native import program

LAWS = [
    "lfm-dense",
    "lfm-routed",
    "qwen-4b",
    "qwen-8b",
    "cpu-2core",
    "amx-2core",
    "llama-2core",
    "gpu-flat",
    "never-pays",
    "inversion",
]
PINNED = ["1", "2", "3", "4", "6", "8", "12", "16", "24", "32", "48"]
Run = dict[str, Any]


def speed(requests: list[dict[str, Any]]) -> float:
    return 1e6 * sum(q["tokens"] for q in requests) / sum(q["us"] for q in requests)


def interval(values: list[float]) -> str:
    """Mean and 95% interval of it (bootstrap over seeds)."""
    a = np.array(values)
    draws = np.random.default_rng(0).choice(a, (4000, a.size)).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{a.mean():.3f} [{low:.3f}, {high:.3f}]"


class Simulator:
    def __init__(self, seeds: int, requests: int, jobs: int) -> None:
        self.path = program("simulate")
        self.seeds, self.requests, self.jobs = seeds, requests, jobs

    def run(self, law: str, arm: str, seed: int, *extra: str) -> Run:
        command = [
            str(self.path),
            f"--law={law}",
            f"--arm={arm}",
            f"--seed={seed}",
            f"--requests={self.requests}",
            *extra,
        ]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    def all(self, jobs: list[tuple[str, ...]]) -> list[Run]:
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(lambda job: self.run(job[0], job[1], int(job[2]), *job[3:]), jobs))

    def arms(self, law: str, arms: list[str], *extra: str) -> dict[str, list[Run]]:
        runs = self.all([(law, arm, str(seed), *extra) for arm in arms for seed in range(self.seeds)])
        return {arm: runs[i * self.seeds : (i + 1) * self.seeds] for i, arm in enumerate(arms)}


def against_pinned(simulator: Simulator, law: str) -> dict[str, Any]:
    runs = simulator.arms(law, ["adaspark", *PINNED, "text"])

    def ratio(part: slice) -> tuple[str, list[float]]:
        best = max(PINNED, key=lambda arm: speed([q for r in runs[arm] for q in r["requests"][part]]))
        return best, [
            speed(a["requests"][part]) / speed(b["requests"][part])
            for a, b in zip(runs["adaspark"], runs[best], strict=True)
        ]

    best, after = ratio(slice(1, None))
    _, everything = ratio(slice(None))
    first = [r["requests"][0] for r in runs["adaspark"]]
    later = [q for r in runs["adaspark"] for q in r["requests"][1:]]
    return {
        "best": best,
        "after": after,
        "all": everything,
        "cold": [q["measuring_us"] / q["us"] for q in first],
        "plain": [
            speed(a["requests"][1:]) / speed(b["requests"][1:])
            for a, b in zip(runs["adaspark"], runs["1"], strict=True)
        ],
        "price": [float(np.mean([q["price"] for q in r["requests"][4:]])) for r in runs["adaspark"]],
        "price error": [float(np.mean([q["price_error"] for q in r["requests"][4:]])) for r in runs["adaspark"]],
        "drafted": sum(q["drafted"] for q in later) / sum(q["rounds"] for q in later),
        "text": sum(q["text"] for q in later) / sum(q["rounds"] for q in later),
    }


def after_a_switch(simulator: Simulator, law: str, before: str, after: str) -> list[float]:
    """Speed of the second half of a reply that changes its workload at the middle, over that of the better fixed kind.

    The yardstick is the best of plain decoding and an always-drafting scheduler on the same text.
    """
    at = simulator.requests - 1
    extra = (f"--workload={before}", f"--to={after}", f"--switch-at={at}")
    runs = simulator.arms(law, ["adaspark", "1", "always"], *extra)
    out = []
    for mine, *others in zip(runs["adaspark"], runs["1"], runs["always"], strict=True):
        out.append(speed([mine["requests"][at]]) / max(speed([o["requests"][at]]) for o in others))
    return out


def after_a_slowdown(simulator: Simulator, law: str, best: str) -> list[float]:
    """Speed over the best pinned arm when the machine becomes 50% slower for good, at the same token for both."""
    runs = simulator.arms(law, ["adaspark", best], "--slow-at=2500")
    return [
        speed(a["requests"][2:]) / speed(b["requests"][2:]) for a, b in zip(runs["adaspark"], runs[best], strict=True)
    ]


def after_a_bad_minute(simulator: Simulator, law: str, best: str) -> list[float]:
    """Speed over the best pinned arm after a first request in which rounds 5 to 10 took twice as long."""
    runs = simulator.arms(law, ["adaspark", best], "--busy=4:10")
    return [
        speed(a["requests"][1:]) / speed(b["requests"][1:]) for a, b in zip(runs["adaspark"], runs[best], strict=True)
    ]


def at_two_contexts(simulator: Simulator, law: str, cold: float) -> tuple[list[float], list[float], list[float]]:
    """Requests at 300 and 2,000 tokens in turns, from the third on: speed over the best pinned arm, how far off the
    prices of the measured widths are at both contexts, on average, and the dearest of them over its true time. ``cold``:
    times that one row takes right after a prompt."""
    runs = simulator.arms(law, ["adaspark", *PINNED], "--prompts=300:2000", f"--cold={cold}")
    best = max(PINNED, key=lambda arm: speed([q for r in runs[arm] for q in r["requests"][2:]]))
    mine = [r["requests"][2:] for r in runs["adaspark"]]
    return (
        [speed(a) / speed(b["requests"][2:]) for a, b in zip(mine, runs[best], strict=True)],
        [float(np.mean([q["off"] for q in r])) for r in mine],
        [float(np.mean([q["dear"] for q in r])) for r in mine],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--laws", default=",".join(LAWS), help="cost laws, comma-separated")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=8, help="requests a run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    simulator = Simulator(options.seeds, options.requests, options.jobs)
    show: Callable[[str], None] = print
    results: dict[str, Any] = {}
    show("speed over the best pinned arm, mean over seeds [95% interval]; shares of rounds after the first request")
    head = f"{'law':11s} {'best':>5s} {'after the first request':>24s} {'all requests':>22s} {'over plain':>22s} "
    show(head + f"{'cold start':>22s} {'drafted':>8s} {'text':>6s}")
    for law in options.laws.split(","):
        r = results[law] = against_pinned(simulator, law)
        show(
            f"{law:11s} {r['best']:>5s} {interval(r['after']):>24s} {interval(r['all']):>22s} {interval(r['plain']):>22s} "
            f"{interval(r['cold']):>22s} {r['drafted']:8.2f} {r['text']:6.2f}"
        )
    show("\nthe chosen width's price from the fifth request on: median of price / time, and of |price / time - 1|")
    for law in options.laws.split(","):
        show(f"{law:11s} {interval(results[law]['price']):>24s} {interval(results[law]['price error']):>24s}")
    show("\na reply that changes its workload half-way, over the better of plain and always drafting")
    for law, before, after in (
        ("cpu-2core", "hard", "copy"),
        ("lfm-routed", "hard", "code"),
        ("lfm-routed", "code", "hard"),
        ("gpu-flat", "code", "hard"),
    ):
        if law in results:
            values = results[law][f"{before} to {after}"] = after_a_switch(simulator, law, before, after)
            show(f"{law:11s} {before:>6s} to {after:6s} {interval(values):>24s}")
    show(
        "\na machine 50% slower from the 2,500th token of the run on, over the best pinned arm; from the third request on"
    )
    for law in options.laws.split(","):
        values = results[law]["slowdown"] = after_a_slowdown(simulator, law, results[law]["best"])
        show(f"{law:11s} {interval(values):>24s}")
    show("\na first request that met a busy machine, over the best pinned arm; after it")
    for law in options.laws.split(","):
        values = results[law]["bad minute"] = after_a_bad_minute(simulator, law, results[law]["best"])
        show(f"{law:11s} {interval(values):>24s} {'lowest':>10s} {min(values):.3f}")
    show("\nrequests at 300 and 2,000 tokens in turns, over the best pinned arm; prices off their times, and dearest")
    for law in ("cpu-2core", "amx-2core"):
        for cold in (1.0, 2.2):
            if law in results:
                rows = results[law][f"two contexts, {cold} cold"] = at_two_contexts(simulator, law, cold)
                start = "" if cold == 1.0 else "cold starts"
                show(f"{law:11s} {start:11s} " + " ".join(f"{interval(r):>24s}" for r in rows))
    if options.out is not None:
        options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
