"""What an engine learns outlives its process (adaspark/memory.py), and no state of the store costs a reply."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tm
from conftest import ModelFiles

from adaspark import Engine, Result, _engine
from adaspark.arms import set_arm
from adaspark.config import Arm
from adaspark.identity import fingerprint
from adaspark.store import Row, Store
from adaspark.store_file import APPLICATION_ID

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
QUIET: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
PROMPT = "the thin end of it"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "learned.sqlite"


def open_engine(models: ModelFiles, store: Path | str | None, **options: Any) -> Engine:
    pair = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    return Engine(*pair, store=store, **{**QUIET, **options})


def reply(engine: Engine, **options: Any) -> Result:
    return engine.generate(PROMPT, **{"n_predict": 48, "ignore_eos": True, **options}).read()


def rows(path: Path) -> dict[str, Row]:
    with Store(path) as store:
        return {row.arm: row for row in store.rows()}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def request(arm: str) -> _engine.Request:
    request = _engine.Request()
    set_arm(request, Arm.parse(arm))
    return request


@pytest.mark.parametrize("arm", ["adaspark", "adaspark:8", "cost", "adaspark:no-gating"])
def test_a_new_process_takes_up_the_very_bits(models: ModelFiles, path: Path, arm: str) -> None:
    with open_engine(models, path) as engine:
        for _ in range(3):
            reply(engine, arm=arm)
        assert engine._session is not None
        state = engine._session.learned(request(arm))
    row = rows(path)[arm]
    assert row.state == state
    assert (row.requests, row.tokens) == (3, 3 * 48)
    with open_engine(models, path) as engine:
        session = _engine.Session(engine.target, engine.drafter)
        engine._memory.before(session, request(arm), arm)
        assert session.learned(request(arm)) == state
        reply(engine, arm=arm)
    after = rows(path)[arm]
    assert after.requests == 4
    assert after.state != state


def test_nothing_is_kept_where_nothing_is_wanted(models: ModelFiles, path: Path) -> None:
    for store in (None, "none"):
        with open_engine(models, store) as engine:
            reply(engine)
    with open_engine(models, path) as engine:
        for arm in ("plain", "chain:3", "tree:4"):
            reply(engine, arm=arm)
        assert not path.exists(), "arms that do not learn open no store"
        reply(engine, n_predict=1)
        assert rows(path) == {}, "a reply without a round teaches nothing"


def test_the_default_store_lies_in_the_cache_folder(
    models: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADASPARK_CACHE", str(tmp_path))
    with Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), **QUIET) as engine:
        reply(engine)
    assert set(rows(tmp_path / "learned.sqlite")) == {"adaspark"}


def test_each_arm_and_each_way_to_run_learns_for_itself(models: ModelFiles, path: Path) -> None:
    keys = set()
    for options in ({}, {"n_threads": 2}, {"cache_type_k": "f16"}, {"kernels": "llama"}, {"max_rows": 16}):
        with open_engine(models, path, **options) as engine:
            reply(engine)
            reply(engine, arm="adaspark:8")
            keys.add(engine.identity.key)
    with Engine(models.target_path(SPEC), None, store=path, **QUIET) as engine:
        reply(engine)
        keys.add(engine.identity.key)
    with Store(path) as store:
        held = [(row.key, row.arm) for row in store.rows()]
    assert {key for key, _ in held} == keys
    assert len(keys) == 6
    assert len(held) == 11


def test_the_identity_is_of_content_and_not_of_names(models: ModelFiles, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copy(models.target_path(SPEC), copy)
    assert fingerprint(copy) == fingerprint(models.target_path(SPEC))
    data = bytearray(copy.read_bytes())
    data[-1000] ^= 1
    copy.write_bytes(data)
    assert fingerprint(copy) != fingerprint(models.target_path(SPEC))


def test_samples_reach_all_of_a_large_file(tmp_path: Path) -> None:
    """Beyond its head a file is looked at in samples: a file that differs throughout never passes for the same."""
    one, other = tmp_path / "one", tmp_path / "other"
    head, size = bytes(4 << 20), 9 << 20
    one.write_bytes(head + bytes(size))
    other.write_bytes(head + b"\1" * size)
    assert fingerprint(one) != fingerprint(other)
    other.write_bytes(head + bytes(size - 1) + b"\1")
    assert fingerprint(one) != fingerprint(other), "the end is looked at"
    other.write_bytes(head + bytes(size - 1))
    assert fingerprint(one) != fingerprint(other), "the size is"


def test_two_engines_go_on_where_the_other_left_off(models: ModelFiles, path: Path) -> None:
    with open_engine(models, path) as one, open_engine(models, path) as other:
        reply(one)
        reply(other)  # reads what `one` wrote
        assert rows(path)["adaspark"].requests == 2
        state = rows(path)["adaspark"].state
        reply(one, n_predict=0)  # no round: nothing written, but what `other` wrote is read
        assert one._session is not None
        assert one._session.learned(request("adaspark")) == state
        reply(one)
        assert rows(path)["adaspark"].requests == 3


def test_a_state_that_no_scheduler_takes_is_kept_aside(
    models: ModelFiles, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_engine(models, path) as engine:
        reply(engine)
    bad = bytearray(rows(path)["adaspark"].state)
    bad[100] ^= 0xFF
    db = sqlite3.connect(path)
    db.execute("UPDATE learned SET state = ?, revision = 5", (bytes(bad),))
    db.commit()
    db.close()
    caplog.clear()
    with open_engine(models, path) as engine:
        reply(engine)
        reply(engine)
    assert len(warnings(caplog)) == 1
    assert "kept as" in warnings(caplog)[0]
    held = rows(path)
    assert held.pop("adaspark").requests == 2
    (aside,) = held.values()
    assert aside.state == bytes(bad)
    assert aside.arm.startswith("adaspark refused ")


def test_a_cancelled_reply_is_saved_too(models: ModelFiles, path: Path) -> None:
    with open_engine(models, path) as engine:
        generation = engine.generate(PROMPT, ignore_eos=True)
        for _ in range(8):
            next(generation)
        generation.close()
        assert generation.result.finish_reason == "cancel"
    assert rows(path)["adaspark"].rounds > 0


# ---- as a process: one message, and the reply


def run(models: ModelFiles, store: Path | str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "adaspark", "-m", str(models.target_path(SPEC))),
        *("-md", str(models.drafter_path(SPEC, DRAFTER)), "-t", "1", "-n", "48", "--ignore-eos", "--json"),
        *("--store", str(store), *arguments, PROMPT),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


@pytest.fixture(scope="module")
def text(models: ModelFiles) -> str:
    return str(json.loads(run(models, "none").stdout)["text"])


def spoiled(kind: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "noise":
        path.write_bytes(bytes(range(256)) * 100)
    elif kind == "cut off":
        path.write_bytes(b"SQLite format 3\0" + bytes(100))
    elif kind == "folder":
        path.mkdir()
    elif kind == "newer":
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE future (x)")
        db.execute("PRAGMA user_version = 99")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.commit()
        db.close()
    else:
        assert kind == "older"
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE past (x)")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.commit()
        db.close()


@pytest.mark.parametrize("kind", ["noise", "cut off", "folder", "newer", "older"])
def test_a_spoiled_store_costs_one_line_and_no_reply(models: ModelFiles, path: Path, text: str, kind: str) -> None:
    spoiled(kind, path)
    got = run(models, path)
    assert (got.returncode, json.loads(got.stdout)["text"]) == (0, text)
    assert len(got.stderr.splitlines()) == 1
    assert got.stderr.startswith("warning: ")
    assert str(path) in got.stderr
    again = run(models, path)
    assert (again.returncode, json.loads(again.stdout)["text"]) == (0, text)
    kept = len(list(path.parent.glob("*.damaged-*")))
    if kind in ("folder", "newer"):
        assert (kept, again.stderr) == (0, got.stderr)
    else:
        assert (kept, again.stderr) == (1, "")
        assert rows(path)["adaspark"].requests == 2


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, unlike pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("filled", [False, True])
def test_a_folder_that_cannot_be_written(models: ModelFiles, open_folder: Path, filled: bool) -> None:
    path = open_folder / "learned.sqlite"
    with open_engine(models, path) as engine:
        reply(engine)
    state = rows(path)["adaspark"].state
    if not filled:
        path.unlink()
    open_folder.chmod(0o555)
    target, drafter = str(models.target_path(SPEC)), str(models.drafter_path(SPEC, DRAFTER))
    # Root may write anywhere, so it gives that up, once everything is imported and loaded.
    program = f"""
import logging, os, adaspark
from adaspark.config import Arm
from adaspark.arms import set_arm
from adaspark import _engine
logging.basicConfig(format="%(message)s")
with adaspark.Engine({target!r}, {drafter!r}, store={str(path)!r}, n_threads=1, cache_type_k="f32",
                     cache_type_v="f32") as engine:
    engine.identity  # read as root
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    assert not os.access({str(open_folder)!r}, os.W_OK)
    request = _engine.Request()
    set_arm(request, Arm("adaspark"))
    session = _engine.Session(engine.target, engine.drafter)
    engine._memory.before(session, request, "adaspark")
    state = session.learned(request)
    print("" if state is None else state.hex())
    for _ in range(2):
        print(engine.generate({PROMPT!r}, n_predict=8, ignore_eos=True).read().completion_tokens)
"""
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert got.returncode == 0, got.stderr
    assert got.stdout.splitlines() == [state.hex() if filled else "", "8", "8"]
    assert len(got.stderr.splitlines()) == 1
    assert "lasts as long as this process" in got.stderr


def test_a_disk_that_is_full_costs_one_line_and_no_reply(models: ModelFiles, path: Path, text: str) -> None:
    """A limit on the size of files stands for the disk: writing beyond it fails as writing to a full one does."""
    resource = pytest.importorskip("resource")
    signal = pytest.importorskip("signal")

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    got = run(models, path, preexec_fn=small_files)
    assert (got.returncode, json.loads(got.stdout)["text"]) == (0, text)
    assert len(got.stderr.splitlines()) == 1
    assert "lasts as long as this process" in got.stderr
    assert json.loads(run(models, path).stdout)["text"] == text
    assert rows(path)["adaspark"].requests == 1


def test_processes_at_once_write_their_replies(models: ModelFiles, path: Path, text: str) -> None:
    command = [
        *(sys.executable, "-m", "adaspark", "-m", str(models.target_path(SPEC))),
        *("-md", str(models.drafter_path(SPEC, DRAFTER)), "-t", "1", "-n", "48", "--ignore-eos", "--json"),
        *("--store", str(path), PROMPT),
    ]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in running:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, json.loads(out)["text"], err) == (0, text, "")
    assert rows(path)["adaspark"].requests == 4
