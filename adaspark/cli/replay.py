"""``adaspark-run replay``: traces again, exactly and under other arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from adaspark.cli.flags import REPLAY, options
from adaspark.cli.output import Output
from adaspark.cli.tables import table
from adaspark.config import Arm
from adaspark.costs import CostTable, read_costs
from adaspark.errors import TraceError
from adaspark.replay import ArmReplay, Check, ExactReplay, Recorded, cost_table, decode_under
from adaspark.trace import read_trace

ARMS = (
    *("plain", "chain:3", "chain:7", "tree:16", "cost", "adaspark"),
    *("adaspark:no-text", "adaspark:no-acceptance", "adaspark:no-gating"),
)
PINNED = ("adaspark:2", "adaspark:4", "adaspark:8", "adaspark:16", "adaspark:32", "adaspark:64")


@click.command(REPLAY)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options(REPLAY)
@click.pass_obj
def replay(output: Output, /, files: tuple[str, ...], **values: Any) -> int:
    """Replay traces (--trace): check every decision, then decode the texts anew under other arms.

    Exit code 1 when a decision or a learned state is not the recorded one.
    """
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    requests = [Recorded.of(request) for name in files for request in read_trace(Path(name))]
    if not requests:
        msg = f"there is nothing to replay in {', '.join(files)}"
        raise TraceError(msg)
    exact = ExactReplay()
    checks = [exact.run(recorded) for recorded in requests]
    report: dict[str, Any] = {"files": list(files), "requests": _summary(checks)}
    wrong = [(i, check) for i, check in enumerate(checks) if not check.exact]
    report["exact"] = not wrong
    _tell_checks(output, checks, wrong)
    compared = [recorded for recorded in requests if recorded.request.full] or requests
    arms = values["arms"] or list(ARMS)
    results = _compare(arms, compared, _costs(values, requests, exact), report)
    if not output.as_json and results:
        _tell_arms(results, report, full=compared[0].request.full, color=output.color)
    if values["plot"] is not None:
        report["plots"] = _plot(Path(values["plot"]), requests, exact, compared, report, results, values)
        for path in report["plots"]:
            output.note(f"written: {path}")
    output.emit(report)
    return 1 if wrong else 0


def _summary(checks: list[Check]) -> list[dict[str, Any]]:
    return [
        {"arm": c.arm, "rounds": c.rounds, "differs_at": c.differs_at, "state_matches": c.state_matches} for c in checks
    ]


def _tell_checks(output: Output, checks: list[Check], wrong: list[tuple[int, Check]]) -> None:
    rounds = sum(check.rounds for check in checks)
    output.write(f"{len(checks)} requests, {rounds} rounds: ")
    output.write("every decision and every learned state as recorded\n" if not wrong else f"{len(wrong)} differ\n")
    for number, check in wrong:
        where = "its learned state" if check.differs_at is None else f"round {check.differs_at}"
        output.write(f"  request {number} ({check.arm}) differs from the record: {where}\n")


def _costs(values: dict[str, Any], requests: list[Recorded], exact: ExactReplay) -> CostTable | str:
    """The cost law, or why there is none."""
    longest = max(recorded.longest for recorded in requests)
    if values["costs"] is not None:
        return read_costs(Path(values["costs"]), longest)
    try:
        return cost_table(requests, exact.learned())
    except TraceError as error:
        return str(error)


def _compare(
    arms: list[str], requests: list[Recorded], costs: CostTable | str, report: dict[str, Any]
) -> list[ArmReplay]:
    """Decode under each arm; arms that need a drafter are left out where the trace has none."""
    if isinstance(costs, str):
        report["arms"], report["costs"] = [], None
        report["reason"] = costs
        return []
    report["costs"] = costs.source
    usable = [arm for arm in map(Arm.parse, arms) if requests[0].block > 0 or arm.kind == "plain" or arm.text_alone]
    results = []
    for arm in usable:
        results.append(decode_under(arm, requests, costs))
    report["arms"] = [result.to_dict() for result in results]
    return results


def _tell_arms(results: list[ArmReplay], report: dict[str, Any], *, full: bool, color: bool) -> None:
    base = results[0]
    rows = []
    for result, told in zip(results, report["arms"], strict=True):
        expected = told["expected_accepted"]
        kinds = told["rounds_by_kind"]
        rows.append(
            [
                result.arm,
                f"{result.tokens_per_second:.1f}",
                f"{result.tokens_per_second / base.tokens_per_second:.3f}" if base.tokens_per_second else "-",
                f"{result.tokens / max(result.rounds, 1):.2f}",
                f"{told['rows_per_round']:.1f}",
                f"{kinds['plain']}/{kinds['text']}/{kinds['draft']}",
                f"{told['accepted']}",
                "-" if expected is None else f"{expected:.1f}",
                f"{told['covered']:.0%}",
            ]
        )
    table(
        f"decoded anew, {'full trace' if full else 'live trace'}, costs {report['costs']}",
        ["arm", "tok/s", f"to {base.arm}", "tokens", "rows", "plain/text/draft", "accepted", "expected", "covered"],
        rows,
        "tokens, rows: of a round; covered: rounds that had the drafter's block if they asked for it",
        color=color,
    )


def _plot(
    folder: Path,
    requests: list[Recorded],
    exact: ExactReplay,
    compared: list[Recorded],
    report: dict[str, Any],
    results: list[ArmReplay],
    values: dict[str, Any],
) -> list[str]:
    from adaspark import plots

    written = plots.plot_trace(folder, requests, exact.learned())
    if results and compared[0].block > 0:
        costs = _costs(values, requests, exact)
        pinned = _compare(list(PINNED), compared, costs, {})
        (adaptive,) = [r for r in results if r.arm == "adaspark"] or _compare(["adaspark"], compared, costs, {})
        written.append(plots.plot_regret(folder, adaptive, pinned))
        best, lost = plots.regret(adaptive, pinned)
        report["regret"] = {"best_pinned": best.arm, "ms": float(lost[-1]) if len(lost) else 0.0}
        rates = [{"label": result.arm, "value": result.tokens_per_second} for result in results]
        written.append(plots.plot_rates(folder / "arms.png", "Tokens per second, replayed", rates))
    return [str(path) for path in written]
