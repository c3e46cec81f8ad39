"""How fast could any scheduler be on these replies: texts of full traces (``--full-trace``), at a table of costs.

The bound of a reply is the least time in which it could be decoded were every outcome known in advance. At each position
a round is plain, or verifies what the text proposes, or what the drafter and the text propose together; only rows that
will be accepted are verified, all of them or the first few, and the best sequence of rounds is found by going through the
positions from the last to the first. The candidates are the scheduler's own, so no arm that chooses among these can be
faster; one with other candidates could. A scheduler does not know the outcomes, so none reaches it but by luck. As in every
replay, a draft is of the whole block and costs the same however much of it is used (docs/traces.md).

Beside it is what ``adaspark`` reaches at the same costs: the same texts decoded anew, one after the other, from an empty
store, as ``adaspark-run replay`` does. Both are ratios to plain decoding. Replies of a few tokens are left out of the means, as
in compare.py. With ``--cut-loops`` there is also a line of all replies, each up to where a loop begins that it ends in.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from kit.page import Table, read_results
from kit.show import Bar, Lines
from numpy.typing import NDArray

from adaspark.benchmark.machine import describe
from adaspark.benchmark.runs import SHORTEST
from adaspark.benchmark.stats import Interval, geometric_mean, loop_start
from adaspark.cli.tables import table
from adaspark.config import Arm
from adaspark.costs import GRID, CostTable, read_costs
from adaspark.errors import TraceError
from adaspark.replay import Recorded, decode_under
from adaspark.trace import read_trace

KINDS = ("plain", "text", "draft")
STEPPING = Arm("adaspark", 1)  # candidates of every kind, but one row a round: it stops at each position


@dataclass(frozen=True, slots=True)
class Reach:
    """By position of a reply: how many of the tokens after it are candidates there, each below the one before."""

    text: NDArray[np.int64]  # what the text alone proposes
    draft: NDArray[np.int64]  # with the drafter's block; -1: the trace has none


@dataclass(frozen=True, slots=True)
class Bound:
    """The fastest way through a reply."""

    us: tuple[float, float, float]  # in rounds of each of KINDS
    rounds: tuple[int, int, int]

    @property
    def total_us(self) -> float:
        return sum(self.us)


@dataclass(frozen=True, slots=True)
class Reply:
    number: int  # among the traces' replies
    tokens: int  # after the first
    loop: int | None  # tokens before the loop that it ends in
    plain_us: float
    adaspark_us: float
    bound: Bound

    @property
    def bound_ratio(self) -> float:
        return self.plain_us / self.bound.total_us

    @property
    def adaspark_ratio(self) -> float:
        return self.plain_us / self.adaspark_us


def accepted(candidates: dict[str, Any], ahead: Sequence[int], stops: set[int]) -> int:
    """How many of the tokens ahead a set of candidates holds, each below the one before. A stop token takes no row."""
    nodes = zip(candidates["parents"].tolist(), candidates["tokens"].tolist(), strict=True)
    below = {key: node for node, key in reversed(list(enumerate(nodes)))}  # of equal ones the first
    node: int | None = -1  # the anchor
    for depth, token in enumerate(ahead):
        node = None if token in stops else below.get((node, token))
        if node is None:
            return depth
    return len(ahead)


def reach_of(recorded: Recorded) -> Reach:
    """A scheduler is led through the reply, token after token, and asked at each for its candidates."""
    request, blocks = recorded.request, recorded.blocks()
    text, stops = request.reply.tolist(), set(request.stop_tokens.tolist())
    steps = len(text) - 1
    out = Reach(np.zeros(steps, np.int64), np.full(steps, -1, np.int64))
    scheduler = recorded.scheduler(STEPPING)
    scheduler.begin_request(request.prompt, text[0], steps)
    anchor_alone = np.zeros(1, np.int32)
    for at in range(steps):
        room = min(recorded.max_rows, steps - at)
        ahead = text[at + 1 : at + room]
        scheduler.decide(room)
        out.text[at] = accepted(scheduler.candidates, ahead, stops)
        if blocks[at] >= 0:
            scheduler.plan_block(*recorded.rounds.block(int(blocks[at])))
            out.draft[at] = accepted(scheduler.candidates, ahead, stops)
        else:
            scheduler.plan()
        scheduler.observe(anchor_alone, text[at + 1], 0.0, 1.0, 0.0, True)  # a last round teaches nothing
    scheduler.end_request()
    return out


def bound_of(reach: Reach, prompt_tokens: int, costs: CostTable, max_rows: int) -> Bound:
    steps = len(reach.text)
    # A wider verify that takes less, as a table may have it, serves for a narrower one. Column i is for i drafts.
    verify = np.minimum.accumulate(costs.verify[:, max_rows:0:-1], axis=1)[:, ::-1]
    rest = np.zeros(steps + 1)  # least time from a position to the end
    kind, drafts = np.zeros(steps, np.int64), np.zeros(steps, np.int64)  # of the best round there
    for at in reversed(range(steps)):
        context = min((prompt_tokens + at) // GRID, len(verify) - 1)
        rest[at] = np.inf
        ways = ((reach.text[at], costs.commit[0]), (reach.draft[at], costs.draft[context] + costs.commit[1]))
        for drafted, (most, fixed) in enumerate(ways):
            if most < 0:
                continue
            us = fixed + verify[context, : most + 1] + rest[at + 1 : at + most + 2]
            n = int(us.argmin())
            if us[n] < rest[at]:
                rest[at], drafts[at] = us[n], n
                kind[at] = 2 if drafted else min(n, 1)
    spent, rounds, at = [0.0] * 3, [0] * 3, 0
    while at < steps:
        after = at + int(drafts[at]) + 1
        spent[kind[at]] += float(rest[at] - rest[after])
        rounds[kind[at]] += 1
        at = after
    return Bound((spent[0], spent[1], spent[2]), (rounds[0], rounds[1], rounds[2]))


def measure(requests: Sequence[Recorded], costs: CostTable) -> list[Reply]:
    """Replies of one token took no round and are left out."""
    plain, adaspark = (decode_under(Arm.parse(name), requests, costs) for name in ("plain", "adaspark"))
    out = []
    with Bar("bound", len(requests)) as bar:
        for number, recorded in enumerate(requests):
            reply = recorded.request.reply
            if len(reply) > 1:
                bound = bound_of(reach_of(recorded), len(recorded.request.prompt), costs, recorded.max_rows)
                plain_us, adaspark_us = (float(arm.columns[number][:, 4].sum()) for arm in (plain, adaspark))
                loop = loop_start(reply.tolist())
                out.append(Reply(number, len(reply) - 1, loop, plain_us, adaspark_us, bound))
            bar.step()
    return out


def cut(recorded: Recorded) -> Recorded:
    """The reply up to where its loop begins, the loop's first copy included."""
    start = loop_start(recorded.request.reply.tolist())
    return replace(recorded, request=replace(recorded.request, reply=recorded.request.reply[:start].copy()))


def pooled(replies: Sequence[Reply]) -> dict[str, Any]:
    """What is told of some replies; nothing where all are short."""
    used = [reply for reply in replies if reply.tokens >= SHORTEST]
    if not used:
        return {}
    us, rounds = (np.sum([getattr(reply.bound, what) for reply in used], axis=0) for what in ("us", "rounds"))
    return {
        "replies": len(used),
        "bound": geometric_mean([reply.bound_ratio for reply in used]),
        "adaspark": geometric_mean([reply.adaspark_ratio for reply in used]),
        "reached": geometric_mean([reply.bound.total_us / reply.adaspark_us for reply in used]),
        "shares": dict(zip(KINDS, (us / us.sum()).tolist(), strict=True)),
        "tokens_per_round": sum(reply.tokens for reply in used) / int(rounds.sum()),
    }


def show_replies(replies: Sequence[Reply], title: str) -> None:
    rows = [
        [
            str(reply.number),
            str(reply.tokens),
            "-" if reply.loop is None else str(reply.loop),
            f"{reply.bound_ratio:.3f}",
            f"{reply.adaspark_ratio:.3f}",
            "/".join(map(str, reply.bound.rounds)),
            f"{reply.tokens / sum(reply.bound.rounds):.2f}",
        ]
        for reply in replies
    ]
    table(
        title,
        ["reply", "tokens", "loop after", "bound", "adaspark", "plain/text/draft", "tokens a round"],
        rows,
        "ratios to plain decoding; plain/text/draft: the bound's rounds",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--costs", type=Path, required=True, metavar="JSON", help="a table (docs/traces.md)")
    parser.add_argument("--cut-loops", action="store_true", help="also of each reply up to its loop")
    parser.add_argument("--out", type=Path, metavar="JSONL", help="raw results")
    args = parser.parse_args()
    try:
        requests = [Recorded.of(request) for path in args.traces for request in read_trace(path)]
        costs = read_costs(args.costs, max((recorded.longest for recorded in requests), default=0))
    except TraceError as error:
        parser.error(str(error))
    if not requests or not all(recorded.request.full for recorded in requests):
        parser.error("give full traces, of a reply at least")
    whole = measure(requests, costs)
    lines = Lines(args.out)
    traces = [path.name for path in args.traces]
    lines.write("run", machine=describe(), traces=traces, costs=costs.source, cut_loops=args.cut_loops)
    groups = {"without a loop": [reply for reply in whole if reply.loop is None]}
    measured = {"whole": whole}
    if args.cut_loops:
        measured["cut"] = groups["up to its loop"] = measure([cut(recorded) for recorded in requests], costs)
    groups["all"] = whole
    for name, replies in measured.items():
        for reply in replies:
            ratios = {"bound_ratio": reply.bound_ratio, "adaspark_ratio": reply.adaspark_ratio}
            lines.write("reply", texts=name, **asdict(reply), **ratios)
        show_replies(replies, f"bound at {costs.source}, {name} replies")
    told = {name: pooled(replies) for name, replies in groups.items()}
    for name, means in told.items():
        if means:
            lines.write(
                "pooled", name=name, **{k: asdict(v) if isinstance(v, Interval) else v for k, v in means.items()}
            )
    lines.close()
    summary(costs.source, told).show()


def summary(source: str, told: dict[str, dict[str, Any]]) -> Table:
    rows = []
    for name, means in told.items():
        if means:
            ratios = [str(means[what]) for what in ("bound", "adaspark", "reached")]
            shares = [f"{100 * share:.0f}" for share in means["shares"].values()]
            rows.append([name, str(means["replies"]), *ratios, *shares, f"{means['tokens_per_round']:.2f}"])
    return Table(
        f"bound and adaspark at {source}, ratios to plain decoding",
        ["replies", "n", "bound [95%]", "adaspark [95%]", "adaspark / bound", *KINDS, "tokens a round"],
        rows,
        f"geometric means over replies of {SHORTEST + 1} tokens or more; then the bound's time by kind of round, %, and its tokens",
    )


def page(path: Path) -> list[str]:
    """The means of a stored run as Markdown; nothing where there is no such file."""
    run, records = read_results(path)
    if not run:
        return []
    told = {r["name"]: r for r in records if r["kind"] == "pooled"}
    for means in told.values():
        means.update({what: Interval(**means[what]) for what in ("bound", "adaspark", "reached")})
    return summary(run["costs"], told).markdown()


if __name__ == "__main__":
    main()
