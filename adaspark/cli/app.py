"""The program: commands, the default one, and one place where errors become exit codes.

Exit codes: 0 done, 1 a failure at run time, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.
"""

from __future__ import annotations

import io
import logging
import sys
import traceback
from collections.abc import Sequence

import click

import adaspark
from adaspark._native import _engine
from adaspark.cli.bench import bench
from adaspark.cli.chat import chat
from adaspark.cli.doctor import doctor
from adaspark.cli.generate import generate
from adaspark.cli.interrupts import INTERRUPTED, TERMINATED, Terminated, handling, stop
from adaspark.cli.models import models
from adaspark.cli.output import Output
from adaspark.cli.replay import replay
from adaspark.cli.store import store
from adaspark.cli.streams import open_streams, settle_streams
from adaspark.errors import AdaSparkError, WrongRoleError

PROGRAM = "adaspark-run"
FAILED = 1
USAGE = 2


class _DefaultGroup(click.Group):
    """A group whose command may be left out: what does not start with one is a prompt or its flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = {name for param in self.get_params(ctx) for name in param.opts}
        if args and args[0] not in self.commands and args[0] not in own:
            args = ["generate", *args]
        return super().parse_args(ctx, args)


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"{PROGRAM} {adaspark.__version__}")
    try:
        info = _engine.backend_info()
    except AdaSparkError as error:
        click.echo(f"engine: {error}")
    else:
        devices = [f"{device['name']} ({device['description'].strip()})" for device in info["devices"]]
        click.echo(f"llama.cpp {info['llama_version']}")
        click.echo(f"backends: {', '.join(devices)}")
    ctx.exit()


@click.group(
    cls=_DefaultGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Versions and backends."
)
def app() -> None:
    """Lossless speculative decoding of local GGUF models.

    adaspark-run "prompt" is adaspark-run generate "prompt". stdout holds the result only; progress, logs and statistics
    go to stderr.
    """


for _command in (generate, chat, doctor, models, store, replay, bench):
    app.add_command(_command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "strict")):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale says: prompts and JSON are UTF-8
            stream.reconfigure(encoding="utf-8", errors=errors)
    output = Output(as_json="--json" in arguments)
    try:
        with handling(stop):
            return _run(arguments, output)
    except BrokenPipeError:  # the reader has gone
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except Terminated:
        return TERMINATED
    finally:
        output.close()
        settle_streams()


def _run(arguments: list[str], output: Output) -> int:
    if not arguments:
        click.echo(app.get_help(click.Context(app, info_name=PROGRAM)), err=True)
        return USAGE
    try:
        code = app.main(arguments, prog_name=PROGRAM, standalone_mode=False, obj=output)
        sys.stdout.flush()
    except click.UsageError as error:
        if error.ctx is not None and not output.as_json:
            click.echo(error.ctx.get_usage() + "\n", err=True)
        output.error("UsageError", error.format_message())
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        output.error("Interrupted", "stopped by Ctrl-C")
        return INTERRUPTED
    except Terminated:
        output.error("Terminated", "stopped by SIGTERM")
        return TERMINATED
    except WrongRoleError as error:
        output.error(type(error).__name__, str(error))
        return USAGE
    except BrokenPipeError:
        raise
    except (AdaSparkError, click.ClickException, OSError, MemoryError) as error:
        output.error(type(error).__name__, str(error) or type(error).__name__)
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a script must get its object and its code
        if logging.getLogger("adaspark").isEnabledFor(logging.INFO):
            traceback.print_exc()
        output.error(type(error).__name__, f"{error} (an internal error; -v shows where)")
        return FAILED
    return code if isinstance(code, int) else 0
