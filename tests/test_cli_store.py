"""``adaspark-run store`` and ``--store``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_tools import Cli

from adaspark.store import Store

N = ("-n", "24", "--ignore-eos")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the default store lies."""
    return tmp_path / "cache" / "learned.sqlite"


@pytest.fixture
def filled(cli: Cli, pair: tuple[str, ...], path: Path) -> str:
    """A store with two arms; its one key."""
    for arm in ("adaspark", "adaspark", "cost"):
        assert cli(*pair, *N, "--arm", arm, "hi").code == 0
    with Store(path) as store:
        (key,) = {row.key for row in store.rows()}
    return key


def test_replies_are_remembered_by_default(cli: Cli, filled: str, path: Path) -> None:
    data = cli("store", "--json").json
    assert data["store"] == str(path)
    assert [(row["key"], row["arm"], row["requests"], row["tokens"]) for row in data["rows"]] == [
        (filled, "cost", 1, 24),
        (filled, "adaspark", 2, 48),
    ]
    lines = cli("store", "list").out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("KEY")
    assert filled[:8] in lines[1]
    assert cli("store", "list", filled[:4], "--json").json == data
    assert cli("store", "list", "zz", "--json").json["rows"] == []


def test_show_has_prices_and_what_the_key_stands_for(cli: Cli, filled: str) -> None:
    rows = cli("store", "show", filled[:6], "--json").json["rows"]
    assert {row["arm"] for row in rows} == {"adaspark", "cost"}
    for row in rows:
        assert row["identity"]["threads"] == 1
        assert row["files"]["target"].endswith(".gguf")
        learned = row["learned"]
        assert learned["widths"][0]["rows"] == 1
        assert all(len(width["us"]) == len(learned["contexts"]) for width in learned["widths"])
        plain = learned["widths"][0]
        assert plain["samples"] > 3
        assert all(us > 0.0 for us in plain["us"])
    text = cli("store", "show", "all").out
    for words in (filled, "1 rows", "threads", "log loss", "samples"):
        assert words in text


def test_reset(cli: Cli, filled: str, path: Path) -> None:
    assert cli("store", "reset").code == 2, "say what to forget"
    assert cli("store", "reset", "zz", "--json").json["removed"] == 0
    assert cli("store", "reset", filled[:8], "--json").json == {"store": str(path), "removed": 2}
    assert cli("store", "reset", "all").out == "forgot 0 of what was learned\n"
    assert "is empty" in cli("store").out


@pytest.mark.usefixtures("filled")
def test_export_and_import_carry_the_bits(cli: Cli, path: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "export.json", tmp_path / "other.sqlite"
    assert cli("store", "export", "all", file, "--json").json["exported"] == 2
    assert cli("store", "import", file, "--store", other, "--json").json == {"store": str(other), "imported": 2}
    with Store(path) as one, Store(other) as two:
        assert [row.state for row in one.rows()] == [row.state for row in two.rows()]
    data = json.loads(file.read_text())
    assert data["format"] == "adaspark-learned"
    file.write_text(file.read_text()[:-40])
    run = cli("store", "import", file, "--store", other, "--json")
    assert (run.code, run.json["error"]["type"]) == (1, "StoreError")


def test_store_none_and_a_store_of_ones_own(
    cli: Cli,
    pair: tuple[str, ...],
    path: Path,
    tmp_path: Path,
) -> None:
    cli(*pair, *N, "--store", "none", "hi")
    assert not path.exists()
    cli(*pair, *N, "--store", tmp_path / "own.sqlite", "hi")
    assert not path.exists()
    with Store(tmp_path / "own.sqlite") as store:
        assert len(store.rows()) == 1
    cli("chat", *pair, *N, "--store", tmp_path / "own.sqlite", stdin="one\ntwo\n")
    with Store(tmp_path / "own.sqlite") as store:
        assert store.rows()[0].requests == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("show",),
        ("export",),
        ("export", "all"),
        ("import",),
        ("import", "a", "b"),
        ("list", "a", "b"),
        ("list", "--store", "none"),
        ("frobnicate",),
    ],
)
def test_wrong_usage(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli("store", *arguments, "--json").json["error"]["type"] == "UsageError"
    assert cli("store", *arguments).code == 2


def test_looking_makes_no_store(cli: Cli, path: Path) -> None:
    assert cli("store").code == 0
    assert "nothing learned yet" in cli("store", "reset", "all").out
    assert cli("store", "show", "all", "--json").json["error"]["type"] == "StoreError"
    assert not path.exists()
