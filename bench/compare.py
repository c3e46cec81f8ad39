"""Decode speed of our arms and of llama.cpp's server, in one run on the same files, prompts and threads.

Every prompt is decoded by every arm before the next prompt starts, in a new random order each time, so that a drift of
the machine's speed falls on all arms alike. Each arm is a process that stays alive; only one works at a time.

Speed is (tokens - 1) / (time of the last token - time of the first), an end-of-generation token included: on our side
from the session's statistics, on llama.cpp's side from the server's own ``timings``. Reading the prompt is not part of
it, nor is HTTP. A ratio compares two arms on one prompt; the table has the geometric mean over prompts with a bootstrap
95% interval. Prompts where a reply ends in a loop are counted and left out of the ratios, and so are replies of
a few tokens.
"""

from __future__ import annotations

import argparse
import random
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from kit.arms import Arm, OurArm, ServerArm
from kit.engine import add_load_options, load_of
from kit.prompts import read_prompts
from kit.show import Bar, Lines, note

from adaspark.benchmark.machine import QUIET, describe, exclusive, wait_quiet
from adaspark.benchmark.stats import first_difference, geometric_mean, loop_period, spread
from adaspark.cli.tables import table

SHORTEST = 16  # tokens after the first; a shorter reply measures little but the first round
Reply = dict[str, Any]


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
            n_predict=args.n_predict,
            seed=args.seed,
            arms=names,
        )
        ids = [ours[0].tokenize(prompt.text) for prompt in prompts]
        with exclusive(args.lock):
            for arm in arms:
                arm.run(ids[0], 16)  # pages of the weights, branch predictors, the server's first allocations
        replies: list[dict[str, Reply]] = []
        loaded = 0
        with Bar("compare", len(prompts)) as bar:
            for prompt, tokens in zip(prompts, ids, strict=True):
                order = rng.sample(arms, len(arms))
                with exclusive(args.lock):
                    busy = wait_quiet()
                    row = {arm.name: arm.run(tokens, args.n_predict) for arm in order}
                loaded += busy is not None and busy >= QUIET
                for name, reply in row.items():
                    lines.write(
                        "reply", prompt=prompt.line, source=prompt.source, prompt_tokens=len(tokens), arm=name,
                        busy=busy, loop=loop_period(reply["tokens"]), **reply,
                    )  # fmt: skip
                replies.append(row)
                bar.step()
    if loaded:
        note(f"the machine was not quiet before {loaded} of {len(prompts)} prompts: their times are doubtful")
    for baseline in baselines:
        report(names, baseline, replies, args.seed)


def report(names: list[str], baseline: str, replies: list[dict[str, Reply]], seed: int) -> None:
    rows = []
    for name in names:
        pairs = [(row[name], row[baseline]) for row in replies]
        looped = sum(any(loop_period(r["tokens"]) for r in pair) for pair in pairs)
        short = sum(min(a["steps"], b["steps"]) < SHORTEST for a, b in pairs)
        usable = [pair for pair in pairs if usable_pair(*pair)]
        different = sum(first_difference(a["tokens"], b["tokens"]) is not None for a, b in pairs)
        drafted = sum(a["drafted"] for a, _ in pairs)
        accepted = sum(a["accepted"] for a, _ in pairs)
        if not usable:
            rows.append([name, "-", "-", "-", "-", f"0 ({looped} looped, {short} short)", str(different)])
            continue
        ratio = geometric_mean([rate(a) / rate(b) for a, b in usable], seed)
        speed = spread([rate(a) for a, _ in usable])
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="JSONL", help="raw results")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold this file's lock while a prompt is measured")
    args = parser.parse_args()
    if not args.arms:
        parser.error("--arms needs at least one of ours: it tokenises the prompts")
    if args.server_arms is None:
        args.server_arms = ["plain", "draft-dspark"] if args.server else []
    if args.server_arms and args.server is None:
        parser.error("--server-arms needs --server")
    return args


if __name__ == "__main__":
    main()
