"""Plots verify_cost.py's CSV files: a panel for each, milliseconds by rows, a colour for each context.

Full lines are the first kernels of a file, dashed ones the second; both passes are drawn, so a width whose time depends
on the order shows as two lines.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="its ending names the format")
    args = parser.parse_args()
    figure, axes = plt.subplots(1, len(args.csv), figsize=(3.6 * len(args.csv), 3.4), squeeze=False)
    for axis, path in zip(axes[0], args.csv, strict=True):
        with path.open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["what"] == "rows"]
        lines: dict[tuple[str, int, str], list[tuple[int, float]]] = defaultdict(list)
        for row in rows:
            lines[row["kernels"], int(row["context"]), row["pass"]].append((int(row["n"]), float(row["median_ms"])))
        kernels = list(dict.fromkeys(row["kernels"] for row in rows))
        contexts = sorted({int(row["context"]) for row in rows})
        for (kind, context, number), points in lines.items():
            x, y = zip(*sorted(points), strict=True)
            axis.plot(
                x, y, color=COLOURS[contexts.index(context) % len(COLOURS)], linewidth=1,
                linestyle="-" if kind == kernels[0] else "--",
                label=f"{kind}, {context} tokens" if number == "0" else None,
            )  # fmt: skip
        axis.set_title(path.stem.removeprefix("verify_cost_"), fontsize=9)
        axis.set_xlabel("rows")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ms a verify")
    axes[0][0].legend(fontsize=6)
    figure.tight_layout()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, metadata={"Date": None} if args.out.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
