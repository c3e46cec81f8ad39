"""``adaspark-run``: wrong usage, failures and their exit codes, one JSON object all the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tm
from cli_tools import SMALL, Cli
from conftest import ModelFiles

from adaspark import Engine

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
FOREIGN = "caf\udce9"
"""Bytes that are no UTF-8, as Python has them."""
pytestmark = pytest.mark.usefixtures("environment")


def usage(*arguments: str) -> Any:
    return pytest.param(arguments, id=" ".join(arguments)[:40])


@pytest.mark.parametrize(
    "arguments",
    [
        usage("--no-such-flag", "hi"),
        usage("hi", "there"),
        usage("hi", "-p", "hi"),
        usage(),
        usage("--arm", "bush:3", "hi"),
        usage("--arm", "tree:65", "hi"),
        usage("--arm", "chain:2", "--spec-draft-n-max", "3", "hi"),
        usage("--spec-draft-n-max", "-1", "hi"),
        usage("-n", "many", "hi"),
        usage("-n", "-2", "hi"),
        usage("-b", "0", "hi"),
        usage("-c", "-1", "hi"),
        usage("-ngl", "some", "hi"),
        usage("-fa", "maybe", "hi"),
        usage("-ctk", "q9_9", "hi"),
        usage("--temp", "-1", "hi"),
        usage("--top-p", "2", "hi"),
        usage("-f", "/no/such/file"),
        usage("-sys", "a", "-sysf", "b", "hi"),
        usage("-no-cnv", "-sys", "a", "hi"),
        usage("-hf", "owner/repo", "hi"),
        *(
            usage(flag, str(number), "hi")
            for number in (2**31, 2**63, 10**30, -(2**31) - 1)
            for flag in ("-n", "-c", "-cd", "-b", "-t", "-tb", "-td", "-ngl", "-ngld", "--top-k", "--spec-draft-n-max")
        ),
        usage("-s", str(2**32), "hi"),
        usage("-c", str(2**31 - 1), "hi"),
        usage("-t", "100000", "hi"),
        usage("--temp", "1e39", "hi"),
        usage("--temp", "nan", "hi"),
        *(usage(flag, FOREIGN, "hi") for flag in ("--stop", "-sys")),
        usage("-p", FOREIGN),
        usage(FOREIGN),
        usage("chat", "-p", FOREIGN),
        *(usage(flag, "", "hi") for flag in ("-m", "-md", "--store", "--trace", "--stop")),
        usage("-p", ""),
        usage(""),
        usage("chat", "-p", ""),
        usage("store", "list", "--store", ""),
        usage("chat", "-f", "file"),
        usage("models", "frobnicate"),
    ],
)
def test_wrong_usage_is_2(cli: Cli, pair: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    files = () if arguments[:1] in (("chat",), ("models",), ("store",)) else pair
    run = cli(*arguments[:1], *files, *arguments[1:]) if not files else cli(*files, *arguments)
    assert (run.code, run.out) == (2, "")
    assert "error:" in run.err
    run = cli(*arguments[:1], "--json", *arguments[1:]) if not files else cli(*files, "--json", *arguments)
    assert run.code == 2
    assert run.json["error"]["type"] == "UsageError"
    assert run.json["error"]["message"]


def test_text_that_is_no_utf8_and_numbers_out_of_range_name_their_option(cli: Cli, pair: tuple[str, ...]) -> None:
    for arguments, words in {
        ("-p", FOREIGN): "'-p'.*UTF-8",
        ("--stop", FOREIGN, "hi"): "'--stop'.*UTF-8",
        ("-b", str(2**31), "hi"): f"'-b'.*at most {2**31 - 1}",
        ("-t", "100000", "hi"): "'-t'.*at most 512",
        ("-p", ""): r"\(-p\) is empty",
    }.items():
        assert re.search(words, cli(*pair, "--json", *arguments).json["error"]["message"]), words


def test_a_model_whose_name_is_no_utf8_is_named(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("names are text here")
    path = tmp_path / f"{FOREIGN}.gguf"
    path.write_bytes(Path(pair[1]).read_bytes())
    run = cli("-m", path, "hi")
    assert (run.code, "UTF-8" in run.err) == (2, True)


def test_a_context_without_room_for_drafts_says_so(cli: Cli, pair: tuple[str, ...]) -> None:
    run = cli(*pair, "-c", "1", "-no-cnv", "-n", "1", "h")
    assert "one row" in run.err
    assert "take back" not in run.err


def test_no_arguments_shows_the_help_and_is_2(cli: Cli) -> None:
    run = cli()
    assert (run.code, run.out) == (2, "")
    assert "generate" in run.err


def test_a_drafter_as_the_model_is_2(cli: Cli, models: ModelFiles) -> None:
    run = cli("-m", models.drafter_path(SPEC, DRAFTER), "--json", "hi")
    assert run.code == 2
    assert "this file is a drafter" in run.json["error"]["message"]


def test_an_arm_without_a_drafter_is_2(cli: Cli, models: ModelFiles) -> None:
    run = cli("-m", models.target_path(SPEC), "--arm", "chain:3", "--json", "hi")
    assert run.code == 2
    assert "needs a drafter" in run.json["error"]["message"]


def test_an_empty_raw_prompt_is_2(cli: Cli, pair: tuple[str, ...]) -> None:
    run = cli(*pair, "-no-cnv", "--json", "")
    assert (run.code, "empty" in run.json["error"]["message"]) == (2, True)


def failures(models: ModelFiles, tmp_path: Path) -> dict[str, tuple[str, tuple[str | Path, ...]]]:
    target, drafter = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    return {
        "missing": ("ModelError", ("-m", tmp_path / "gone.gguf")),
        "truncated": ("ModelError", ("-m", tm.truncated(target, tmp_path / "cut.gguf", 0.6))),
        "not gguf": ("ModelError", ("-m", __file__)),
        "missing drafter": ("DrafterError", ("-m", target, "-md", tmp_path / "gone.gguf")),
        "other target's drafter": ("DrafterError", ("-m", models.target_path(tm.WIDE), "-md", drafter)),
        "target as drafter": ("DrafterError", ("-m", target, "-md", target)),
        "context": ("ContextFullError", ("-m", target, "-c", "256", "-sys", "x" * 600)),
        "default pair offline": ("ModelError", ()),
    }


@pytest.mark.parametrize(
    "case",
    [
        "missing",
        "truncated",
        "not gguf",
        "missing drafter",
        "other target's drafter",
        "target as drafter",
        "context",
        "default pair offline",
    ],
)
def test_failures_are_1_and_typed(cli: Cli, models: ModelFiles, tmp_path: Path, case: str) -> None:
    kind, arguments = failures(models, tmp_path)[case]
    run = cli(*arguments, *SMALL, "hi")
    assert (run.code, run.out) == (1, "")
    assert run.err.startswith("error: ")
    assert "Traceback" not in run.err
    run = cli(*arguments, *SMALL, "--json", "hi")
    assert run.code == 1
    assert run.json["error"]["type"] == kind


def test_an_unexpected_error_is_one_object_too(
    cli: Cli, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        msg = "boom"
        raise RuntimeError(msg)

    monkeypatch.setattr(Engine, "generate", fail)
    run = cli(*pair, "--json", "hi")
    assert (run.code, run.json["error"]["type"]) == (1, "RuntimeError")
    assert "Traceback" not in run.err
    assert "Traceback" in cli(*pair, "-v", "hi").err
