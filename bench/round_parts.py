"""Where a round's time goes, by part, for each arm: milliseconds a round, means over all rounds of all replies.

inject: target features into the drafter's cache; draft: the block and its top K; plan: order and layout; verify: the
target's forward; walk: argmax of the rows, descent, text; commit: the caches' bookkeeping; rest: what the session's own
clock sees besides (the reply's first draw, calls from Python).

On a graph of ggml's operations also by call: asking for copies, starting graphs and waiting for the device, of target and
drafter together; own, what is left: the work of a round outside ggml.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from kit.engine import add_load_options, load_engine, load_of, open_models, request_of
from kit.prompts import chat_tokens, read_prompts
from kit.show import Bar, Lines

from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.cli.tables import table

PARTS = ("inject", "draft", "plan", "verify", "walk", "commit")
CALLS = ("copy", "submit", "wait")


def main() -> None:
    args = _arguments()
    prompts = read_prompts(args.prompts, args.n_prompts)
    target, drafter = open_models(load_of(args))
    session = load_engine(None).Session(target, drafter)
    rng = random.Random(args.seed)
    sums = {arm: dict.fromkeys((*PARTS, *CALLS, "rounds", "rows", "steps", "decode"), 0.0) for arm in args.arms}
    with Bar("round parts", len(prompts)) as bar:
        for prompt in prompts:
            ids = chat_tokens(target, prompt.text)
            with exclusive(args.lock):
                wait_quiet()
                for arm in rng.sample(args.arms, len(args.arms)):
                    target.clear()
                    session.begin(ids, request_of(arm, args.n_predict))
                    session.step()
                    total = sums[arm]
                    calls = target.device_times()
                    while not session.finished:
                        session.step()
                    statistics = session.statistics
                    if calls is not None:
                        after = target.device_times()
                        assert after is not None
                        for call in CALLS:
                            total[call] += (after[f"{call}_us"] - calls[f"{call}_us"]) / 1e3  # type: ignore[literal-required]
                    for part in PARTS:
                        total[part] += statistics[f"{part}_us"] / 1e3
                    total["decode"] += statistics["decode_us"] / 1e3
                    total["rounds"] += statistics["rounds"]
                    total["rows"] += statistics["rows"]
                    total["steps"] += statistics["rounds"] + statistics["accepted"]
            bar.step()
    lines = Lines(args.out)
    lines.write("run", machine=describe(), n_prompts=len(prompts), n_predict=args.n_predict)
    rows, by_call = [], []
    for arm, total in sums.items():
        rounds = total["rounds"]
        if rounds == 0:
            continue
        each = {part: total[part] / rounds for part in PARTS}
        whole = total["decode"] / rounds
        each["rest"] = whole - sum(each.values())
        calls_of = {call: total[call] / rounds for call in CALLS}
        calls_of["own"] = whole - sum(calls_of.values())
        if target.device_times() is None:
            calls_of = {}
        lines.write("arm", arm=arm, rounds=rounds, tokens=total["steps"], **each, calls=calls_of)
        by_call.append([arm, *(f"{ms:.3f} ({ms / whole:.1%})" for ms in calls_of.values())])
        rows.append(
            [
                arm,
                f"{total['rows'] / rounds:.1f}",
                f"{total['steps'] / rounds:.2f}",
                *(f"{ms:.2f} ({ms / whole:.0%})" for ms in each.values()),
                f"{whole:.2f}",
                f"{total['steps'] / total['decode'] * 1e3:.1f}",
            ]
        )
    lines.close()
    table(
        "a round's time by part, ms",
        ["arm", "rows", "tokens", *PARTS, "rest", "whole", "tok/s"],
        rows,
        f"means over {len(prompts)} prompts, {args.n_predict} tokens each at most",
    )
    if target.device_times() is not None:
        table("a round's time by call, ms", ["arm", *CALLS, "own"], by_call)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser)
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL")
    parser.add_argument("--n-prompts", type=int, default=12)
    parser.add_argument("--n-predict", type=int, default=128)
    parser.add_argument("--arms", type=lambda text: text.split(","), default=["plain", "chain:3", "chain:7", "tree:16"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold this file's lock while a prompt is decoded")
    return parser.parse_args()


if __name__ == "__main__":
    main()
