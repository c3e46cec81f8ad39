"""Writes a page of tables from the raw results of a machine: what the programs of bench/ and ``adaspark-run bench --json``
left in a folder, by the names those files have there.

Nothing is measured here, and a file that is not there is left out of the page.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import bound
import cold_start
import compare
import slow_drafter
import workload_switch
from kit import learned_costs
from kit.page import markdown_rows, read_results

from adaspark.benchmark.stats import geometric_mean, spread

COMPARISONS = {
    "compare": "Open questions",
    "compare_own": "Open questions, the whole file, our own arms",
    "compare_own_busy": "The whole file by an earlier revision, in a half hour when the machine was slower",
    "compare_copy": "Texts to copy from",
    "compare_copy_cut": "Texts to copy from, each reply to where it begins to loop (`--cut-loops`)",
    "compare_llama_kernels": "Open questions, our arms on llama.cpp's kernels (`--kernels llama`)",
}
# Programs that make their own tables; each by the name of its file, and that of a run on llama.cpp's kernels.
PAGES: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "slowest": ("No reply slower than plain decoding (`compare.py --passes`)", compare.page),
    "cold_start": ("From an empty store (`cold_start.py`)", cold_start.page),
    "learned_table": ("The learned cost table against T(n) (`learned_table.py`)", learned_costs.page),
    "workload_switch": ("A workload that switches (`workload_switch.py`)", workload_switch.page),
    "bound": ("What any scheduler could reach on the open questions (`bound.py`)", bound.page),
    "bound_copy": ("What any scheduler could reach on the texts to copy from (`bound.py`)", bound.page),
    "slow_drafter": ("A drafter that cannot pay (`slow_drafter.py`)", slow_drafter.page),
}
LLAMA = "_llama_kernels"


def main() -> None:
    args = _arguments()
    source = (
        f"`python bench/results_page.py {args.folder} {args.page} --title TITLE` from the raw results in that folder"
    )
    page = [
        f"# Results: {args.title}",
        f"Written by {source}; what the numbers mean is in [bench/README.md](../bench/README.md).",
    ]
    for name, title in COMPARISONS.items():
        page += _comparison(args.folder / f"{name}.jsonl", title)
    page += _ablation(args.folder / "ablation.json")
    page += _live(args.folder)
    page += _costs(args.folder / "verify_cost.jsonl", "")
    for path in sorted(args.folder.glob("verify_cost_*.jsonl")):
        page += _costs(path, f", the shape of {path.stem.removeprefix('verify_cost_')}")
    page += _perplexity(args.folder / "perplexity.jsonl")
    args.page.write_text("\n\n".join(page) + "\n", encoding="utf-8")


def _comparison(path: Path, title: str) -> list[str]:
    run, prompts = compare.read_replies(path)
    if not run:
        return []
    rows = []
    names = {"plain": "against `plain`", "llama.cpp/plain": "against llama.cpp plain"}
    baselines = [arm for arm in names if arm in run["arms"]]
    for arm in run["arms"]:
        row = [f"`{arm}`"]
        mine = [replies[arm] for replies in prompts.values() if compare.usable_pair(*replies[arm])]
        rates = [median(map(compare.rate, passes)) for passes in mine]
        row.append(f"{spread(rates).median:,.0f}" if rates else "-")
        for baseline in baselines:
            pairs = [(replies[arm], replies[baseline]) for replies in prompts.values()]
            usable = [pair for pair in pairs if compare.usable_pair(*pair[0], *pair[1])]
            ratio = geometric_mean([compare.median_ratio(*pair) for pair in usable]) if usable else None
            row.append("1" if arm == baseline else f"{ratio} of {len(usable)}")
        rows.append(row)
    what = (
        f"{len(prompts)} prompts, {run['n_predict']} tokens each at most, {run['threads']} threads, greedy, one run, arms interleaved, from "
        "an empty scheduler. Geometric means of ratios with 95% intervals, over the prompts "
        + ("with 16 tokens or more before a loop." if run.get("cut_loops") else "whose replies do not loop.")
    )
    columns = ["arm", "tok/s, median", *(names[arm] for arm in baselines)]
    return [f"## {title}", what, markdown_rows(columns, rows)]


def _live(folder: Path) -> list[str]:
    out = []
    for name, (title, page) in PAGES.items():
        for suffix, kernels in (("", ""), (LLAMA, ", llama.cpp's kernels")):
            part = page(folder / f"{name}{suffix}.jsonl")
            out += [f"## {title}{kernels}", *part] if part else []
    return out


def _ablation(path: Path) -> list[str]:
    if not path.is_file():
        return []
    file = json.loads(path.read_text("utf-8"))["files"][0]
    rows = [
        [
            f"`{arm['arm']}`",
            f"{arm['ratio']['value']:.3f} [{arm['ratio']['low']:.3f}, {arm['ratio']['high']:.3f}]",
            f"{arm['worst']:.2f}",
            f"{arm['conversations']} ({arm['looped']} looped)",
        ]
        for arm in file["arms"]
    ]
    title = "## Mechanisms one by one (`adaspark-run bench`)"
    return [title, markdown_rows(["arm", "against `plain`", "worst reply", "conversations"], rows)]


def _costs(path: Path, model: str) -> list[str]:
    """``model``: what the titles name besides, for a file that is not of the default pair."""
    times: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    for record in read_results(path)[1]:
        if record["kind"] in ("rows", "draft"):
            kernels = "llama.cpp" if ", llama," in record["config"] else "own"
            times[record["kind"], kernels, record["context"]][record["n"]] = record["median_ms"]
    out = []
    for kind, title in (("rows", "A verify, ms by rows"), ("draft", "A draft block, ms by positions")):
        part = {key: value for key, value in times.items() if key[0] == kind}
        if part:
            counts = sorted({n for value in part.values() for n in value})
            rows = [
                [f"{kernels}, {context} tokens", *(f"{value[n]:.2f}" if n in value else "-" for n in counts)]
                for (_, kernels, context), value in sorted(part.items(), key=lambda item: (item[0][2], item[0][1]))
            ]
            out += [f"## {title}{model}", markdown_rows(["kernels and context", *map(str, counts)], rows)]
    return out


def _perplexity(path: Path) -> list[str]:
    rows = [
        [
            record["kernels"],
            f"{record['perplexity']:.3f}",
            f"{record['prefill_tokens_per_s']:,.0f}",
            str(record["peak_memory_mb"]),
        ]
        for record in read_results(path)[1]
        if record["kind"] == "kernels"
    ]
    if not rows:
        return []
    return [
        "## Perplexity, prefill and memory",
        markdown_rows(["kernels", "perplexity", "prefill of 512, tok/s", "peak memory, MB"], rows),
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder of bench/results")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    parser.add_argument("--title", required=True, help="the machine and the models")
    return parser.parse_args()


if __name__ == "__main__":
    main()
