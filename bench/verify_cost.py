"""What a verify costs by its rows, and a draft block by its positions: T(n) for choosing defaults by measurement.

Every combination of the given target files, drafter files, kernels, flash attention settings and thread counts is loaded
once; repetitions go round over all of them, so a drift of the machine's speed falls on all alike. A verify is timed from
its call to its return and dropped again: our backends return with every row's argmax at hand or its logits in memory,
llama.cpp's with the logits in memory. A draft block follows one that put the context into the drafter's cache, so it is
the block alone.

With ``--passes`` each configuration is measured alone instead, pass by pass: widths upwards in the first, downwards in
the second, and so on. What the order does to a width (caches, clocks, recorded graphs) shows as a difference of passes.

``--host`` tells, for graphs of ggml's operations, how a verify's time divides: device, the same graph started many times
one behind the other without waiting; host, what a verify takes beyond that, while the device has nothing to do; of the
calls into ggml, asking for copies, starting the graph and waiting; own, everything outside those calls, Python's part
included. How long a model takes to load, and the most memory it then needs, is printed in any case.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kit.engine import Load, open_models, ranges
from kit.show import Bar, Lines, note

from adaspark.benchmark.machine import describe, exclusive, wait_quiet
from adaspark.benchmark.stats import Spread, spread
from adaspark.cli.tables import table

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Target

TEXT = "The river ran slowly past the mill, where an old man counted the boats and wrote their names in a small book. "

HOST = ("device", "host", "copy", "submit", "wait", "own")

_SETTLE = 0.1  # seconds: the threads of the configuration before stop spinning


@dataclass(slots=True)
class Config:
    """One combination and its times: (what, context, n, pass) -> milliseconds; what is "rows", "draft" or one of HOST."""

    label: str
    model: str
    target: Target
    drafter: Drafter | None
    text: list[int]
    times: dict[tuple[str, int, int, int], list[float]] = field(default_factory=dict)

    def record(self, what: str, context: int, n: int, number: int, ms: float) -> None:
        self.times.setdefault((what, context, n, number), []).append(ms)

    def of(self, what: str, context: int, n: int) -> list[float]:
        """Times of all passes."""
        return [t for (w, c, m, _), times in self.times.items() if (w, c, m) == (what, context, n) for t in times]

    def fill(self, context: int) -> None:
        """Bring the caches to a context length."""
        if self.target.n_past < context:
            self.target.prefill(self.text[self.target.n_past : context])
        if self.drafter is not None:
            self.drafter.draft(self.text[context], 1)

    def verify(self, rows: int, shape: str) -> float:
        taken = self._start(rows, shape)
        self.target.commit([])
        return taken * 1e3

    def _start(self, rows: int, shape: str) -> float:
        start = self.target.n_past
        tokens = self.text[start : start + rows]
        parents = list(range(-1, rows - 1)) if shape == "chain" else [-1] + [0] * (rows - 1)
        begin = time.perf_counter()
        self.target.verify(tokens, parents, picks=False)
        return time.perf_counter() - begin

    def takes(self, rows: int) -> bool:
        """Every row is taken back, the anchor's too: without trees so many as a chain has drafts."""
        return rows <= self.target.max_rows and (self.target.supports_tree or rows <= self.target.max_chain)

    def host(self, rows: int, shape: str, reps: int) -> dict[str, float]:
        """Milliseconds of a verify by part; empty where the target cannot tell."""
        before = self.target.device_times()
        if before is None:
            return {}
        whole = sum(self.verify(rows, shape) for _ in range(reps)) / reps
        after = self.target.device_times()
        assert after is not None
        out = {part: (after[f"{part}_us"] - before[f"{part}_us"]) / reps / 1e3 for part in ("copy", "submit", "wait")}  # type: ignore[literal-required]
        out["own"] = whole - sum(out.values())
        self._start(rows, shape)
        self.target.replay_us(reps)
        out["device"] = self.target.replay_us(reps) / 1e3
        self.target.commit([])
        out["host"] = whole - out["device"]
        return out

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
    if args.passes:
        _run_passes(configs, args)
    else:
        _run_rounds(configs, args, rng)
    lines = Lines(args.out)
    lines.write("run", machine=describe(), shape=args.shape, reps=args.reps, passes=args.passes)
    for config in configs:
        for (what, context, n, number), values in config.times.items():
            s = spread(values)
            lines.write(
                what, config=config.label, context=context, n=n, **{"pass": number}, median_ms=round(s.median, 4),
                low_ms=round(s.low, 4), high_ms=round(s.high, 4), reps=s.n,
            )  # fmt: skip
    lines.close()
    if args.csv is not None:
        _write_csv(configs, args.csv)
    for context in sorted(args.contexts):
        _report(configs, context, "rows", args.rows, f"verify, {args.shape}, context {context}: ms by rows")
    if args.host:
        for context in sorted(args.contexts):
            _report_host(configs, context, args.rows)
    if args.drafter:
        for context in sorted(args.contexts):
            _report(configs, context, "draft", args.positions, f"draft block, context {context}: ms by positions")


def _run_rounds(configs: list[Config], args: argparse.Namespace, rng: random.Random) -> None:
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


def _run_passes(configs: list[Config], args: argparse.Namespace) -> None:
    warm_up = 3  # calls: the first of a width may build a graph, the second records it
    with Bar("verify cost", len(configs) * len(args.contexts) * args.passes) as bar:
        for config in configs:
            for context in sorted(args.contexts):
                config.fill(context)
                for number in range(args.passes):
                    for n in sorted(filter(config.takes, args.rows), reverse=number % 2 == 1):
                        times = [config.verify(n, args.shape) for _ in range(warm_up + args.reps)]
                        for ms in times[warm_up:]:
                            config.record("rows", context, n, number, ms)
                        if args.host:
                            for part, ms in config.host(n, args.shape, args.reps).items():
                                config.record(part, context, n, number, ms)
                    for n in sorted(args.positions, reverse=number % 2 == 1):
                        if config.drafter is not None and n <= config.drafter.n_draft:
                            times = [config.draft(n) for _ in range(warm_up + args.reps)]
                            for ms in times[warm_up:]:
                                config.record("draft", context, n, number, ms)
                    bar.step()


def _write_csv(configs: list[Config], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["model", "kernels", "what", "context", "n", "pass", "median_ms", "low_ms", "high_ms", "min_ms", "reps"]
        )
        for config in configs:
            for (what, context, n, number), values in config.times.items():
                s = spread(values)
                ms = [f"{v:.4f}" for v in (s.median, s.low, s.high, min(values))]
                writer.writerow([config.model, config.target.kernels, what, context, n, number, *ms, s.n])


def _round(configs: list[Config], context: int, args: argparse.Namespace, rng: random.Random) -> None:
    for config in rng.sample(configs, len(configs)):
        time.sleep(_SETTLE)
        # The first call wakes the threads and brings this configuration's weights into the cache.
        config.verify(args.rows[0], args.shape)
        for n in filter(config.takes, rng.sample(args.rows, len(args.rows))):
            config.record("rows", context, n, 0, config.verify(n, args.shape))
            if args.host:
                for part, ms in config.host(n, args.shape, 3).items():
                    config.record(part, context, n, 0, ms)
        if config.drafter is None:
            continue
        config.draft(1)
        for n in rng.sample(args.positions, len(args.positions)):
            if n <= config.drafter.n_draft:
                config.record("draft", context, n, 0, config.draft(n))


def _report(configs: list[Config], context: int, what: str, counts: list[int], title: str) -> None:
    rows = []
    for config in configs:
        cells = [config.of(what, context, n) for n in counts]
        rows.append([config.label, *(_cell(spread(cell)) if cell else "-" for cell in cells)])
    table(title, ["configuration", *map(str, counts)], rows, "median (IQR)")


def _report_host(configs: list[Config], context: int, counts: list[int]) -> None:
    rows = []
    for config in configs:
        for n in counts:
            parts = {part: spread(times).median for part in HOST if (times := config.of(part, context, n))}
            if parts:
                whole = parts["device"] + parts["host"]
                cells = (f"{parts[p]:.3f} ({parts[p] / whole:.0%})" for p in HOST)
                rows.append([config.label, str(n), f"{whole:.3f}", *cells])
    table(f"a verify's time by part, context {context}: ms", ["configuration", "rows", "whole", *HOST], rows, "medians")


def _cell(s: Spread) -> str:
    return f"{s.median:.2f} ({s.low:.2f}-{s.high:.2f})"


def _open(args: argparse.Namespace) -> list[Config]:
    configs = []
    drafters: list[Path | None] = list(args.drafter) or [None]
    choices = itertools.product(args.target, drafters, args.kernels, args.flash_attention, args.threads)
    for path, drafter_path, kernels, flash, threads in choices:
        load = Load(
            target=str(path),
            drafter=None if drafter_path is None else str(drafter_path),
            threads=threads,
            ctx=max(args.contexts) + max(args.rows) + 64,
            flash_attention=flash,
            kernels=kernels,
            gpu_layers=args.gpu_layers,
            engine=None if args.engine is None else str(args.engine),
        )
        begin = time.perf_counter()
        target, drafter = open_models(load)
        loaded = time.perf_counter() - begin
        names = [path.stem, *([] if drafter_path is None else [drafter_path.stem])]
        text = target.tokenize(TEXT)
        text *= load.ctx // len(text) + 1
        label = f"{' + '.join(names)}, {target.kernels}, fa {flash}, {target.n_threads} threads"
        configs.append(Config(label, path.stem, target, drafter, text))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # of the process so far
        note(f"loaded {configs[-1].label} in {loaded:.1f} s; peak memory of the process so far {peak:.0f} MiB")
    return configs


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _words(text: str) -> list[str]:
    return text.split(",")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, type=Path, action="append", metavar="GGUF", help="may be repeated")
    parser.add_argument("--drafter", type=Path, action="append", default=[], metavar="GGUF", help="may be repeated")
    parser.add_argument("--kernels", type=_words, default=["auto"], help="of auto, own, ggml, llama (default: auto)")
    parser.add_argument("--gpu-layers", type=int, default=-1, metavar="N", help="-1: all (default)")
    parser.add_argument("--flash-attention", type=_words, default=["auto"], help="of auto, on, off (default: auto)")
    parser.add_argument("--threads", type=_numbers, default=[0], help="0: the engine's default")
    parser.add_argument("--contexts", type=_numbers, default=[300, 1000, 2000], help="tokens")
    parser.add_argument("--rows", type=ranges, default=[1, 2, 3, 4, 6, 8, 12, 16, 32])
    parser.add_argument("--positions", type=_numbers, default=[1, 2, 3, 4, 5, 6, 7])
    parser.add_argument("--shape", choices=["chain", "fan"], default="chain", help="fan: all rows below the anchor")
    parser.add_argument("--reps", type=int, default=15, help="of each pass, with --passes")
    parser.add_argument("--passes", type=int, default=0, help="0: none, all configurations in turns")
    parser.add_argument("--host", action="store_true", help="how a verify's time divides; see above")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", type=Path, metavar="FILE", help="another build of adaspark._engine to measure")
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one line a width, context and pass")
    parser.add_argument(
        "--lock", type=Path, metavar="FILE", help="hold this file's lock while a repetition is measured"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
