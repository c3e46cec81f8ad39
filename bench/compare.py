"""Decode speed of our arms and of llama.cpp's server, in one run on the same files, prompts and threads.

Every prompt is decoded by every arm before the next prompt starts, in a new random order each time, so that a drift of
the machine's speed falls on all arms alike. Each arm is a process that stays alive; only one works at a time.

Speed is (tokens - 1) / (time of the last token - time of the first), an end-of-generation token included: on our side
from the session's statistics, on llama.cpp's side from the server's own ``timings``. Reading the prompt is not part of
it, nor is HTTP. A ratio compares two arms on one prompt; the table has the geometric mean over prompts with a bootstrap
95% interval. Prompts where a reply ends in a loop are counted and left out of the ratios, and so are replies of
a few tokens.

With ``--cut-loops`` such replies are decoded to where their loop begins instead, by every arm: a prompt's length is found
by an untimed reply of the first arm, which must be ``plain`` and so learns nothing from it.

With ``--passes`` the whole file is decoded several times, our arms beginning each pass with nothing learned; a prompt's
ratio is then the median over the passes, and a second table has the slowest single replies.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from kit.arms import Arm, OurArm, ServerArm
from kit.engine import add_load_options, load_of
from kit.page import Record, Table, ran_on, read_results
from kit.prompts import read_prompts
from kit.show import Bar, Lines, note

from adaspark.benchmark.machine import QUIET, describe, exclusive, wait_quiet
from adaspark.benchmark.stats import first_difference, geometric_mean, loop_period, loop_start, spread
from adaspark.cli.tables import table

SHORTEST = 16  # tokens after the first; a shorter reply measures little but the first round
LONG = 100  # tokens of a reply whose ratio is told on its own ...
SLOW = 0.97  # ... by name where it is less than this
Reply = dict[str, Any]
Passes = dict[str, list[Reply]]  # one prompt: by arm, its replies in each pass


def main() -> None:
    args = _arguments()
    prompts = read_prompts(args.prompts, args.n_prompts)
    load = load_of(args)
    rng = random.Random(args.seed)
    with ExitStack() as stack:
        lines = Lines(args.out)
        stack.callback(lines.close)
        ours = []
        for name in args.arms:
            # A plain arm needs no drafter, and its process does not load one.
            ours.append(OurArm(name, replace(load, drafter=None) if name == "plain" else load))
            stack.callback(ours[-1].close)
        threads = int(ours[0].facts["threads"])
        arms: list[Arm] = list(ours)
        for name in args.server_arms:
            arms.append(ServerArm(name, load, args.server, threads, args.server_flags.split()))
            stack.callback(arms[-1].close)
        names = [arm.name for arm in arms]
        baselines = args.baseline or names[:1]
        for baseline in baselines:
            if baseline not in names:
                msg = f"the baseline {baseline!r} is not one of the arms: {', '.join(names)}"
                raise SystemExit(msg)
        lines.write(
            "run",
            machine=describe(),
            target=args.target.name,
            drafter=args.drafter.name,
            threads=threads,
            ctx=load.ctx,
            flash_attention=load.flash_attention,
            kernels=ours[0].facts["kernels"],
            draft_kernels=next((arm.facts["draft_kernels"] for arm in ours if arm.facts["draft_kernels"]), None),
            n_predict=args.n_predict,
            seed=args.seed,
            arms=names,
            passes=args.passes,
            cut_loops=args.cut_loops,
        )
        ids = [ours[0].tokenize(prompt.text) for prompt in prompts]
        with exclusive(args.lock):
            for arm in arms:
                arm.run(ids[0], 16)  # pages of the weights, branch predictors, the server's first allocations
        lengths = [args.n_predict] * len(prompts)
        if args.cut_loops:
            with Bar("lengths", len(prompts)) as bar:
                for i, prompt_ids in enumerate(ids):
                    lengths[i] = loop_start(ours[0].run(prompt_ids, args.n_predict)["tokens"]) or args.n_predict
                    bar.step()
        replies: list[Passes] = [{name: [] for name in names} for _ in prompts]
        loaded = 0
        with Bar("compare", args.passes * len(prompts)) as bar:
            for number in range(args.passes):
                for arm in ours:
                    arm.forget()
                for i, prompt in enumerate(prompts):
                    order = rng.sample(arms, len(arms))
                    with exclusive(args.lock):
                        busy = wait_quiet()
                        row = {arm.name: arm.run(ids[i], lengths[i]) for arm in order}
                    loaded += busy is not None and busy >= QUIET
                    for name, reply in row.items():
                        lines.write(
                            "reply", prompt=prompt.line, source=prompt.source, prompt_tokens=len(ids[i]), arm=name,
                            **{"pass": number}, busy=busy, loop=loop_period(reply["tokens"]), **reply,
                        )  # fmt: skip
                        replies[i][name].append(reply)
                    bar.step()
    if loaded:
        note(
            f"the machine was not quiet before {loaded} of {args.passes * len(prompts)} prompts: their times are doubtful"
        )
    for baseline in baselines:
        report(names, baseline, replies, args.seed)
        if args.passes > 1:
            slowest(names, baseline, replies, [prompt.line for prompt in prompts]).show()


def report(names: list[str], baseline: str, replies: list[Passes], seed: int) -> None:
    rows = []
    for name in names:
        pairs = [(row[name], row[baseline]) for row in replies]
        first = [(ours[0], theirs[0]) for ours, theirs in pairs]
        looped = sum(any(loop_period(r["tokens"]) for r in pair) for pair in first)
        short = sum(min(a["steps"], b["steps"]) < SHORTEST for a, b in first)
        usable = [pair for pair in pairs if usable_pair(*pair[0], *pair[1])]
        different = sum(first_difference(a["tokens"], b["tokens"]) is not None for a, b in first)
        drafted = sum(a["drafted"] for a, _ in first)
        accepted = sum(a["accepted"] for a, _ in first)
        if not usable:
            rows.append([name, "-", "-", "-", "-", f"0 ({looped} looped, {short} short)", str(different)])
            continue
        ratio = geometric_mean([median_ratio(*pair) for pair in usable], seed)
        speed = spread([median(map(rate, ours)) for ours, _ in usable])
        rows.append(
            [
                name,
                f"{speed.median:.1f}",
                f"{speed.low:.1f}-{speed.high:.1f}",
                "1" if name == baseline else str(ratio),
                f"{accepted / drafted:.2f}" if drafted else "-",
                f"{len(usable)} ({looped} looped, {short} short)",
                str(different),
            ]
        )
    table(
        f"decode speed, ratios to {baseline}",
        ["arm", "tok/s median", "IQR", "ratio [95%]", "accepted", "prompts", "other text"],
        rows,
        "accepted: share of drafted tokens; other text: replies that are not the baseline's, token for token",
    )


def slowest(names: Sequence[str], baseline: str, replies: Sequence[Passes], lines: Sequence[int]) -> Table:
    rows = []
    for name in names:
        if name == baseline:
            continue
        cells = [name]
        for looped in (False, True):
            ratios = long_ratios([(row[name], row[baseline]) for row in replies], lines, looped)
            slow = [f"{line}: {ratio:.3f}" for ratio, line in ratios if ratio < SLOW]
            cells += [str(len(ratios)), f"{ratios[0][0]:.3f}" if ratios else "-", ", ".join(slow) or "none"]
        rows.append(cells)
    return Table(
        f"slowest replies of {LONG} tokens or more, ratios to {baseline}",
        ["arm", "replies", "least", f"below {SLOW}", "looped", "least", f"below {SLOW}"],
        rows,
        "median over the passes; below: the prompt's line in the file, from 0, and its ratio; looped: the replies that end "
        "in a loop",
    )


def read_replies(path: Path) -> tuple[Record, dict[int, Passes]]:
    """What ran, and a stored run's replies by the prompt's line; nothing where there is no such file."""
    run, records = read_results(path)
    replies: dict[int, Passes] = defaultdict(lambda: defaultdict(list))
    for record in records:
        replies[record["prompt"]][record["arm"]].append(record)
    return run, replies


def page(path: Path) -> list[str]:
    """The slowest replies of a stored run as Markdown; nothing where there is no such file."""
    run, replies = read_replies(path)
    if not run:
        return []
    what = f"{ran_on(run)}; {len(replies)} prompts, {run['passes']} passes, each from an empty store."
    return [what, *slowest(run["arms"], run["arms"][0], list(replies.values()), list(replies)).markdown()]


def long_ratios(
    pairs: Sequence[tuple[Sequence[Reply], Sequence[Reply]]], lines: Sequence[int], looped: bool
) -> list[tuple[float, int]]:
    """(ratio, line) of the long replies, those that loop or those that do not, the slowest first."""
    return sorted(
        (median_ratio(ours, theirs), line)
        for (ours, theirs), line in zip(pairs, lines, strict=True)
        if min(r["steps"] for r in (*ours, *theirs)) >= LONG
        and any(loop_period(r["tokens"]) is not None for r in (*ours, *theirs)) == looped
    )


def median_ratio(ours: Sequence[Reply], theirs: Sequence[Reply]) -> float:
    """Of two arms on one prompt: the median over passes, each pass's replies against each other."""
    return median(rate(a) / rate(b) for a, b in zip(ours, theirs, strict=True))


def usable_pair(*replies: Reply) -> bool:
    return all(r["steps"] >= SHORTEST and loop_period(r["tokens"]) is None for r in replies)


def rate(reply: Reply) -> float:
    """Tokens a second."""
    return float(reply["steps"]) / float(reply["decode_ms"]) * 1e3


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser)
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL", help='lines of {"source", "turns"}')
    parser.add_argument("--n-prompts", type=int, default=16, help="spread evenly over the file (default %(default)s)")
    parser.add_argument("--n-predict", type=int, default=128, help="tokens a reply (default %(default)s)")
    parser.add_argument("--arms", type=_names, default=["plain", "chain:3"], help="default: plain,chain:3")
    parser.add_argument("--server", type=Path, metavar="PROGRAM", help="llama-server of the build with the tools")
    parser.add_argument(
        "--server-arms", type=_names, metavar="ARMS",
        help="plain, or a --spec-type of llama-server, with :N for its most drafts (default: plain,draft-dspark)",
    )  # fmt: skip
    parser.add_argument("--server-flags", default="", help="further flags for llama-server, one text")
    parser.add_argument(
        "--baseline", type=_names, help="the arms ratios refer to, a table for each (default: the first)"
    )
    parser.add_argument("--passes", type=int, default=1, help="over all prompts (default %(default)s)")
    parser.add_argument("--cut-loops", action="store_true", help="decode a reply that loops to where its loop begins")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="JSONL", help="raw results")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold this file's lock while a prompt is measured")
    args = parser.parse_args()
    if not args.arms:
        parser.error("--arms needs at least one of ours: it tokenises the prompts")
    if args.cut_loops and args.arms[0] != "plain":
        parser.error("--cut-loops finds the loops with the first of --arms, which must be plain")
    if args.server_arms is None:
        args.server_arms = ["plain", "draft-dspark"] if args.server else []
    if args.server_arms and args.server is None:
        parser.error("--server-arms needs --server")
    return args


if __name__ == "__main__":
    main()
