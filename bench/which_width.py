"""Which width wins at which cost curve, and does the learned arm find it: texts of full traces (``--full-trace``), decoded
anew at the prices that verify_cost.py measured.

Every curve is taken at each context it was measured at, the same for all rounds. The learned arm begins with nothing
learned and sees every pinned width's prices only by running; the best pinned width is the best in hindsight.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cost_table import times
from kit.show import note

from adaspark.cli.tables import table
from adaspark.config import MAX_ROWS, Arm
from adaspark.costs import CostTable, widths_between
from adaspark.replay import ArmReplay, Recorded, decode_under
from adaspark.trace import read_trace

PINNED = (2, 3, 4, 6, 8, 9, 12, 16, 24, 32, 48, 64)
OTHERS = ("plain", "chain:3", "chain:7", "tree:8", "tree:16")
BANDS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 64))


@dataclass(frozen=True, slots=True)
class Curve:
    """A model's verify on some kernels."""

    name: str
    verify: dict[int, list[tuple[int, float]]]  # by rows: contexts and milliseconds
    draft: list[tuple[int, float]]  # contexts and milliseconds

    @property
    def contexts(self) -> list[int]:
        return sorted({context for context, _ in self.verify[min(self.verify)]})

    def at(self, context: int, longest: int, commit_us: Sequence[float]) -> CostTable:
        """The prices at a context, for all contexts up to ``longest`` tokens."""
        rows = sorted(self.verify)
        verify = widths_between(rows, [_mean(self.verify[n], context) for n in rows])
        contexts = longest + 2  # more than enough: a table has a line for every 64 tokens
        draft = np.full(contexts, _mean(self.draft, context))
        return CostTable(np.tile(verify, (contexts, 1)), draft, np.array(commit_us), self.name)


def _mean(points: list[tuple[int, float]], context: int) -> float:
    """Microseconds, mean of the passes."""
    return 1e3 * float(np.mean([ms for at, ms in points if at == context]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE")
    parser.add_argument("--costs", type=Path, nargs="+", required=True, metavar="CSV", help="of verify_cost.py")
    drafter = parser.add_mutually_exclusive_group(required=True)
    drafter.add_argument("--draft", type=Path, metavar="CSV", help="where the drafter's times are")
    drafter.add_argument("--draft-share", type=float, metavar="X", help="a draft costs X of a verify of one row")
    parser.add_argument(
        "--commit-us", type=float, nargs=2, default=[5.0, 50.0], metavar="US", help="without and with the drafter"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="every arm on every curve")
    args = parser.parse_args()
    requests = [Recorded.of(request) for path in args.traces for request in read_trace(path)]
    if not requests or not all(recorded.request.full for recorded in requests):
        parser.error("give full traces")
    longest = max(recorded.longest for recorded in requests)
    told, all_arms = [], []
    names = ["-".join(map(str, sorted({low, high}))) for low, high in BANDS]
    for path in args.costs:
        for curve in curves(path, args.draft, args.draft_share):
            for context in curve.contexts:
                replays = decode_all(requests, curve.at(context, longest, args.commit_us))
                for name, replay in replays.items():
                    rate = f"{replay.tokens_per_second:.1f}"
                    all_arms.append([curve.name, context, name, rate, replay.tokens, replay.rounds, *bands(replay)])
                told.append(line(curve.name, context, replays))
                note(f"{curve.name}, {context} tokens")
    if args.csv is not None:
        with args.csv.open("w", encoding="utf-8", newline="") as file:
            head = ["costs", "context", "arm", "tokens_per_second", "tokens", "rounds", *(f"rows_{n}" for n in names)]
            csv.writer(file, lineterminator="\n").writerows([head, *all_arms])
    table(
        f"{len(requests)} texts, {sum(len(r.request.reply) for r in requests)} tokens",
        ["costs", "context", "plain", "fixed", "worst", "best", "adaspark", "to best", "to each", "first", *names],
        told,
        "tokens a second; fixed: the best chain or tree; worst, best: pinned widths; to best: adaspark's rate over the best "
        "pinned width's, first: on the first text alone, to each: over that of each text's own best; then its rounds by rows, %",
    )


def curves(path: Path, draft: Path | None, draft_share: float | None) -> list[Curve]:
    """One for each of the kernels in a file; the drafter's times are those of its largest block on the same kernels."""
    with path.open(encoding="utf-8") as file:
        kernels = list(dict.fromkeys(row["kernels"] for row in csv.DictReader(file)))
    out = []
    for kind in kernels:
        name = f"{path.stem.removeprefix('verify_cost_')}, {kind.partition('/')[0]}"
        verify = times(path, kind, "rows")
        if draft is not None:
            blocks = times(draft, kind, "draft")
            out.append(Curve(name, verify, blocks[max(blocks)]))
        else:
            out.append(Curve(name, verify, [(at, ms * (draft_share or 0.0)) for at, ms in verify[1]]))
    return out


def decode_all(requests: Sequence[Recorded], costs: CostTable) -> dict[str, ArmReplay]:
    names = [*OTHERS, *(f"adaspark:{n}" for n in PINNED), "adaspark"]
    return {name: decode_under(Arm.parse(name), requests, costs) for name in names}


def line(curve: str, context: int, replays: dict[str, ArmReplay]) -> list[str]:
    rate = {name: replay.tokens_per_second for name, replay in replays.items()}
    pinned = [name for name in rate if name.startswith("adaspark:")]
    best, worst = max(pinned, key=rate.__getitem__), min(pinned, key=rate.__getitem__)
    fixed = max(OTHERS[1:], key=rate.__getitem__)
    spent = {name: [float(part[:, 4].sum()) for part in replays[name].columns] for name in (*pinned, "adaspark")}
    each = sum(map(min, zip(*(spent[name] for name in pinned), strict=True)))
    shares = bands(replays["adaspark"])
    return [
        curve,
        str(context),
        f"{rate['plain']:.0f}",
        f"{rate[fixed]:.0f} ({fixed})",
        f"{rate[worst]:.0f} ({worst.partition(':')[2]})",
        f"{rate[best]:.0f} ({best.partition(':')[2]})",
        f"{rate['adaspark']:.0f}",
        f"{rate['adaspark'] / rate[best]:.3f}",
        f"{each / sum(spent['adaspark']):.3f}",
        f"{spent[best][0] / spent['adaspark'][0]:.3f}",
        *(f"{100 * n / max(replays['adaspark'].rounds, 1):.0f}" for n in shares),
    ]


def bands(replay: ArmReplay) -> list[int]:
    """Rounds by rows, in the bands of ``BANDS``."""
    rows = np.concatenate([part[:, 2] for part in replay.columns]).astype(int)
    counts = np.bincount(rows, minlength=MAX_ROWS + 1)
    return [int(counts[low : high + 1].sum()) for low, high in BANDS]


if __name__ == "__main__":
    main()
