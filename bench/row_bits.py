"""Over which widths are a row's logits the same bits, and how far are they from those of the row alone?

A chain of 64 rows after a context is verified at every width from 1 to 64. ``same`` says that all rows shared with the
width before have the same bits there; ``off`` is the largest difference of a logit from that of the row computed one at
a time. Trees of 8 to 64 rows: the largest difference of a row's logits from those of its path verified as a chain.
Exit status 1 when a row is further off than ``--limit``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from kit.engine import Load, open_models
from kit.show import note

from adaspark.cli.tables import table

if TYPE_CHECKING:
    from adaspark._engine import Target

ROWS = 64
TREES = (8, 16, 32, 64)


def main() -> int:
    args = _arguments()
    lines: list[list[str]] = []
    report, worst = [], 0.0
    for path, kernels in itertools.product(args.target, args.kernels):
        target, _ = open_models(
            Load(str(path), ctx=args.context + ROWS + 8, kernels=kernels, gpu_layers=args.gpu_layers)
        )
        rng = random.Random(args.seed)
        target.prefill([rng.randrange(300, 500) for _ in range(args.context)])
        tokens = [rng.randrange(300, 500) for _ in range(ROWS)]
        spread, same, off = _widths(target, tokens)
        trees = [_tree(target, rng, tokens, rows) for rows in TREES]
        name = [path.stem, target.kernels]
        for n, (equal, d) in enumerate(zip(same, off, strict=True), 1):
            lines.append([*name, "chain", str(n), str(int(equal)), f"{d:.6g}"])
        lines += [[*name, "tree", str(n), "", f"{d:.6g}"] for n, d in zip(TREES, trees, strict=True)]
        report.append([*name, _runs(same), f"{max(off):.4f}", f"{max(trees):.4f}", f"{spread:.2f}"])
        worst = max(worst, *off, *trees)
        target.close()
        note(f"measured {path.stem} on {name[1]}")
    if args.csv is not None:
        args.csv.parent.mkdir(parents=True, exist_ok=True)
        with args.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["model", "kernels", "shape", "rows", "same_as_width_before", "off"])
            writer.writerows(lines)
    table(
        f"bits of rows after {args.context} tokens",
        ["model", "kernels", "widths of equal bits", "off, chain", "off, tree", "deviation of logits"],
        report,
    )
    return int(worst > args.limit)


def _rows(target: Target, tokens: list[int], parents: list[int]) -> np.ndarray:
    _, logits = target.verify(tokens, parents, logits=True)
    assert logits is not None
    target.commit([])
    return logits


def _widths(target: Target, tokens: list[int]) -> tuple[float, list[bool], list[float]]:
    """Deviation of the logits; for each width whether it repeats the one before, and how far it is from rows alone."""
    start = target.n_past
    alone = []
    for token in tokens:
        _, logits = target.verify([token], [-1], logits=True)
        assert logits is not None
        alone.append(logits[0])
        target.commit([0])
    target.rollback(start)
    same, off = [], []
    before = np.stack(alone)[:0]
    for n in range(1, ROWS + 1):
        rows = _rows(target, tokens[:n], list(range(-1, n - 1)))
        same.append(n > 1 and rows[: n - 1].tobytes() == before.tobytes())
        off.append(float(np.abs(rows - np.stack(alone[:n])).max()))
        before = rows
    return float(np.std(alone)), same, off


def _tree(target: Target, rng: random.Random, tokens: list[int], n: int) -> float:
    """A random depth-first tree: each row hangs below the row before it or one of that row's ancestors."""
    parents = [-1]
    for row in range(1, n):
        parent = row - 1
        while parent > 0 and rng.random() < 0.4:
            parent = parents[parent]
        parents.append(parent)
    logits = _rows(target, tokens[:n], parents)
    off = 0.0
    for row in range(n):
        path = [row]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        chain = _rows(target, [tokens[r] for r in path], list(range(-1, len(path) - 1)))
        off = max(off, float(np.abs(chain[-1] - logits[row]).max()))
    return off


def _runs(same: list[bool]) -> str:
    """ "1, 2-8, 9-64": widths whose rows have the same bits."""
    out, first = [], 1
    for n in range(2, len(same) + 2):
        if n > len(same) or not same[n - 1]:
            out.append(str(first) if first == n - 1 else f"{first}-{n - 1}")
            first = n
    return ", ".join(out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, type=Path, action="append", metavar="GGUF", help="may be repeated")
    parser.add_argument("--kernels", type=lambda text: text.split(","), default=["auto"], help="of own, ggml, llama")
    parser.add_argument("--gpu-layers", type=int, default=-1, metavar="N", help="-1: all (default)")
    parser.add_argument("--context", type=int, default=450, help="tokens (default %(default)s)")
    parser.add_argument("--limit", type=float, default=1.0, help="largest difference allowed (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
