"""Do our kernels model text as well as llama.cpp's, on the same file? With prefill speed and peak memory beside it.

Each choice of kernels runs in a process of its own. The text is cut into windows; every token of a window but the first
is scored after all that precede it there. Perplexity is e to the mean of the negative log-likelihoods; they are
accumulated in double from the logits of chains of 64 rows.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from kit.engine import add_load_options, load_of, open_models
from kit.show import Lines, note

from adaspark.benchmark.machine import describe, exclusive
from adaspark.benchmark.stats import spread
from adaspark.cli.tables import table

_ROWS = 64
_PREFILL = 512  # tokens
_REPEATS = 7


def measure(args: argparse.Namespace) -> dict[str, float | str | int]:
    load = load_of(args)
    target, _ = open_models(load)
    tokens = target.tokenize(args.text.read_text(encoding="utf-8"))[: args.tokens]
    loss, scored = 0.0, 0
    for start in range(0, len(tokens), args.window):
        window = tokens[start : start + args.window]
        target.clear()
        logits = [target.prefill(window[:1])[None, :]]
        for at in range(1, len(window), _ROWS):
            part = window[at : at + _ROWS]
            before = logits[-1][-1:]
            _, rows = target.verify(part, list(range(-1, len(part) - 1)), logits=True)
            assert rows is not None
            target.commit(list(range(len(part))))
            loss -= _log_likelihood(np.concatenate([before, rows[:-1]]), part)
            scored += len(part)
            logits = [rows]
    times = []
    for _ in range(_REPEATS):
        target.clear()
        begin = time.perf_counter()
        target.prefill(tokens[:_PREFILL])
        times.append(min(_PREFILL, len(tokens)) / (time.perf_counter() - begin))
    rate = spread(times)
    return {
        "kernels": target.kernels, "tokens": scored, "perplexity": float(np.exp(loss / scored)),
        "prefill_tokens_per_s": round(rate.median, 1), "prefill_low": round(rate.low, 1),
        "prefill_high": round(rate.high, 1), "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }  # fmt: skip


def _log_likelihood(logits: np.ndarray[tuple[int, int], np.dtype[np.float32]], tokens: list[int]) -> float:
    x = logits.astype(np.float64)
    top = x.max(axis=1)
    total = np.log(np.exp(x - top[:, None]).sum(axis=1)) + top
    return float((x[np.arange(len(tokens)), tokens] - total).sum())


def main() -> int:
    args = _arguments()
    if args.one:
        print(json.dumps(measure(args)))
        return 0
    found = []
    for kernels in args.compare.split(","):
        note(f"{kernels}: {args.tokens} tokens")
        with exclusive(args.lock):
            command = [sys.executable, __file__, *sys.argv[1:], "--one", "--kernels", kernels]
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    lines = Lines(args.out)
    lines.write("run", machine=describe(), target=args.target.name, text=args.text.name)
    for one in found:
        lines.write("kernels", **one)
    lines.close()
    table(
        f"{args.target.name}, {found[0]['tokens']} tokens of {args.text.name}, windows of {args.window}",
        ["kernels", "perplexity", "prefill of 512, tok/s", "peak memory, MB"],
        [
            [one["kernels"], f"{one['perplexity']:.4f}", f"{one['prefill_tokens_per_s']}", f"{one['peak_memory_mb']}"]
            for one in found
        ],
        "tok/s: median of 7",
    )
    first, last = found[0]["perplexity"], found[-1]["perplexity"]
    print(f"perplexity: {100 * (first / last - 1):+.3f}% against the last")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_load_options(parser, drafter=False)
    parser.add_argument("--text", required=True, type=Path, help="a UTF-8 text file")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--window", type=int, default=2000, help="tokens")
    parser.add_argument("--compare", default="own,llama", help="kernels, the last is what the others are compared with")
    parser.add_argument("--out", type=Path, metavar="JSONL")
    parser.add_argument("--lock", type=Path, metavar="FILE", help="hold this file's lock during each measurement")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
