"""``adaspark-run generate``: one prompt, one reply."""

from __future__ import annotations

from typing import Any

import click

from adaspark.cli.flags import GENERATE, options
from adaspark.cli.interrupts import Interrupts
from adaspark.cli.output import Output
from adaspark.cli.settings import open_engine, read_text, request_options, system_of, usage_errors
from adaspark.cli.types import TEXT
from adaspark.engine import Engine
from adaspark.generation import Generation


@click.command(GENERATE)
@click.argument("text", required=False, metavar="[PROMPT]", type=TEXT)
@options(GENERATE)
@click.pass_obj
def generate(output: Output, /, text: str | None, **values: Any) -> int:
    """Write one reply to PROMPT (also -p or -f) on stdout.

    This is what adaspark-run does without a command's name.
    """
    output.configure(no_color=values["no_color"], verbose=values["verbose"])
    prompt = _prompt(text, values)
    params = request_options(values)
    system = system_of(values)
    if values["raw"] and system is not None:
        msg = "a raw prompt has no system message: write it into the prompt"
        raise click.UsageError(msg)
    interrupts = Interrupts()
    with open_engine(values, output, interrupts) as engine, interrupts:
        generation = _start(engine, prompt, interrupts, raw=values["raw"], system=system, **params)
        try:
            stream(generation, output, interrupts)
        finally:
            output.partial = {"text": generation.text}
        output.emit(generation.result.to_dict())
        output.statistics(generation.result)
    return interrupts.code


def _start(engine: Engine, prompt: str, interrupts: Interrupts, **params: Any) -> Generation:
    with usage_errors():
        try:
            return engine.generate(prompt, **params)
        except Exception:
            if interrupts.hit:
                interrupts.stop()
            raise


def stream(generation: Generation, output: Output, interrupts: Interrupts) -> None:
    """Write a reply as it comes; Ctrl-C and SIGTERM end it after the round at hand."""
    for chunk in generation:
        output.write(chunk)
        if interrupts.hit:
            generation.cancel()
    output.end_line()


def _prompt(text: str | None, values: dict[str, Any]) -> str:
    given = [
        name
        for name, value in (("PROMPT", text), ("-p", values["prompt"]), ("-f", values["file"]))
        if value is not None
    ]
    if not given:
        msg = 'give a prompt: adaspark-run "...", -p TEXT or -f FILE (- is stdin)'
        raise click.UsageError(msg)
    if len(given) > 1:
        msg = f"give one prompt, not {' and '.join(given)}"
        raise click.UsageError(msg)
    name = given[0]
    prompt = read_text(values["file"], "prompt") if name == "-f" else values["prompt"] if name == "-p" else text
    if not prompt:
        msg = f"the prompt ({name}) is empty: give some text"
        raise click.UsageError(msg)
    return str(prompt)
