"""Are the expected accepted drafts S accepted, and does the fitted model predict better than the head: texts of full
traces (``--full-trace``), decoded anew at a table of costs.

From an empty store, in ``--orders`` random orders of the replies, each cut into runs of ``--replies``: what a run says of
its first replies depends on which they are. Counted are the rounds whose width the chooser took from S, without a reply's
last one, whose rows may be cut short.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from kit.show import note
from numpy.typing import NDArray

from adaspark import _core
from adaspark.benchmark.stats import loop_start
from adaspark.cli.tables import table
from adaspark.config import Arm
from adaspark.costs import CostTable, read_costs
from adaspark.replay import Recorded, decode_under
from adaspark.trace import read_trace

ARM = Arm.parse("adaspark")
EARLY = (6, 18)  # replies of a run


@dataclass(frozen=True, slots=True)
class Round:
    reply: int  # number within the run
    kind: str
    chosen: bool  # its width was, and it is not the reply's last
    looped: bool  # inside a loop that the reply ends in
    loops: bool  # the reply ends in a loop
    accepted: int
    expected: float
    fitted_loss: float  # nats
    head_loss: float
    labelled: int  # parents


class Watched:
    """A scheduler that keeps what became of its rounds."""

    def __init__(self, core: _core.Scheduler, loops: Sequence[int | None]) -> None:
        self._core, self._loops = core, loops  # where each reply's loop begins, tokens
        self.rounds: list[Round] = []
        self._reply, self._at = -1, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def begin_request(self, prompt: NDArray[np.int32], first_token: int, reply_tokens: int) -> None:
        self._reply, self._at = self._reply + 1, 0
        self._core.begin_request(prompt, first_token, reply_tokens)

    def observe(
        self, path: NDArray[np.int32], token: int, draft: float, verify: float, commit: float, last: bool
    ) -> None:
        expected, before = self._core.sum_q, self._core.report
        self._core.observe(path, token, draft, verify, commit, last)
        after, loop = self._core.report, self._loops[self._reply]
        self.rounds.append(
            Round(
                self._reply, before["kind"], before["reason"] == "chosen" and not last,
                loop is not None and self._at >= loop, loop is not None, len(path) - 1, expected,
                after["fitted_loss"], after["head_loss"], after["labelled"],
            )
        )  # fmt: skip
        self._at += len(path)


@dataclass(frozen=True, slots=True)
class Run:
    rounds: list[Round]
    tokens: int
    time_us: float

    @property
    def ratio(self) -> float:
        """Accepted over expected, replies without a loop."""
        accepted, expected = sums([r for r in self.rounds if r.chosen and not r.loops])
        return accepted / expected

    def predicted_better(self) -> list[bool]:
        """Of each reply after the first: the fitted model's loss is the lower."""
        out = []
        for reply in range(1, self.rounds[-1].reply + 1):
            mine = [r for r in self.rounds if r.reply == reply and r.labelled > 0]
            if mine:
                out.append(sum(r.fitted_loss for r in mine) < sum(r.head_loss for r in mine))
        return out


def sums(rounds: Sequence[Round]) -> tuple[int, float]:
    return sum(r.accepted for r in rounds), sum(r.expected for r in rounds)


def runs_of(requests: Sequence[Recorded], costs: CostTable, orders: int, replies: int) -> list[Run]:
    """Every order's runs; the first order is the given one."""
    out = []
    for seed in range(orders):
        order = list(requests)
        if seed > 0:
            random.Random(seed).shuffle(order)
        for at in range(0, len(order) - replies + 1, replies):
            texts = order[at : at + replies]
            loops = [loop_start(recorded.request.reply.tolist()) for recorded in texts]
            watched = Watched(texts[0].scheduler(ARM), loops)
            replay = decode_under(ARM, texts, costs, watched)
            out.append(Run(watched.rounds, replay.tokens, replay.time_us))
    return out


def lines(runs: Sequence[Run]) -> list[list[str]]:
    """What is told of some runs, as (what, value)."""
    every = [r for run in runs for r in run.rounds]
    chosen = [r for r in every if r.chosen]
    text = [r for r in chosen if not r.loops]
    drafted = [r for r in text if r.kind == "draft"]
    low, high = EARLY
    parts = {
        "replies without a loop": text,
        "their text rounds": [r for r in text if r.kind == "text"],
        "their drafted rounds": drafted,
        f"... of the first {low} replies": [r for r in drafted if r.reply < low],
        f"... of the next {high - low}": [r for r in drafted if low <= r.reply < high],
        "... of the others": [r for r in drafted if r.reply >= high],
        "before a loop": [r for r in chosen if r.loops and not r.looped],
        "inside a loop": [r for r in chosen if r.looped],
        "all": chosen,
    }
    out = []
    for name, rounds in parts.items():
        accepted, expected = sums(rounds)
        out.append([name, f"{accepted:,} / {expected:,.1f} = {accepted / max(expected, 1e-9):.3f}"])
    ratios = [run.ratio for run in runs]
    within = sum(0.97 <= ratio <= 1.03 for ratio in ratios)
    out.append(["a run without loops", f"{np.mean(ratios):.3f}, deviation {np.std(ratios):.3f}"])
    out.append(["runs within 3%", f"{within} of {len(runs)}"])
    for name, rounds in (("log loss, fitted / head", every), ("... without a loop", [r for r in every if not r.loops])):
        labelled = max(sum(r.labelled for r in rounds), 1)
        fitted, head = (sum(getattr(r, loss) for r in rounds) / labelled for loss in ("fitted_loss", "head_loss"))
        out.append([name, f"{fitted:.4f} / {head:.4f}"])
    better = [won for run in runs for won in run.predicted_better()]
    out.append(["replies predicted better", f"{sum(better):,} of {len(better):,} = {np.mean(better):.3f}"])
    out.append(["tokens a second", f"{1e6 * sum(r.tokens for r in runs) / sum(r.time_us for r in runs):.1f}"])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--costs", type=Path, nargs="+", required=True, metavar="JSON", help="tables (docs/traces.md)")
    parser.add_argument("--orders", type=int, default=10, metavar="N", help="of the replies; 1 = as recorded")
    parser.add_argument("--replies", type=int, default=44, metavar="N", help="of a run, from an empty store")
    args = parser.parse_args()
    requests = [Recorded.of(request) for path in args.traces for request in read_trace(path)]
    requests = [recorded for recorded in requests if len(recorded.request.reply) > 1]
    if len(requests) < args.replies or not all(recorded.request.full for recorded in requests):
        parser.error("give full traces, of as many replies as a run has")
    longest = max(recorded.longest for recorded in requests)
    columns = []
    for path in args.costs:
        columns.append(lines(runs_of(requests, read_costs(path, longest), args.orders, args.replies)))
        note(path.stem)
    rows = [[line[0][0], *(cell[1] for cell in line)] for line in zip(*columns, strict=True)]
    table(
        f"accepted / expected drafts, {len(requests)} texts in {args.orders} orders, runs of {args.replies} replies",
        ["", *(path.stem for path in args.costs)],
        rows,
        "rounds whose width was chosen from S; log loss a labelled parent, nats, all rounds",
    )


if __name__ == "__main__":
    main()
