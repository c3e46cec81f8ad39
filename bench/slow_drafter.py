"""Where speculation cannot pay, is the arm adaspark as fast as plain decoding? The drafter is slowed down on purpose.

Rounds are driven from Python, by ``adaspark.Scheduler`` on the engine's target and drafter, so that a delay can be put
into each draft; plain decoding runs through the same loop. Two arms of the scheduler: ``no text``, where nothing but the
slow drafter proposes and plain rounds are the best there is, and ``text``, the default, which may still win by the
request's own text. Each serves its requests from an empty store, the arms in a random order for each prompt; the first
request, in which the delay is found out, is told apart.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from kit.engine import add_load_options, add_output_options, load_of
from kit.local import Local
from kit.page import Table, ran_on, read_results
from kit.prompts import read_prompts
from kit.show import Bar, Lines

from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.benchmark.stats import geometric_mean
from adaspark.scheduler import Block, RoundTimes, Scheduler

ARMS = ("plain", "no text", "text")


@dataclass(frozen=True, slots=True)
class Run:
    """One reply."""

    tokens: int  # after the first
    ms: float  # first token to last
    rounds: int
    drafted: int  # rounds that ran the drafter
    ids: tuple[int, ...] = ()  # the tokens

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.ms * 1e3


def decode(local: Local, scheduler: Scheduler, prompt: Sequence[int], n_predict: int, delay_ms: float) -> Run:
    """A greedy reply of exactly ``n_predict`` tokens after the first, rounds driven by the scheduler."""
    target, drafter = local.target, local.drafter
    target.clear()
    anchor = int(np.argmax(target.prefill(prompt)))
    scheduler.begin_request(prompt, anchor, n_predict)
    ids: list[int] = []
    rounds = drafted = 0
    start = time.perf_counter()
    while len(ids) < n_predict:
        decision = scheduler.decide(min(target.max_rows, n_predict - len(ids)))
        begin = time.perf_counter()
        block = None
        if decision.draft and drafter is not None:
            block = Block(*drafter.draft(anchor, drafter.n_draft))
            time.sleep(delay_ms / 1e3)
            drafted += 1
        tree = scheduler.plan(block)
        planned = time.perf_counter()
        picks, _ = target.verify(tree.tokens, tree.parents)
        path = walk(tree.tokens.tolist(), tree.parents.tolist(), picks.tolist())
        verified = time.perf_counter()
        target.commit(path)
        committed = time.perf_counter()
        ids += [int(picks[row]) for row in path]
        anchor = ids[-1]
        rounds += 1
        times = RoundTimes(*(1e6 * t for t in (planned - begin, verified - planned, committed - verified)))
        scheduler.observe(path, anchor, times, last=len(ids) >= n_predict)
    ms = (time.perf_counter() - start) * 1e3
    scheduler.end_request()
    return Run(len(ids), ms, rounds, drafted, tuple(ids))


def walk(tokens: Sequence[int], parents: Sequence[int], picks: Sequence[int]) -> list[int]:
    """The accepted rows: from the anchor to the child that is its row's pick, as far as there is one."""
    path = [0]
    for row in range(1, len(tokens)):  # depth-first: a row comes after its parent
        if parents[row] == path[-1] and tokens[row] == picks[path[-1]]:
            path.append(row)
    return path


def main() -> None:
    args = _arguments()
    local = Local.open(load_of(args))
    assert local.drafter is not None
    rng = random.Random(args.seed)
    prompts = read_prompts(args.prompts, args.n_prompts)
    block = local.drafter.n_draft
    make = partial(Scheduler, top_k=local.drafter.top_k, max_rows=local.target.max_rows)
    schedulers = {
        "plain": make(block=0, pinned_rows=1, text=False),
        "no text": make(block=block, text=False),
        "text": make(block=block),
    }
    lines = Lines(args.out)
    lines.write(
        "run", machine=describe(), target=args.target.name, kernels=local.target.kernels,
        threads=local.target.n_threads, n_predict=args.n_predict, delay_ms=args.delay_ms,
    )  # fmt: skip
    decode(local, make(block=0, pinned_rows=1, text=False), local.ids(prompts[0]), 16, 0.0)
    runs: list[dict[str, Run]] = []
    with Bar("slow drafter", len(prompts)) as bar:
        for prompt in prompts:
            ids = local.ids(prompt)
            with exclusive(args.lock):
                wait_quiet()
                row = {
                    arm: decode(local, schedulers[arm], ids, args.n_predict, args.delay_ms)
                    for arm in rng.sample(ARMS, len(ARMS))
                }
            for arm, run in row.items():
                lines.write(
                    "reply", prompt=prompt.line, arm=arm, tokens=run.tokens, ms=round(run.ms, 3), rounds=run.rounds,
                    drafted=run.drafted,
                )  # fmt: skip
            runs.append(row)
            bar.step()
    lines.close()
    for part in tables(runs, args.delay_ms):
        part.show()


def tables(runs: Sequence[dict[str, Run]], delay_ms: float) -> list[Table]:
    rows = []
    for arm in ARMS:
        ratios = [row[arm].rate / row["plain"].rate for row in runs]
        rows.append(
            [
                arm,
                f"{sum(row[arm].tokens for row in runs) / sum(row[arm].ms for row in runs) * 1e3:.1f}",
                f"{ratios[0]:.3f}",
                str(geometric_mean(ratios[1:])) if len(ratios) > 1 else "-",
                f"{min(ratios[1:]):.3f}" if len(ratios) > 1 else "-",
                f"{sum(row[arm].drafted for row in runs)} of {sum(row[arm].rounds for row in runs)}",
            ]
        )
    return [
        Table(
            f"a draft takes {delay_ms:g} ms longer: ratios to plain decoding",
            ["arm", "tok/s", "first request", "after it [95%]", "least", "rounds that drafted"],
            rows,
            f"{len(runs)} requests; geometric mean and least of those after the first",
        )
    ]


def page(path: Path) -> list[str]:
    """The table of a stored run as Markdown; nothing where there is no such file."""
    run, replies = read_results(path)
    if not run:
        return []
    runs: dict[int, dict[str, Run]] = defaultdict(dict)
    for r in replies:
        runs[r["prompt"]][r["arm"]] = Run(r["tokens"], r["ms"], r["rounds"], r["drafted"])
    what = f"{ran_on(run)}; rounds driven from Python."
    return [what, *(part for t in tables(list(runs.values()), run["delay_ms"]) for part in t.markdown())]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser)
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL")
    parser.add_argument("--n-prompts", type=int, default=6, help="spread evenly over the file (default %(default)s)")
    parser.add_argument("--n-predict", type=int, default=1000, help="tokens a reply (default %(default)s)")
    parser.add_argument("--delay-ms", type=float, default=30.0, help="of every draft (default %(default)s)")
    add_output_options(parser, "a prompt")
    return parser.parse_args()


if __name__ == "__main__":
    main()
