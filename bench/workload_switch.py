"""Does the arm adaspark follow a workload that switches? Open questions, copy tasks, open questions, one live store.

Each phase's prompts are also served by a store that is empty when the phase begins, the two taking turns by request, in a
random order. What counts is the rate from the 100th round after the switch on, the live store's over the fresh one's on
the same prompts: below 1, what was learned before is in the way. In the first phase both are fresh, so its ratio says
what the comparison is worth. Replies that loop are part of the workload and are served, but left out of the ratios.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kit.engine import add_load_options, add_output_options, load_of
from kit.local import SHORTEST, Local, Reply, round_ms
from kit.page import Record, Table, ran_on, read_results
from kit.prompts import Prompt, read_prompts
from kit.show import Bar, Lines

from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.benchmark.stats import Interval, geometric_mean

PHASES = ("open questions", "copy tasks", "open questions again")
WINDOWS = (0, 50, 100, 200, 400)  # rounds after the switch


@dataclass(frozen=True, slots=True)
class Served:
    """One request of a phase: tokens and milliseconds of its rounds, and how many rounds of the phase came before it."""

    before: int
    tokens: tuple[int, ...]
    ms: tuple[float, ...]
    looped: bool

    @classmethod
    def of(cls, reply: Reply, before: int) -> Served:
        ms = round_ms(reply.rounds)
        return cls(before, tuple(map(int, reply.rounds["path"])), tuple(map(float, ms)), reply.looped)

    def between(self, first: int, end: int | None) -> tuple[int, float]:
        """Tokens and milliseconds of the rounds with these numbers in the phase."""
        low = max(0, first - self.before)
        high = None if end is None else max(0, end - self.before)
        return sum(self.tokens[low:high]), sum(self.ms[low:high])


Pair = tuple[Served, Served]  # live, fresh


def main() -> None:
    args = _arguments()
    local = Local.open(load_of(args))
    rng = random.Random(args.seed)
    openers, copies = read_prompts(args.prompts, args.n_prompts), read_prompts(args.copy, args.n_prompts)
    rng.shuffle(openers)
    rng.shuffle(copies)
    lines = Lines(args.out)
    lines.write(
        "run", machine=describe(), target=args.target.name, kernels=local.target.kernels,
        threads=local.target.n_threads, n_predict=args.n_predict, phase=args.phase, sequences=args.sequences,
        after=args.after,
    )  # fmt: skip
    measured: list[list[Pair]] = [[] for _ in PHASES]
    with Bar("workload switch", args.sequences * len(PHASES) * args.phase) as bar:
        for sequence in range(args.sequences):
            live = local.session()
            for number in range(len(PHASES)):
                prompts = _chosen(copies, args.phase, sequence) if number == 1 else _chosen(
                    openers, args.phase, 2 * sequence + number // 2
                )  # fmt: skip
                fresh = local.session()
                before = [0, 0]
                for prompt in prompts:
                    ids = local.ids(prompt)
                    served: dict[int, Served] = {}
                    with exclusive(args.lock):
                        wait_quiet()
                        for side in rng.sample((0, 1), 2):
                            reply = local.reply((live, fresh)[side], "adaspark", ids, args.n_predict)
                            served[side] = Served.of(reply, before[side])
                    for side, name in enumerate(("live", "fresh")):
                        before[side] += len(served[side].tokens)
                        lines.write(
                            "reply", sequence=sequence, phase=number, prompt=prompt.line, store=name,
                            before=served[side].before, looped=served[side].looped, tokens=served[side].tokens,
                            ms=[round(ms, 3) for ms in served[side].ms],
                        )  # fmt: skip
                    measured[number].append((served[0], served[1]))
                    bar.step()
    lines.close()
    for part in tables(measured, args.after):
        part.show()


def _chosen(prompts: Sequence[Prompt], n: int, number: int) -> list[Prompt]:
    """The ``number``-th ``n`` prompts, around the end."""
    return [prompts[(number * n + i) % len(prompts)] for i in range(n)]


def late_ratios(pairs: Sequence[Pair], after: int) -> list[float]:
    """Rates from the ``after``-th round of the phase on, live over fresh, of each reply with enough left to measure."""
    out = []
    for live, fresh in pairs:
        (tokens, ms), (their_tokens, their_ms) = live.between(after, None), fresh.between(after, None)
        if not (live.looped or fresh.looped) and min(tokens, their_tokens) >= SHORTEST:
            out.append((tokens / ms) / (their_tokens / their_ms))
    return out


def late_ratio(pairs: Sequence[Pair], after: int) -> Interval | None:
    """Their geometric mean, the interval over replies; None where nothing is left."""
    ratios = late_ratios(pairs, after)
    return geometric_mean(ratios) if ratios else None


def window_rates(pairs: Sequence[Pair], first: int, end: int | None) -> tuple[float, float]:
    """Tokens a second of the live and of the fresh store, pooled over the rounds of a window; nan where none ran."""
    rates = []
    for side in (0, 1):
        parts = [pair[side].between(first, end) for pair in pairs if not pair[side].looped]
        ms = sum(part[1] for part in parts)
        rates.append(sum(part[0] for part in parts) / ms * 1e3 if ms > 0 else float("nan"))
    return rates[0], rates[1]


def tables(measured: Sequence[Sequence[Pair]], after: int) -> list[Table]:
    bounds = list(zip(WINDOWS, (*WINDOWS[1:], None), strict=True))
    rows = []
    for name, pairs in zip(PHASES, measured, strict=True):
        cells = []
        for first, end in bounds:
            live, fresh = window_rates(pairs, first, end)
            cells.append("-" if np.isnan(live) or np.isnan(fresh) else f"{live:.0f} / {fresh:.0f}")
        used = f"{len(late_ratios(pairs, after))} of {len(pairs)}"
        rows.append([name, str(late_ratio(pairs, after) or "-"), used, *cells])
    return [
        Table(
            f"live store over fresh store, from round {after} after the switch",
            ["phase", "ratio [95%]", "replies", *(f"{first}-{end or ''}" for first, end in bounds)],
            rows,
            "geometric mean over replies that do not loop; then tokens a second, live / fresh, by rounds after the switch",
        )
    ]


def page(path: Path) -> list[str]:
    """The table of a stored run as Markdown; nothing where there is no such file."""
    run, replies = read_results(path)
    if not run:
        return []
    measured: list[list[Pair]] = [[] for _ in PHASES]
    for live, fresh in zip(replies[::2], replies[1::2], strict=True):  # as they were written
        measured[live["phase"]].append((_served(live), _served(fresh)))
    what = f"{ran_on(run)}; {run['sequences']} sequences of three phases of {run['phase']} requests."
    return [what, *(part for t in tables(measured, run["after"]) for part in t.markdown())]


def _served(record: Record) -> Served:
    return Served(record["before"], tuple(record["tokens"]), tuple(record["ms"]), record["looped"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser)
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL", help="open questions")
    parser.add_argument("--copy", required=True, type=Path, metavar="JSONL", help="texts to copy from")
    parser.add_argument("--n-prompts", type=int, default=88, help="of each file, spread evenly (default %(default)s)")
    parser.add_argument("--n-predict", type=int, default=256, help="tokens a reply (default %(default)s)")
    parser.add_argument("--phase", type=int, default=10, help="requests of a phase (default %(default)s)")
    parser.add_argument("--sequences", type=int, default=3, help="default %(default)s")
    parser.add_argument(
        "--after", type=int, default=100, help="rounds of a phase that are left out (default %(default)s)"
    )
    add_output_options(parser, "a prompt")
    return parser.parse_args()


if __name__ == "__main__":
    main()
