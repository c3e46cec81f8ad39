"""The store (adaspark/store.py, store_file.py): rows go in and out whole; whatever the file's state, one warning and no harm."""

from __future__ import annotations

import contextlib
import json
import logging
import random
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from adaspark.errors import StoreError
from adaspark.store import MOST_ROWS, Store, Work, read_export, write_export
from adaspark.store_file import APPLICATION_ID, SCHEMA

STATE = bytes(range(256)) * 200
FACTS = {"threads": 2, "target": "abc"}
FILES = {"target": "a.gguf", "drafter": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "learned.sqlite"


def put(store: Store, key: str = "k1", arm: str = "adaspark", state: bytes = STATE) -> int:
    return store.put(key, arm, FACTS, FILES, state, Work(10, 20))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_row_comes_back_as_it_was_saved(path: Path) -> None:
    with Store(path) as store:
        assert store.get("k1", "adaspark") is None
        assert store.revision("k1", "adaspark") is None
        revision = put(store)
        assert store.revision("k1", "adaspark") == revision
    with Store(path) as store:
        row = store.get("k1", "adaspark")
        assert row is not None
        assert (row.state, row.identity, row.files) == (STATE, FACTS, FILES)
        assert (row.requests, row.rounds, row.tokens) == (1, 10, 20)
        assert put(store, state=b"other") != revision
        row = store.get("k1", "adaspark")
        assert row is not None
        assert (row.state, row.requests, row.rounds, row.tokens) == (b"other", 2, 20, 40)
        assert row.created <= row.updated
    assert [file.name for file in path.parent.iterdir()] == [path.name], "closed, the store is one file"


def test_rows_by_key_and_arm(path: Path) -> None:
    with Store(path) as store:
        for key, arm in (("aa1", "adaspark"), ("aa1", "cost"), ("ab2", "adaspark"), ("%", "adaspark")):
            put(store, key, arm)
        assert {(row.key, row.arm) for row in store.rows("aa")} == {("aa1", "adaspark"), ("aa1", "cost")}
        assert len(store.rows()) == 4
        assert [row.key for row in store.rows("%")] == ["%"], "a key is no pattern"
        assert store.reset("aa1", "cost") == 1
        assert store.reset("a") == 2
        assert store.reset() == 1
        assert store.rows() == []


def test_the_store_stays_small(path: Path) -> None:
    with Store(path) as store:
        for i in range(MOST_ROWS + 10):
            put(store, f"key{i}", state=b"x")
        rows = store.rows()
        assert len(rows) == MOST_ROWS
        assert "key0" not in {row.key for row in rows}
        assert rows[0].key == f"key{MOST_ROWS + 9}"


def test_export_and_import(path: Path, tmp_path: Path) -> None:
    with Store(path) as store:
        put(store)
        put(store, "k2", "cost", b"\x00\xff")
        data = json.loads(json.dumps(write_export(store.rows())))
    with Store(tmp_path / "other.sqlite") as other:
        put(other, state=b"older")
        other.import_rows(read_export(data))
        assert {row.state for row in other.rows()} == {STATE, b"\x00\xff"}
        before = other.rows()
        broken = json.loads(json.dumps(data))
        broken["rows"][1]["state"] = "no base 64!"
        for wrong in ({}, [], {**data, "version": 99}, broken, {**data, "rows": [{"key": "x"}]}):
            with pytest.raises(StoreError):
                other.import_rows(read_export(wrong))
        assert other.rows() == before, "all or nothing"


# ---- files that are not as they should be


def damaged_copies(path: Path) -> list[Path]:
    return sorted(path.parent.glob("learned.sqlite.damaged-*[0-9a-f]"))


def filled(path: Path) -> bytes:
    with Store(path) as store:
        for i in range(5):
            put(store, f"k{i}")
    return path.read_bytes()


def truncations(whole: bytes) -> list[int]:
    return [*range(1, 1024, 64), *range(4096, len(whole), 4096), len(whole) - 1]


def test_a_truncated_file_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = filled(path)
    for size in truncations(whole):
        for file in path.parent.iterdir():
            file.unlink()
        path.write_bytes(whole[:size])
        caplog.clear()
        with Store(path) as store:
            put(store)
            assert store.get("k1", "adaspark") is not None
        kept = damaged_copies(path)
        assert [file.read_bytes() for file in kept] == [whole[:size]], size
        assert len(warnings(caplog)) == 1
        assert kept[0].name in warnings(caplog)[0]


def test_an_empty_file_is_a_new_store(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    path.touch()
    with Store(path) as store:
        put(store)
    assert not damaged_copies(path)
    assert not warnings(caplog)


def test_noise_never_gets_out_of_the_store(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Random bytes at random places: either the file is set aside, or what it gives back is what SQLite can vouch for."""
    whole = filled(path)
    rng = random.Random(5)
    aside = 0
    for trial in range(60):
        for file in path.parent.iterdir():
            file.unlink()
        noisy = bytearray(whole)
        start = rng.randrange(len(noisy) - 64)
        noisy[start : start + 64] = rng.randbytes(64)
        path.write_bytes(rng.randbytes(5000) if trial == 0 else bytes(noisy))
        caplog.clear()
        with Store(path) as store:
            with contextlib.suppress(StoreError):
                store.rows()
            put(store)
        aside += len(damaged_copies(path))
        assert len(warnings(caplog)) == len(damaged_copies(path)) <= 1
    assert aside >= 1


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE notes (text)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"), Store(path) as store:
        put(store)
    assert path.read_bytes() == before
    assert not damaged_copies(path)


def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    """A damaged store keeps its name or its head; what has neither is somebody's file, named by mistake."""
    path = tmp_path / "notes.txt"
    path.write_text("mine\n" * 5000)
    with pytest.raises(StoreError, match="not a store"):
        Store(path).rows()
    assert path.read_text() == "mine\n" * 5000
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def test_older_schemas_are_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE notes (text)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.close()
    with Store(path) as store:
        put(store)
    assert "older schema" in warnings(caplog)[0]
    (kept,) = damaged_copies(path)
    with sqlite3.connect(kept) as db:
        assert db.execute("SELECT count(*) FROM notes").fetchone() == (0,)
    db.close()


def test_our_schema_without_our_table_is_set_aside(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE notes (text)")
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.close()
    with Store(path) as store:
        put(store)
    assert len(damaged_copies(path)) == len(warnings(caplog)) == 1


def test_a_newer_schema_is_left_alone(path: Path) -> None:
    filled(path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="newer AdaSpark"):
        Store(path)
    assert path.read_bytes() == before
    assert not damaged_copies(path)


def test_a_folder_in_the_files_place(tmp_path: Path) -> None:
    (tmp_path / "learned.sqlite").mkdir()
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "learned.sqlite")


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(StoreError, match="folder of the store"):
        Store(tmp_path / "cache" / "learned.sqlite")


def test_a_full_disk_keeps_what_was_there(path: Path) -> None:
    with Store(path) as store:
        put(store)
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full"):
            put(store, "k2", state=STATE * 20)
        row = store.get("k1", "adaspark")
        assert row is not None
        assert row.state == STATE
        assert store.get("k2", "adaspark") is None
        store._db.execute("PRAGMA max_page_count = 1000000")  # there is room again
        put(store, "k2", state=STATE * 20)


# ---- many processes


SAVE_MANY = """
import sys
from pathlib import Path
from adaspark.store import Store, Work
worker = int(sys.argv[2])
with Store(Path(sys.argv[1])) as store:
    for i in range(40):
        store.put("shared", "adaspark", {"worker": worker}, {}, bytes([worker]) * 5000, Work(1, 1))
        store.put(f"own{worker}", "adaspark", {"i": i}, {}, bytes([worker]) * 5000, Work(1, 1))
"""


def test_processes_that_save_at_once_lose_nothing(path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", SAVE_MANY, str(path), str(i)]) for i in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    with Store(path) as store:
        rows = {row.key: row for row in store.rows()}
    assert set(rows) == {"shared", "own0", "own1", "own2", "own3"}
    assert rows["shared"].requests == 160
    assert len(set(rows["shared"].state)) == 1, "one process's state, whole"
    for i in range(4):
        assert (rows[f"own{i}"].requests, rows[f"own{i}"].state) == (40, bytes([i]) * 5000)


def test_a_store_held_by_another_is_an_error_and_not_a_wait_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaspark.store_file.BUSY_S", 0.05)
    with Store(path) as store:
        put(store)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            put(store, state=b"mine")
        assert store.get("k1", "adaspark") is not None, "reading goes on"
        other.execute("ROLLBACK")
        other.close()
        put(store, state=b"mine")


def kill_while_saving(path: Path, kills: int) -> None:
    program = Path(__file__).with_name("store_killer.py")
    run = subprocess.run(
        [sys.executable, str(program), str(path), str(kills), "7"], capture_output=True, text=True, check=True
    )
    assert run.stderr == "", "nothing was set aside"
    lines = [tuple(map(int, line.split())) for line in run.stdout.splitlines()]
    assert len(lines) == kills
    for confirmed, held, whole in lines:
        assert whole == 1
        assert held >= confirmed, "what was confirmed is there"
    assert lines[-1][1] > kills / 2, "most processes came to saving"
    with Store(path) as store:
        assert store.get("key", "adaspark") is not None


def test_a_kill_while_saving_leaves_the_store_whole(path: Path) -> None:
    kill_while_saving(path, 12)


@pytest.mark.slow
def test_two_hundred_kills_while_saving_leave_the_store_whole(path: Path) -> None:
    kill_while_saving(path, 200)


# ---- looking, and rows from elsewhere


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(file): None if file.is_dir() else file.read_bytes() for file in folder.rglob("*")}


def damages(whole: bytes) -> dict[str, bytes]:
    noise = random.Random(1).randbytes(5000)
    return {
        "cut off": whole[:100],
        "cut in two": whole[: len(whole) // 2],
        "noise": noise,
        "noise inside": whole[:4096] + noise[:4096] + whole[8192:],
        "a text": b"mine\n" * 2000,
    }


@pytest.mark.parametrize("case", damages(bytes(10_000)))
def test_looking_into_a_damaged_store_changes_nothing(path: Path, case: str) -> None:
    path.write_bytes(damages(filled(path))[case])
    before = everything(path.parent)
    with pytest.raises(StoreError, match="left as it is"):
        Store(path, look=True).rows()
    assert everything(path.parent) == before


def test_looking_sees_what_a_killed_process_left_and_leaves_it(path: Path) -> None:
    """Its log is not merged: another process does that when it writes."""
    code = (
        "import os, sys; from pathlib import Path; from adaspark.store import Store, Work\n"
        "Store(Path(sys.argv[1])).put('k1', 'adaspark', {}, {}, b'state', Work(1, 2)); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    before = everything(path.parent)
    assert path.with_name(path.name + "-wal").name in {Path(name).name for name in before}
    with Store(path, look=True) as store:
        assert [row.state for row in store.rows()] == [b"state"]
        with contextlib.suppress(StoreError):
            put(store)
    assert everything(path.parent) == before


def test_looking_beside_a_writer_gives_whole_rows(path: Path) -> None:
    with Store(path) as writer:
        for i in range(20):
            put(writer, state=bytes([i]) * 5000)
            with Store(path, look=True) as store:
                (row,) = store.rows()
            assert row.state == bytes([i]) * 5000
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_an_empty_store_and_none_at_all(path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        Store(path, look=True)
    assert not path.parent.exists()
    path.parent.mkdir()
    path.touch()
    with Store(path, look=True) as store:
        assert store.rows() == []
    assert path.read_bytes() == b""
    with pytest.raises(StoreError, match="is a folder"):
        Store(path.parent, look=True)


CHANGES: dict[str, list[object]] = {
    "created": [float("inf"), float("nan"), -1.0, 1e300, "today", None, True],
    "updated": [float("inf"), float("nan"), 1e12],
    "arm": ["bush:3", "plain", "chain:3", "", 5, None],
    "key": ["", "\ud800", "a\nb", 5],
    "identity": [[], "x", None, {"a": float("nan")}],
    "files": [[], 5],
    "requests": [-1, 1.5, "3", True, 2**63, 10**30],
    "rounds": [-1, None],
    "tokens": [2**64],
    "revision": [-1, "x"],
    "state": ["é", 5, None, "abc"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_rows_that_no_store_wrote_are_refused(path: Path, name: str) -> None:
    with Store(path) as store:
        put(store)
        data = write_export(store.rows())
        before = store.rows()
        for value in CHANGES[name]:
            with pytest.raises(StoreError, match="an exported row is damaged"):
                store.import_rows(read_export({**data, "rows": [data["rows"][0], {**data["rows"][0], name: value}]}))
        for rows in (None, 5, "x", {}, [5], [None], [[]]):
            with pytest.raises(StoreError):
                read_export({**data, "rows": rows})
        assert store.rows() == before


def test_damaged_rows_are_left_out_with_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """SQLite keeps any value in any column, and older builds imported what they were given."""
    filled(path)
    with sqlite3.connect(path) as db:
        for i, (column, value) in enumerate(
            (("updated", float("inf")), ("identity", "no json"), ("state", "text"), ("requests", "many"))
        ):
            db.execute(f"UPDATE learned SET {column} = ? WHERE key = ?", (value, f"k{i}"))
    db.close()
    with Store(path, look=True) as store:
        assert [row.key for row in store.rows()] == ["k4"]
    assert len(warnings(caplog)) == 4
    with Store(path) as store:
        with pytest.raises(StoreError, match="damaged"):
            store.get("k0", "adaspark")
        put(store, "k0")  # and are written over by what is learned next
        assert store.get("k0", "adaspark") is not None
