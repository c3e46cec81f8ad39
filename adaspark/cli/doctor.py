"""``adaspark-run doctor``: what this installation can do, and whether its models fit each other."""

from __future__ import annotations

from typing import Any

import click

import adaspark
from adaspark import default_pair
from adaspark._native import _engine
from adaspark.cli.flags import DOCTOR, options
from adaspark.cli.interrupts import Interrupts
from adaspark.cli.output import Output
from adaspark.cli.settings import open_engine
from adaspark.devices import unused_gpu
from adaspark.engine import Engine
from adaspark.errors import AdaSparkError

# The pair is only looked at: a small context keeps its memory out of the way. Tokens.
_CONTEXT = 512


@click.command(DOCTOR)
@options(DOCTOR)
@click.pass_obj
def doctor(output: Output, /, **values: Any) -> int:
    """Report on the build, the devices, the cache and the pair of models; exit 1 when something is wrong."""
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    report: dict[str, Any] = {"version": adaspark.__version__, "problems": []}
    _report_build(report)
    report["cache"] = str(default_pair.cache_dir())
    _report_pair(report, values, output)
    report["ok"] = not report["problems"]
    output.emit(report)
    for line in _lines(report):
        output.write(line + "\n")
    return 0 if report["ok"] else 1


def _report_build(report: dict[str, Any]) -> None:
    info = _engine.backend_info()
    report["llama_cpp"] = info["llama_version"]
    report["system_info"] = info["system_info"]
    report["devices"] = [dict(device) for device in info["devices"]]
    report["gpu_offload"] = info["gpu_offload"]
    report["warnings"] = [] if (gpu := unused_gpu()) is None else [gpu]


def _report_pair(report: dict[str, Any], values: dict[str, Any], output: Output) -> None:
    given = values["model"] is not None or values["hf_repo"] is not None
    if not given and not default_pair.is_cached():
        report["pair"] = None
        report["warnings"].append("the default target is not fetched yet: adaspark-run models fetch")
        return
    values = values | ({"n_ctx": _CONTEXT} if values["n_ctx"] is None else {})
    try:
        with open_engine(values, output, Interrupts()) as engine:
            report["pair"] = describe_pair(engine)
    except AdaSparkError as error:
        report["pair"] = None
        report["problems"].append(f"{type(error).__name__}: {error}")


def describe_pair(engine: Engine) -> dict[str, Any]:
    """What a loaded pair can do."""
    target, drafter = engine.target, engine.drafter
    trees = "trees" if target.supports_tree else "chains only" if target.max_chain else "plain decoding only"
    pair: dict[str, Any] = {
        "target": {
            "path": target.path,
            "architecture": target.architecture,
            "description": target.description,
            "layers": target.n_layer,
            "vocabulary": target.n_vocab,
            "threads": target.n_threads,
            "kernels": target.kernels,
            "kernels_reason": target.kernels_reason or None,
            "chat_template": target.chat_template is not None,
            "speculation": trees,
            "supports_tree": target.supports_tree,
            "max_rows": target.max_rows,
        },
        "drafter": None,
        "default_arm": engine.arm,
    }
    if drafter is not None:
        pair["drafter"] = {
            "path": drafter.path,
            "kernels": drafter.kernels,
            "block_size": drafter.block_size,
            "drafts": drafter.n_draft,
            "candidates": drafter.top_k,
            "confidence_head": drafter.has_confidence,
            "target_layers": list(drafter.target_layers),
            "matches_target": True,
            "warnings": list(drafter.warnings),
        }
    return pair


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [
        f"adaspark     {report['version']}",
        f"llama.cpp    {report['llama_cpp']}",
        f"system       {report['system_info']}",
    ]
    for device in report["devices"]:
        memory = f", {device['memory_total'] / 2**30:.1f} GiB" if device["memory_total"] else ""
        lines.append(f"device       {device['name']} ({device['type']}): {device['description']}{memory}")
    lines.append(f"cache        {report['cache']}")
    if (pair := report["pair"]) is not None:
        target, drafter = pair["target"], pair["drafter"]
        lines.append(f"target       {target['path']} ({target['description']})")
        why = f" ({target['kernels_reason']})" if target["kernels_reason"] else ""
        lines.append(f"kernels      {target['kernels']}{why}")
        lines.append(f"speculation  {target['speculation']}, up to {target['max_rows']} rows")
        if drafter is None:
            lines.append("drafter      none")
        else:
            head = "a confidence head" if drafter["confidence_head"] else "no confidence head"
            what = f"{drafter['drafts']} drafts, {head}, kernels {drafter['kernels']}"
            lines.append(f"drafter      {drafter['path']}, matches the target ({what})")
        lines.append(f"default arm  {pair['default_arm']}")
    lines += [f"warning      {text}" for text in report["warnings"]]
    lines += [f"problem      {text}" for text in report["problems"]]
    lines.append("all is well" if report["ok"] else "something is wrong")
    return lines
