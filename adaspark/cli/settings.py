"""From the values of the flags to an engine and a request."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import click

from adaspark.cli.interrupts import InterruptibleProgress, Interrupts
from adaspark.cli.output import Output
from adaspark.config import EngineOptions, GenerateOptions, RequestParams, check_text
from adaspark.engine import Engine
from adaspark.errors import AdaSparkError
from adaspark.models import ModelPair, resolve


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """A ValueError of the library is a wrong argument here."""
    try:
        yield
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def arm_of(values: dict[str, Any]) -> str | None:
    """The arm asked for, None where the default is to be taken."""
    arm, drafts = values.get("arm"), values.get("draft_max")
    if arm is not None and drafts is not None:
        msg = "--spec-draft-n-max N is --arm chain:N: give one of the two"
        raise click.UsageError(msg)
    return arm if drafts is None else ("plain" if drafts == 0 else f"chain:{drafts}")


def files_of(values: dict[str, Any], progress: InterruptibleProgress) -> ModelPair:
    """The files asked for; a drafter that the arm has no use for is not loaded."""
    drafter = values["drafter"]
    if drafter is not None and values["hf_repo_draft"] is not None:
        msg = "give a drafter file (-md) or a repository (-hfd), not both"
        raise click.UsageError(msg)
    with usage_errors():
        pair = resolve(
            values["model"],
            "auto" if drafter is None else drafter,
            hub_model=values["hf_repo"],
            hub_drafter=values["hf_repo_draft"],
            progress=progress,
        )
    needless = arm_of(values) == "plain" and not values.get("full_trace")
    return ModelPair(pair.target, None, pair.source) if needless else pair


def engine_options(values: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(EngineOptions)}
    chosen = {name: value for name, value in values.items() if name in names and value is not None}
    if values["no_mmap"]:
        chosen["use_mmap"] = False
    with usage_errors():
        EngineOptions(**chosen)
    return chosen


def request_options(values: dict[str, Any]) -> RequestParams:
    names = {field.name for field in fields(GenerateOptions)} - {"arm", "system", "raw"}
    chosen = {name: value for name, value in values.items() if name in names and value is not None}
    if chosen.get("seed") == -1:
        del chosen["seed"]
    with usage_errors():
        GenerateOptions(**chosen)
    return cast("RequestParams", chosen)


def read_text(path: str, what: str) -> str:
    """A text file, "-" for stdin; without its last line end, as in llama.cpp."""
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
        check_text("stdin" if path == "-" else "it", text)
    except (OSError, ValueError) as error:
        msg = f"the {what} file {path} cannot be read: {error}"
        raise click.UsageError(msg) from error
    return text.removesuffix("\n")


def system_of(values: dict[str, Any]) -> str | None:
    if values["system"] is not None and values["system_file"] is not None:
        msg = "give the system message (-sys) or a file with it (-sysf), not both"
        raise click.UsageError(msg)
    return values["system"] if values["system_file"] is None else read_text(values["system_file"], "system message")


def open_engine(values: dict[str, Any], output: Output, interrupts: Interrupts) -> Engine:
    """The engine the flags describe. A signal's exception when one stopped it on the way."""
    options = engine_options(values)
    template = values.get("chat_template_file")
    template = None if template is None else read_text(template, "chat template")
    progress = InterruptibleProgress(interrupts, color=output.color)
    arm = arm_of(values)
    files = files_of(values, progress)
    with interrupts, usage_errors():
        try:
            store = "auto" if values.get("store") is None else values["store"]
            trace = values.get("trace")
            engine = Engine(
                files, arm=arm, chat_template=template, store=store, trace=trace, progress=progress, **options
            )
        except AdaSparkError:
            if interrupts.hit:
                interrupts.stop()
            raise
        if interrupts.hit:  # behind the last step that looks at it: what enters next forgets it
            engine.close()
            interrupts.stop()
        return engine
