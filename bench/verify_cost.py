"""What a verify costs by its rows, and a draft block by its positions: T(n) for choosing defaults by measurement.

Every combination of the given target files, drafter files, flash attention settings and thread counts is loaded once;
repetitions go round over all of them, so a drift of the machine's speed falls on all alike. A verify is timed from its
call to its return, the rows' argmax included, and dropped again; a draft block follows one that put the context into
the drafter's cache, so it is the block alone.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kit.engine import Load, open_models
from kit.show import Bar, Lines, note

from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.benchmark.stats import Spread, spread
from adaspark.cli.tables import table

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Target

TEXT = "The river ran slowly past the mill, where an old man counted the boats and wrote their names in a small book. "


@dataclass(slots=True)
class Config:
    """One combination and its times: (what, context, n) -> milliseconds; what is "rows" or "draft"."""

    label: str
    target: Target
    drafter: Drafter | None
    text: list[int]
    times: dict[tuple[str, int, int], list[float]] = field(default_factory=dict)

    def fill(self, context: int) -> None:
        """Bring the caches to a context length."""
        if self.target.n_past < context:
            self.target.prefill(self.text[self.target.n_past : context])
        if self.drafter is not None:
            self.drafter.draft(self.text[context], 1)

    def verify(self, rows: int, shape: str) -> float:
        start = self.target.n_past
        tokens = self.text[start : start + rows]
        parents = list(range(-1, rows - 1)) if shape == "chain" else [-1] + [0] * (rows - 1)
        begin = time.perf_counter()
        self.target.verify(tokens, parents)
        taken = time.perf_counter() - begin
        self.target.commit([])
        return taken * 1e3

    def draft(self, positions: int) -> float:
        assert self.drafter is not None
        anchor = self.text[self.target.n_past]
        begin = time.perf_counter()
        self.drafter.draft(anchor, positions)
        return (time.perf_counter() - begin) * 1e3


def main() -> None:
    args = _arguments()
    configs = _open(args)
    rng = random.Random(args.seed)
    with Bar("verify cost", len(args.contexts) * args.reps) as bar:
        for context in sorted(args.contexts):
            with exclusive(args.lock):
                for config in configs:
                    config.fill(context)
            for _ in range(args.reps):
                with exclusive(args.lock):
                    wait_quiet()
                    _round(configs, context, args, rng)
                bar.step()
    lines = Lines(args.out)
    lines.write("run", machine=describe(), shape=args.shape, reps=args.reps)
    for config in configs:
        for (what, context, n), values in config.times.items():
            s = spread(values)
            lines.write(
                what, config=config.label, context=context, n=n, median_ms=round(s.median, 4), low_ms=round(s.low, 4),
                high_ms=round(s.high, 4), reps=s.n,
            )  # fmt: skip
    lines.close()
    for context in sorted(args.contexts):
        _report(configs, context, "rows", args.rows, f"verify, {args.shape}, context {context}: ms by rows")
    if args.drafter:
        for context in sorted(args.contexts):
            _report(configs, context, "draft", args.positions, f"draft block, context {context}: ms by positions")


def _round(configs: list[Config], context: int, args: argparse.Namespace, rng: random.Random) -> None:
    for config in rng.sample(configs, len(configs)):
        # The first call wakes the threads and brings this configuration's weights into the cache.
        config.verify(args.rows[0], args.shape)
        for n in rng.sample(args.rows, len(args.rows)):
            config.times.setdefault(("rows", context, n), []).append(config.verify(n, args.shape))
        if config.drafter is None:
            continue
        config.draft(1)
        for n in rng.sample(args.positions, len(args.positions)):
            if n <= config.drafter.n_draft:
                config.times.setdefault(("draft", context, n), []).append(config.draft(n))


def _report(configs: list[Config], context: int, what: str, counts: list[int], title: str) -> None:
    rows = []
    for config in configs:
        cells = [config.times.get((what, context, n)) for n in counts]
        rows.append([config.label, *("-" if cell is None else _cell(spread(cell)) for cell in cells)])
    table(title, ["configuration", *map(str, counts)], rows, "median (IQR)")


def _cell(s: Spread) -> str:
    return f"{s.median:.2f} ({s.low:.2f}-{s.high:.2f})"


def _open(args: argparse.Namespace) -> list[Config]:
    configs = []
    drafters: list[Path | None] = list(args.drafter) or [None]
    choices = itertools.product(args.target, drafters, args.flash_attention, args.threads)
    for path, drafter_path, flash, threads in choices:
        load = Load(
            target=str(path),
            drafter=None if drafter_path is None else str(drafter_path),
            threads=threads,
            ctx=max(args.contexts) + max(args.rows) + 64,
            flash_attention=flash,
            engine=None if args.engine is None else str(args.engine),
        )
        target, drafter = open_models(load)
        names = [path.stem, *([] if drafter_path is None else [drafter_path.stem])]
        text = target.tokenize(TEXT)
        text *= load.ctx // len(text) + 1
        configs.append(Config(f"{' + '.join(names)}, fa {flash}, {target.n_threads} threads", target, drafter, text))
        note(f"loaded {configs[-1].label}")
    return configs


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, type=Path, action="append", metavar="GGUF", help="may be repeated")
    parser.add_argument("--drafter", type=Path, action="append", default=[], metavar="GGUF", help="may be repeated")
    parser.add_argument("--flash-attention", type=_words, default=["auto"], help="of auto, on, off (default: auto)")
    parser.add_argument("--threads", type=_numbers, default=[0], help="0: the engine's default")
    parser.add_argument("--contexts", type=_numbers, default=[300, 1000, 2000], help="tokens")
    parser.add_argument("--rows", type=_numbers, default=[1, 2, 3, 4, 6, 8, 12, 16, 32])
    parser.add_argument("--positions", type=_numbers, default=[1, 2, 3, 4, 5, 6, 7])
    parser.add_argument("--shape", choices=["chain", "fan"], default="chain", help="fan: all rows below the anchor")
    parser.add_argument("--reps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", type=Path, metavar="FILE", help="another build of adaspark._engine to measure")
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="hold this file's lock while a repetition is measured"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
