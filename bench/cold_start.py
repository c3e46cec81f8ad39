"""How soon is the arm adaspark as fast as the best pinned arm, from an empty store?

Many short sequences: each starts with nothing learned and serves a few requests, every one another prompt. The pinned
arms decode the same prompts beside it, in a random order for each prompt, and so does an adaspark that keeps what it
learns through the whole run ("kept"), like the pinned ones that learn; all of these are warmed up first. So the ratio by
request index to the best pinned arm says how far a new machine is from the best fixed choice, and the ratio to the kept
adaspark how much of that is still to be learned. The best pinned arm is the one with the greatest mean over the whole
run. Prompts whose greedy reply loops are counted and left out before anything is timed.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from kit.engine import add_load_options, add_output_options, load_of
from kit.local import Local, Reply, round_ms
from kit.page import Table, ran_on, read_results
from kit.prompts import Prompt, read_prompts
from kit.show import Bar, Lines, note

from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.benchmark.stats import Interval, geometric_mean

NEW, KEPT = "adaspark", "adaspark, kept"
PINNED = ["plain", "chain:3", "tree:8", "adaspark:4", "adaspark:8", "adaspark:12", "adaspark:16"]
MEASURING = 1  # RECORD's reason: the round measured a width
Rates = Mapping[str, float]  # tokens a second by arm, of one prompt


def main() -> None:
    args = _arguments()
    local = Local.open(load_of(args))
    prompts, looped = local.usable(read_prompts(args.prompts, args.n_prompts), args.n_predict)
    if len(prompts) < args.requests:
        msg = f"only {len(prompts)} prompts have replies that do not loop: fewer than a sequence has requests"
        raise SystemExit(msg)
    rng = random.Random(args.seed)
    rng.shuffle(prompts)
    lines = Lines(args.out)
    lines.write(
        "run", machine=describe(), target=args.target.name, kernels=local.target.kernels,
        threads=local.target.n_threads, n_predict=args.n_predict, requests=args.requests, sequences=args.sequences,
        pinned=args.pinned, looped=looped,
    )  # fmt: skip
    kept = local.session()
    for prompt in prompts[-args.warm_up :]:
        for arm in (*args.pinned, NEW):
            local.reply(kept, arm, local.ids(prompt), args.n_predict)
    rates: list[list[Rates]] = []  # by sequence, request
    shares: list[list[float]] = []
    with Bar("cold start", args.sequences * args.requests) as bar:
        for number, chosen in enumerate(sequences(prompts, args.sequences, args.requests)):
            new = local.session()
            rates.append([])
            shares.append([])
            for index, prompt in enumerate(chosen):
                ids = local.ids(prompt)
                with exclusive(args.lock):
                    wait_quiet()
                    replies = {}
                    for name in rng.sample([*args.pinned, NEW, KEPT], len(args.pinned) + 2):
                        arm = NEW if name == KEPT else name
                        replies[name] = local.reply(new if name == NEW else kept, arm, ids, args.n_predict)
                for name, reply in replies.items():
                    lines.write(
                        "reply", sequence=number, request=index, prompt=prompt.line, arm=name, steps=reply.steps,
                        decode_ms=round(reply.decode_ms, 3), measuring=round(measuring(reply), 4),
                    )  # fmt: skip
                rates[-1].append({name: reply.rate for name, reply in replies.items()})
                shares[-1].append(measuring(replies[NEW]))
                bar.step()
    lines.close()
    if looped:
        note(f"{looped} of {len(prompts) + looped} prompts were left out: their replies loop or are short")
    for part in tables(rates, shares, args.pinned):
        part.show()


def sequences(prompts: Sequence[Prompt], count: int, requests: int) -> list[list[Prompt]]:
    """``count`` runs of ``requests`` prompts, their starts spread evenly over the prompts taken as a ring."""
    starts = [i * len(prompts) // count for i in range(count)]
    return [[prompts[(start + i) % len(prompts)] for i in range(requests)] for start in starts]


def measuring(reply: Reply) -> float:
    """Share of a reply's time in rounds that measure a width."""
    times = round_ms(reply.rounds)
    total = float(times.sum())
    return float(times[reply.rounds["reason"] == MEASURING].sum()) / total if total > 0 else 0.0


def best_pinned(rates: Sequence[Sequence[Rates]], pinned: Sequence[str]) -> str:
    """The pinned arm with the greatest geometric mean over everything."""
    flat = [row for sequence in rates for row in sequence]
    return max(pinned, key=lambda arm: geometric_mean([row[arm] for row in flat], resamples=1).value)


def by_request(rates: Sequence[Sequence[Rates]], arm: str, baseline: str) -> list[Interval]:
    """An arm's ratio to another at each request index; the intervals are over the sequences."""
    return [geometric_mean([row[arm] / row[baseline] for row in column]) for column in zip(*rates, strict=True)]


def tables(rates: Sequence[Sequence[Rates]], shares: Sequence[Sequence[float]], pinned: Sequence[str]) -> list[Table]:
    flat = [row for sequence in rates for row in sequence]
    best = best_pinned(rates, pinned)
    arms = []
    for arm in (*pinned, KEPT, NEW):
        mean = geometric_mean([row[arm] for row in flat], resamples=1).value
        ratios = [
            "1" if arm == base else str(geometric_mean([row[arm] / row[base] for row in flat])) for base in (best, KEPT)
        ]
        arms.append([arm, f"{mean:.1f}", *ratios])
    to_best, to_kept = by_request(rates, NEW, best), by_request(rates, NEW, KEPT)
    requests = [
        [str(i + 1), str(to_best[i]), str(to_kept[i]), f"{sum(s[i] for s in shares) / len(shares):.1%}"]
        for i in range(len(to_best))
    ]
    return [
        Table(
            f"{len(flat)} requests in {len(rates)} sequences", ["arm", "tok/s", f"to {best}", f"to {KEPT}"], arms,
            "geometric means over the requests, with 95% intervals",
        ),
        Table(
            "from an empty store, by request", ["request", f"to {best}", f"to {KEPT}", "time measuring"],
            requests,
            "geometric means over the sequences; time measuring: share of the reply in rounds that measure a width",
        ),
    ]  # fmt: skip


def page(path: Path) -> list[str]:
    """The tables of a stored run as Markdown; nothing where there is no such file."""
    run, replies = read_results(path)
    if not run:
        return []
    done = 1 + max(r["sequence"] for r in replies) if replies else 0
    rates: list[list[dict[str, float]]] = [[{} for _ in range(run["requests"])] for _ in range(done)]
    shares = [[0.0] * run["requests"] for _ in range(done)]
    for r in replies:
        rates[r["sequence"]][r["request"]][r["arm"]] = r["steps"] / r["decode_ms"] * 1e3
        if r["arm"] == NEW:
            shares[r["sequence"]][r["request"]] = r["measuring"]
    if not all(all(sequence) for sequence in rates[-1:]):  # a run that was stopped: its last sequence is not whole
        rates, shares = rates[:-1], shares[:-1]
    if not rates:
        return []
    what = f"{ran_on(run)}; {run['looped']} prompts whose replies loop left out."
    return [what, *(part for t in tables(rates, shares, run["pinned"]) for part in t.markdown())]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser, drafter=True)
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL")
    parser.add_argument("--n-prompts", type=int, default=88, help="spread evenly over the file (default %(default)s)")
    parser.add_argument("--n-predict", type=int, default=256, help="tokens a reply (default %(default)s)")
    parser.add_argument("--sequences", type=int, default=24, help="default %(default)s")
    parser.add_argument("--requests", type=int, default=4, help="of a sequence (default %(default)s)")
    parser.add_argument(
        "--pinned", type=lambda text: text.split(","), default=PINNED, help=f"default {','.join(PINNED)}"
    )
    parser.add_argument("--warm-up", type=int, default=3, help="requests of each arm that learns through the run")
    add_output_options(parser, "a prompt")
    return parser.parse_args()


if __name__ == "__main__":
    main()
