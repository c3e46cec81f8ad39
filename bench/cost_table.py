"""Makes the table `adaspark-run replay --costs` reads from verify_cost.py's CSV: a line over context for each width.

The draft's line is that of the largest block in the file, or of ``--draft`` CSV where the file has none.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--kernels", default="ggml", help="lines whose kernels begin so (default %(default)s)")
    parser.add_argument(
        "--draft", type=Path, metavar="CSV", help="where the drafter's times are (default: the same file)"
    )
    parser.add_argument(
        "--commit-us", type=float, nargs=2, default=[5.0, 50.0], metavar="US", help="without and with the drafter"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="JSON")
    args = parser.parse_args()
    verify = times(args.csv, args.kernels, "rows")
    draft = times(args.draft or args.csv, args.kernels, "draft")
    table = {
        "verify": [{"rows": n, **line(points)} for n, points in sorted(verify.items())],
        "draft": line(draft[max(draft)]),
        "commit_us": args.commit_us,
    }
    args.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def times(path: Path, kernels: str, what: str) -> dict[int, list[tuple[int, float]]]:
    """By width: contexts and milliseconds, all passes."""
    out: dict[int, list[tuple[int, float]]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["what"] == what and row["kernels"].startswith(kernels):
                out.setdefault(int(row["n"]), []).append((int(row["context"]), float(row["median_ms"])))
    if not out:
        msg = f"{path} has no times of {what!r} on {kernels}"
        raise SystemExit(msg)
    return out


def line(points: list[tuple[int, float]]) -> dict[str, float]:
    x, y = np.array(points).T
    slope, start = np.polyfit(x, y * 1e3, 1)
    return {"us": round(float(start), 2), "us_per_token": round(max(0.0, float(slope)), 6)}


if __name__ == "__main__":
    main()
