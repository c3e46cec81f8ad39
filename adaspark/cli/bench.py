"""``adaspark-run bench``: arms against each other on files of prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import adaspark
from adaspark.benchmark.conversations import Conversation, read_conversations
from adaspark.benchmark.machine import describe
from adaspark.benchmark.runs import Measured, Summary, loaded, run, summarise, warm_up
from adaspark.cli.flags import BENCH, options
from adaspark.cli.interrupts import InterruptibleProgress, Interrupts
from adaspark.cli.output import Output
from adaspark.cli.settings import open_engine, usage_errors
from adaspark.cli.tables import table
from adaspark.engine import Engine

ARMS = ("plain", "chain:3", "chain:7", "tree:16", "adaspark")
N_PREDICT = 128  # tokens of a reply where none are asked for


@click.command(BENCH)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options(BENCH)
@click.pass_obj
def bench(output: Output, /, files: tuple[str, ...], **values: Any) -> int:
    """Decode the conversations of JSON lines files under several arms, greedily, and compare their speed.

    A line is {"source": "...", "turns": ["...", ...]}. Every turn is decoded by every arm before the next, in a new random
    order. Ratios are to the first arm; arms that learn start with nothing learned, once for all files. Replies that end in
    a loop are counted and left out: any drafter predicts a loop.
    """
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    arms = values["arms"] or list(ARMS)
    n_predict = N_PREDICT if values["n_predict"] is None else values["n_predict"]
    if n_predict in (0, 1):
        msg = "a reply to be measured has at least 2 tokens (-n)"
        raise click.UsageError(msg)
    if len(set(arms)) < len(arms):
        msg = "give each arm once"
        raise click.UsageError(msg)
    conversations = {name: _read(name, values["conversations"]) for name in files}
    interrupts = Interrupts()
    progress = InterruptibleProgress(interrupts, color=output.color)
    report: dict[str, Any] = {"version": adaspark.__version__, "machine": describe(), "arms": arms, "files": []}
    with open_engine({**values, "store": "none"}, output, interrupts) as engine, interrupts, usage_errors():
        report |= _facts(engine) | {"n_predict": n_predict}
        warm_up(engine, next(iter(conversations.values()))[0])
        for name, chosen in conversations.items():
            label = f"Measuring {Path(name).name}"

            def step(done: int, total: int, label: str = label) -> bool:
                return progress.show(label, done, total, "count") and not interrupts.hit

            measured = run(
                engine, chosen, arms, n_predict, values["turns"] or 1, values["order"] or 0,
                step,
            )  # fmt: skip
            progress.clear()
            report["files"].append(_file(name, measured, arms))
            _tell(output, name, measured, arms)
            if values["plot"] is not None and measured:
                report["files"][-1]["plot"] = _plot(Path(values["plot"]), name, measured, arms)
            if interrupts.hit:
                break
    output.emit(report)
    return interrupts.code


def _read(name: str, n: int | None) -> list[Conversation]:
    try:
        conversations = read_conversations(Path(name), n)
    except (OSError, ValueError) as error:
        msg = f"the prompts {name} cannot be read: {error}"
        raise click.UsageError(msg) from error
    if not conversations:
        msg = f"there is no conversation in {name}"
        raise click.UsageError(msg)
    return conversations


def _facts(engine: Engine) -> dict[str, Any]:
    return {
        "model": Path(engine.files.target).name,
        "drafter": None if engine.files.drafter is None else Path(engine.files.drafter).name,
        "kernels": engine.target.kernels,
        "threads": engine.target.n_threads,
        "identity": engine.identity.facts,
    }


def _summaries(measured: list[Measured], arms: list[str]) -> list[Summary]:
    return [summary for arm in arms if (summary := summarise(measured, arm, arms[0])) is not None]


def _file(name: str, measured: list[Measured], arms: list[str]) -> dict[str, Any]:
    return {
        "file": Path(name).name,
        "baseline": arms[0],
        "arms": [summary.to_dict() for summary in _summaries(measured, arms)],
        "measured_under_load": loaded(measured),
        "conversations": [one.to_dict() for one in measured],
    }


def _tell(output: Output, name: str, measured: list[Measured], arms: list[str]) -> None:
    if output.as_json:
        return
    summaries = _summaries(measured, arms)
    if not summaries:
        output.note(f"{name}: nothing measured: every reply looped or was too short")
        return
    table(
        f"{name}: {len(measured)} conversations, ratios to {arms[0]}",
        [
            "arm",
            "tok/s",
            "median",
            "IQR",
            "ratio [95%]",
            "worst",
            "tokens",
            "accepted",
            "used",
            "looped",
            "short",
            "other",
        ],
        [_row(summary) for summary in summaries],
        "tok/s: pooled; median, IQR: over conversations; worst: least ratio of a reply of 100 tokens or more; tokens: of a "
        "round;\nused: conversations with a usable reply; looped, short: replies left out; other: replies that are not "
        "the first arm's"
        + (f". {loaded(measured)} conversations were measured on a busy machine" if loaded(measured) else ""),
        color=output.color,
    )


def _row(s: Summary) -> list[str]:
    return [
        s.arm,
        f"{s.tokens_per_second:.1f}",
        f"{s.median:.1f}",
        f"{s.low:.1f}-{s.high:.1f}",
        str(s.ratio),
        "-" if s.worst is None else f"{s.worst:.3f}",
        f"{s.tokens_per_round:.2f}",
        "-" if s.accepted is None else f"{s.accepted:.0%}",
        str(s.conversations),
        str(s.looped),
        str(s.short),
        str(s.other_text),
    ]


def _plot(folder: Path, name: str, measured: list[Measured], arms: list[str]) -> str:
    from adaspark.plots import plot_rates

    rows = [
        {"label": s.arm, "value": s.ratio.value, "low": s.ratio.low, "high": s.ratio.high}
        for s in _summaries(measured, arms)
        if s.ratio is not None
    ]
    title = f"{Path(name).name}: decode speed over {arms[0]}, 95% intervals"
    return str(plot_rates(folder / f"{Path(name).stem}.png", title, rows))
