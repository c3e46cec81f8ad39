"""The file of the store: opening it whatever state it is in, and setting it aside when it is damaged."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Final

from adaspark.errors import StoreError

log = logging.getLogger("adaspark")

SCHEMA: Final = 1
"""Of the file; a change of its table needs a new number."""

APPLICATION_ID: Final = 0x41445350
_SHORTEST: Final = 512  # bytes of the smallest database; SQLite takes what is shorter for an empty file
BUSY_S: Final = 2.0  # seconds to wait for another process's transaction

_TABLE = """
CREATE TABLE learned (
    key TEXT NOT NULL,         -- adaspark.identity.Identity.key
    arm TEXT NOT NULL,
    identity TEXT NOT NULL,    -- JSON: what the key stands for
    files TEXT NOT NULL,       -- JSON: names of the files, for people
    state BLOB NOT NULL,       -- csrc/core/scheduler_state.cpp
    requests INTEGER NOT NULL,
    rounds INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    created REAL NOT NULL,     -- seconds since 1970
    updated REAL NOT NULL,
    revision INTEGER NOT NULL, -- a new random number with every write
    PRIMARY KEY (key, arm)
)
"""


class _DamagedError(Exception):
    """The file is no store of ours, or not whole; the message says why."""


def open_database(path: Path) -> tuple[sqlite3.Connection, str]:
    """A connection to the store at ``path``, made where there is none, and why it can only be read ("" = it cannot).

    Raises StoreError when the file can be neither used nor replaced.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"the folder of the store {path} cannot be made: {error.strerror}"
        raise StoreError(msg) from error
    for _ in range(3):  # another process may replace a damaged file between our look at it and our rename
        identity = _file_identity(path)
        try:
            return _connect(path)
        except _DamagedError as error:
            if path.suffix != ".sqlite" and not _is_database(path):
                msg = f"{path} is not a store: it is left as it is. Name another file (--store)"
                raise StoreError(msg) from error
            _replace(path, identity, str(error))
    msg = f"the store {path} is damaged over and over"
    raise StoreError(msg)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _connect(path: Path) -> tuple[sqlite3.Connection, str]:
    end = time.monotonic() + BUSY_S
    while True:
        try:
            db = sqlite3.connect(path, BUSY_S, isolation_level=None, check_same_thread=False)
            return _prepared(db, path), ""
        except sqlite3.OperationalError as error:
            # Two processes that both turn a new file to WAL are told so at once, whatever the time-out.
            if "locked" in str(error) and time.monotonic() < end:
                time.sleep(0.01)
                continue
            if "locked" not in str(error):
                with contextlib.suppress(StoreError):
                    return look_into(path), str(error)
            msg = f"the store {path} cannot be opened: {error}"
            raise StoreError(msg) from error


def _prepared(db: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """A connection whose file is whole and of our schema."""
    try:
        if 0 < _size(path) < _SHORTEST:
            msg = "it is cut off"
            raise _DamagedError(msg)
        db.execute("BEGIN")  # one look: another process may be making the table just now
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        db.execute("COMMIT")
        if tables and owner != APPLICATION_ID:
            msg = f"{path} is a database of another program: it is left as it is. Name another file (--store)"
            raise StoreError(msg)
        if version > SCHEMA:
            msg = f"the store {path} is of a newer AdaSpark (schema {version}, not {SCHEMA}): it is left as it is"
            raise StoreError(msg)
        if tables and version < SCHEMA:
            msg = f"it is of an older schema: {version}, not {SCHEMA}"
            raise _DamagedError(msg)
        check = [str(text) for (text,) in db.execute("PRAGMA quick_check(1)")]
        if check != ["ok"]:
            raise _DamagedError(check[0] if check else "its check says nothing")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last request, never the file
        _create(db)
        db.execute("SELECT revision FROM learned LIMIT 1").fetchone()
    except BaseException as error:
        db.close()
        if type(error) is sqlite3.DatabaseError:  # not one of its subclasses: "not a database", "malformed"
            raise _DamagedError(str(error)) from error
        if isinstance(error, sqlite3.OperationalError) and "no such" in str(error):
            msg = f"it has not the store's table: {error}"
            raise _DamagedError(msg) from error
        raise
    return db


def _create(db: sqlite3.Connection) -> None:
    """The table, where there is none yet. Processes that meet here make it once."""
    if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        if db.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
            db.execute(_TABLE)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def look_into(path: Path) -> sqlite3.Connection:
    """A copy of the store in memory: the store's own files are read and nothing more. StoreError says what is wrong."""
    if path.is_dir():
        msg = f"the store {path} is a folder: name a file (--store)"
        raise StoreError(msg)
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            copy = stack.enter_context(contextlib.closing(sqlite3.connect(_snapshot(path, folder))))
            copy.backup(db)
        return _prepared(db, path)
    except (_DamagedError, sqlite3.Error) as error:
        db.close()
        kind = "damaged" if path.suffix == ".sqlite" or _is_database(path) else "not a store"
        msg = f"{path} is {kind} ({error}): it is left as it is"
        raise StoreError(msg) from error
    except OSError as error:
        db.close()
        msg = f"the store {path} cannot be read: {error.strerror}"
        raise StoreError(msg) from error


def _snapshot(path: Path, folder: Path) -> Path:
    """A copy of a store and its log, both of one moment: neither changed meanwhile."""
    files = [path, path.with_name(path.name + "-wal")]
    copies = [folder / "copy", folder / "copy-wal"]
    for _ in range(100):
        before = [_change(file) for file in files]
        for file, copy in zip(files, copies, strict=True):
            copy.unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(file, copy)
        if before == [_change(file) for file in files]:
            break
        time.sleep(0.01)
    if not copies[0].exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    return copies[0]


def _change(path: Path) -> tuple[int, int, int] | None:
    """Differs when a file was replaced or written."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # another process has just set it aside
        return 0


def _file_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _replace(path: Path, identity: tuple[int, int] | None, reason: str) -> None:
    """Rename a damaged file and what belongs to it, unless another process has done so."""
    if _file_identity(path) != identity:
        return
    kept = path.with_name(f"{path.name}.damaged-{stamp()}")
    try:
        for suffix in ("-wal", "-shm", ""):  # the file itself last: until then the next process finds it damaged, too
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).rename(kept.with_name(kept.name + suffix))
    except OSError as error:
        msg = f"the store {path} is damaged ({reason}) and cannot be set aside: {error.strerror}"
        raise StoreError(msg) from error
    log.warning("the store %s is damaged (%s): it is kept as %s, and an empty one begins", path, reason, kept.name)


def stamp() -> str:
    """The time, and something of its own for two events within one second."""
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)
