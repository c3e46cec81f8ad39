"""The cost model that serving taught, against a direct measurement of T(n) in the same process.

Requests are served on the arm adaspark, from an empty store, at a short and a long context in turns. After each request
every width is verified at one of the contexts as in the middle of a reply: after rounds of one row, the narrow widths
first, a draft before each verify, the last of a few timed. Then the prices the scheduler has learned, as they were at the
end of the last reply at that context, are held against those times: against their 0.15 quantile, which is what a law is
fitted to, and against their median, which a price is to be; and each step of T(n), a row that costs clearly more than the
rows around it, against the table's own, which lie between one priced width and the next. Last, what it costs a width to
alternate with others.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from kit.engine import add_load_options, add_output_options, load_of, ranges, request_of
from kit.learned_costs import ERROR, Measured, tables
from kit.local import Local, Reply
from kit.prompts import Prompt, chat_tokens, read_prompts
from kit.show import Bar, Lines

from adaspark import _core
from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.benchmark.stats import spread
from adaspark.config import Arm
from adaspark.learned import core_config

if TYPE_CHECKING:
    from adaspark._engine import Session

ARM = "adaspark"
ALTERNATING = (4, 8, 16)  # rows
WARM = 32  # rounds of one row after the prompt
SETTLED = 3  # verifies of a width, of which the last is timed


def main() -> None:
    args = _arguments()
    local = Local.open(load_of(args))
    rng = random.Random(args.seed)
    texts = read_prompts(args.prompts, args.n_prompts)
    rng.shuffle(texts)
    session = local.session()
    measured = {context: Measured(context) for context in sorted(args.contexts)}
    times: dict[int, dict[int, list[float]]] = {context: {} for context in measured}
    replies: list[Reply] = []
    with Bar("learned table", args.requests) as bar:
        for number in range(args.requests):
            at = measured[sorted(measured)[number % len(measured)]]
            prompt = long_prompt(local, texts, number, at.context - args.n_predict // 2)
            with exclusive(args.lock):
                wait_quiet()
                replies.append(local.reply(session, ARM, prompt, args.n_predict))
                read_learned(local, session, at)
                sweep(local, at.context, times[at.context], prompt, args.rows)
            bar.step()
    ids = long_prompt(local, texts, 0, args.contexts[0])
    alone, alternating = alternate(local, ids, args.contexts[0], [n for n in ALTERNATING if n <= local.target.max_rows])
    for context, at in measured.items():
        at.direct(times[context])
    _write(args, local, measured, replies, alone, alternating)
    for part in tables(measured.values(), alone, alternating):
        part.show()
    print(f"{ERROR}: {price_error(replies)}")


def long_prompt(local: Local, texts: Sequence[Prompt], first: int, length: int) -> list[int]:
    """A chat message of several texts of the file, from the ``first`` on, that is about ``length`` tokens long."""
    text = texts[first % len(texts)].text
    ids = chat_tokens(local.target, text)
    for i in range(1, len(texts)):
        if len(ids) >= length:
            break
        text = f"{texts[(first + i) % len(texts)].text}\n\n{text}"
        ids = chat_tokens(local.target, text)
    return ids[-max(1, length) :] if len(ids) > length else ids


def sweep(
    local: Local, context: int, times: dict[int, list[float]], prompt: Sequence[int], rows: Sequence[int]
) -> None:
    """Every width at the context, in the middle of a reply: after a prompt or many rows one row is slow for a while."""
    text = _fill(local, prompt, context)
    for _ in range(WARM):
        _verify(local, text, 1)
    for n in sorted(rows):
        times.setdefault(n, []).append([_verify(local, text, n) for _ in range(SETTLED)][-1])


def _fill(local: Local, prompt: Sequence[int], context: int) -> list[int]:
    target = local.target
    text = (list(prompt) * (context // len(prompt) + 2))[: context + target.max_rows]
    target.clear()
    target.prefill(text[:context])
    return text


def _verify(local: Local, text: Sequence[int], rows: int) -> float:
    """Milliseconds of a chain of rows after the cache's text; the cache is left as it was."""
    start = local.target.n_past
    if local.drafter is not None:
        local.drafter.draft(text[start], local.drafter.n_draft)
    tokens, parents = text[start : start + rows], list(range(-1, rows - 1))
    begin = time.perf_counter()
    local.target.verify(tokens, parents)
    taken = time.perf_counter() - begin
    local.target.commit([])
    return taken * 1e3


def alternate(
    local: Local, prompt: Sequence[int], context: int, rows: Sequence[int], times: int = 60
) -> tuple[dict[int, float], dict[int, float]]:
    """Median milliseconds of each width on its own, ``times`` in a row, and in turns with the others."""
    text = _fill(local, prompt, context)
    alone = {n: [_verify(local, text, n) for _ in range(times)] for n in rows}
    mixed: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(times):
        for n in rows:
            mixed[n].append(_verify(local, text, n))
    return {n: spread(v).median for n, v in alone.items()}, {n: spread(v).median for n, v in mixed.items()}


def read_learned(local: Local, session: Session, at: Measured) -> None:
    """The prices at the end of a reply at their context: the drift clock is one number, a cold cache's effect is not."""
    state = session.learned(request_of(ARM, 1))
    block = 0 if local.drafter is None else local.drafter.n_draft
    scheduler = _core.Scheduler(core_config(Arm.parse(ARM), block, local.target.max_rows), np.empty(0, dtype=np.int32))
    if state is None or not scheduler.load(state):
        msg = "the session has learned nothing that this build reads"
        raise SystemExit(msg)
    prices = scheduler.prices_at(at.context)
    for rows, us, samples in zip(prices["rows"], prices["us"], prices["samples"], strict=True):
        if us is not None:
            at.learned[rows], at.samples[rows] = us / 1e3, samples


def chosen_errors(replies: Sequence[Reply]) -> list[float]:
    """|price / time - 1| of the verifies whose chosen width was priced and filled, second half of the requests; a
    request's first round runs cold and is left out."""
    out: list[float] = []
    for reply in replies[len(replies) // 2 :]:
        rounds = reply.rounds[1:]
        rounds = rounds[(rounds["verify_price"] > 0) & (rounds["rows"] == rounds["asked_rows"])]
        out += np.abs(rounds["verify_price"] / rounds["verify_us"] - 1.0).tolist()
    return out


def price_error(replies: Sequence[Reply]) -> str:
    errors = chosen_errors(replies)
    if not errors:
        return "no priced round"
    s = spread(errors)
    return f"median {s.median:.1%} (quartiles {s.low:.1%} and {s.high:.1%}) of {s.n} rounds"


def _write(
    args: argparse.Namespace, local: Local, measured: Mapping[int, Measured], replies: Sequence[Reply],
    alone: Mapping[int, float], alternating: Mapping[int, float],
) -> None:  # fmt: skip
    lines = Lines(args.out)
    lines.write(
        "run", machine=describe(), target=args.target.name, kernels=local.target.kernels, threads=local.target.n_threads,
        requests=args.requests, n_predict=args.n_predict, price_error=price_error(replies),
    )  # fmt: skip
    rows = []
    for at in measured.values():
        for n in sorted(set(at.median) | set(at.learned)):
            times = {"median_ms": at.median.get(n), "low_ms": at.low.get(n), "learned_ms": at.learned.get(n)}
            rounded = {name: None if ms is None else round(ms, 4) for name, ms in times.items()}
            rows.append({"context": at.context, "rows": n, **rounded, "samples": at.samples.get(n)})
            lines.write("width", **rows[-1])
    for n, ms in alone.items():
        lines.write("alternating", rows=n, alone_ms=round(ms, 4), alternating_ms=round(alternating[n], 4))
    lines.close()
    if args.csv is not None:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    if args.plot is not None:
        _plot(args.plot, local.target.kernels, measured)


def _plot(path: Path, kernels: str, measured: Mapping[int, Measured]) -> None:
    from adaspark.plots import new_figure, save

    figure, axes = new_figure(f"Verify time by rows, {kernels}", "rows", "milliseconds")
    for number, at in enumerate(measured.values()):
        rows = sorted(at.median)
        color = f"C{number}"
        axes.plot(rows, [at.median[n] for n in rows], "-", color=color, label=f"measured, context {at.context}")
        axes.fill_between(
            rows,
            [at.low[n] for n in rows],
            [at.high[n] for n in rows],
            color=color,
            alpha=0.2,
        )
        axes.plot(list(at.learned), list(at.learned.values()), "o", color=color, label=f"learned, context {at.context}")
    axes.set_ylim(bottom=0)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    save(figure, path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser, drafter=False)  # without one, rounds are plain or the text's own
    parser.add_argument("--prompts", required=True, type=Path, metavar="JSONL")
    parser.add_argument("--n-prompts", type=int, default=88, help="spread evenly over the file (default %(default)s)")
    parser.add_argument("--n-predict", type=int, default=128, help="tokens a reply (default %(default)s)")
    parser.add_argument("--requests", type=int, default=20, help="of both contexts together (default %(default)s)")
    parser.add_argument("--contexts", type=ranges, default=[300, 2000], help="tokens (default 300,2000)")
    parser.add_argument("--rows", type=ranges, default=list(range(1, 65)), help="default 1-64")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one line a width and context")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="needs matplotlib")
    add_output_options(parser, "a request")
    return parser.parse_args()


if __name__ == "__main__":
    main()
