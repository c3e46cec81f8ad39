"""What a verify of n rows could cost at best on a machine, beside what it costs.

Two files of measurements go in: kernel_bench's (read bandwidth, int8 products a second in registers, and of our products
with weights in the cache) and verify_cost.py's with ``--kernels own,llama``. The bound of a verify of n rows is the
larger of reading every weight and the committed keys and values once, and of n times the model's products at the
machine's peak; the line "our products" has the rate our kernels reach on cached weights instead. CSV and a plot come out.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np


@dataclass(frozen=True, slots=True)
class Model:
    """Work of one row: bytes of weights and products of weights; of the context: bytes and products a position."""

    weight_bytes: float
    weight_products: float
    context_bytes: float
    context_products: float


def read_model(path: Path) -> Model:
    reader = gguf.GGUFReader(path)
    arch = str(reader.fields["general.architecture"].contents())

    def number(key: str) -> int:
        return int(reader.fields[f"{arch}.{key}"].contents())

    matrices = [t for t in reader.tensors if len(t.shape) == 2 and min(t.shape) > 1]
    tied = not any(t.name == "output.weight" for t in matrices)
    used = [t for t in matrices if t.name != "token_embd.weight" or tied]
    heads, heads_kv = number("attention.head_count"), number("attention.head_count_kv")
    width = number("embedding_length") // heads
    return Model(
        weight_bytes=float(sum(t.n_bytes for t in used)),
        weight_products=float(sum(int(np.prod(t.shape)) for t in used)),
        context_bytes=number("block_count") * heads_kv * width * 2 * 2.0,  # keys and values in F16
        context_products=number("block_count") * heads * width * 2.0,
    )


def main() -> None:
    args = _arguments()
    model = read_model(args.target)
    machine = [json.loads(line) for line in args.kernels.read_text("utf-8").splitlines()]
    gemms = [m for m in machine if m["what"] == "gemm"]
    # The better of a plain read and of a product of one row: neither can be faster than the memory.
    read = max(m["gb_s"] for m in machine if m["what"] in ("read", "gemm")) * 1e9
    peak = max(m["gmac_s"] for m in machine if m["what"] == "peak") * 1e9
    cached = max(m["cached_gmac_s"] for m in gemms if m["format"] == args.format) * 1e9
    measured: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for line in args.costs.read_text("utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "rows":
            kernels = "llama.cpp" if ", llama," in record["config"] else "own"
            measured[kernels, record["context"]][record["n"]] = record["median_ms"]
    rows: list[dict[str, Any]] = []
    for (kernels, context), times in sorted(measured.items()):
        for n, ms in sorted(times.items()):
            memory = (model.weight_bytes + context * model.context_bytes) / read * 1e3
            products = n * (model.weight_products + context * model.context_products) * 1e3
            rows.append({
                "kernels": kernels, "context": context, "rows": n, "ms": ms, "memory_ms": round(memory, 4),
                "peak_ms": round(products / peak, 4), "our_products_ms": round(products / cached, 4),
            })  # fmt: skip
    with args.csv.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    if args.plot is not None:
        _plot(rows, args.plot)
    print(f"{len(rows)} rows: {args.csv}")


def _plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    contexts = sorted({row["context"] for row in rows})
    figure, axes = plt.subplots(1, len(contexts), figsize=(5.5 * len(contexts), 4.2), squeeze=False)
    for axis, context in zip(axes[0], contexts, strict=True):
        for kernels, color in (("llama.cpp", "tab:gray"), ("own", "tab:blue")):
            part = [row for row in rows if row["context"] == context and row["kernels"] == kernels]
            axis.plot([r["rows"] for r in part], [r["ms"] for r in part], "o-", color=color, label=kernels)
        part = [row for row in rows if row["context"] == context and row["kernels"] == "own"]
        n = [r["rows"] for r in part]
        axis.plot(n, [max(r["memory_ms"], r["peak_ms"]) for r in part], "k--", label="roofline")
        ours = [max(r["memory_ms"], r["our_products_ms"]) for r in part]
        axis.plot(n, ours, ":", color="tab:blue", label="our products on cached weights")
        axis.set(xscale="log", yscale="log", xlabel="rows", ylabel="ms", title=f"verify, {context} tokens of context")
        axis.set_xticks(n, [str(i) for i in n])
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, type=Path, metavar="GGUF")
    parser.add_argument("--kernels", required=True, type=Path, metavar="JSONL", help="what kernel_bench printed")
    parser.add_argument("--costs", required=True, type=Path, metavar="JSONL", help="verify_cost.py --out")
    parser.add_argument("--format", default="Q4_0", help="of most weights (default: %(default)s)")
    parser.add_argument("--csv", required=True, type=Path)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    return parser.parse_args()


if __name__ == "__main__":
    main()
