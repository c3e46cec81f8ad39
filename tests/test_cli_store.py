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


@pytest.mark.usefixtures("filled")
def test_looking_never_changes_a_store(cli: Cli, path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    file = tmp_path / "export.json"
    looks = (("list",), ("show", "all"), ("export", "all", file))
    for data, code in ((whole, 0), (whole[: len(whole) // 2], 1), (b"", None), (whole[:40], 1)):
        path.write_bytes(data)
        names = {entry.name for entry in path.parent.iterdir()}
        for look in looks:
            run = cli("store", *look, "--json")
            assert run.code == code or (code is None and run.code in (0, 1))
            assert "internal" not in run.out
            assert path.read_bytes() == data
            assert {entry.name for entry in path.parent.iterdir()} == names


@pytest.mark.usefixtures("filled")
def test_an_export_never_goes_over_the_store(cli: Cli, path: Path) -> None:
    whole = path.read_bytes()
    assert cli("store", "export", "all", path).code == 2
    assert path.read_bytes() == whole


@pytest.mark.usefixtures("filled")
def test_a_wrong_import_touches_nothing(cli: Cli, path: Path, tmp_path: Path) -> None:
    file, none = tmp_path / "export.json", tmp_path / "none.sqlite"
    assert cli("store", "export", "all", file).code == 0
    good, whole = file.read_text(), path.read_bytes()
    created = json.loads(good)["rows"][0]["created"]
    for text in (
        good.replace(str(created), "Infinity"),
        good.replace(str(created), "NaN"),
        good.replace(str(created), "1e999"),
        good.replace('"arm": "cost"', '"arm": "bush"'),
        "[" * 100_000,
        "5",
    ):
        assert text != good
        file.write_text(text)
        run = cli("store", "import", file, "--json")
        assert (run.code, run.json["error"]["type"]) == (1, "StoreError")
        assert cli("store", "import", file, "--store", none).code == 1
        assert path.read_bytes() == whole
        assert not none.exists()


def test_a_folder_is_no_store(cli: Cli, tmp_path: Path) -> None:
    for action in (("list",), ("show", "all"), ("reset", "all")):
        run = cli("store", *action, "--store", tmp_path)
        assert run.code == 1
        assert "Traceback" not in run.err
    assert "is a folder" in cli("store", "list", "--store", tmp_path).err
