"""What schedulers have learned, kept between processes: one SQLite file, by default in the user's cache folder.

A row is one arm on one pair, machine and build (:mod:`adaspark.identity`). It is read before a request and written after
it, in one transaction. The file is in WAL mode: a process that is killed leaves it whole, and many processes may use it
at once. Whoever ends a request last wins its row.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from adaspark.config import Arm
from adaspark.default_pair import cache_dir
from adaspark.errors import StoreError
from adaspark.store_file import SCHEMA, look_into, open_database, stamp

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger("adaspark")

FILE: Final = "learned.sqlite"
MOST_ROWS: Final = 512
"""Rows kept; the ones not used for longest go first, so the file stays small whatever is tried."""

EXPORT_FORMAT: Final = "adaspark-learned"

REFUSED: Final = " refused "
"""In the name of a row that no scheduler takes, after its arm."""

_LAST: Final = 253_402_300_799  # seconds since 1970 at the end of the year 9999

_COLUMNS = "key, arm, identity, files, state, requests, rounds, tokens, created, updated, revision"


def default_path() -> Path:
    return cache_dir() / FILE


class Work(NamedTuple):
    """What a request added to a row."""

    rounds: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Row:
    """What one arm has learned on one pair, machine and build."""

    key: str
    arm: str
    identity: dict[str, Any]
    files: dict[str, Any]
    state: bytes
    requests: int
    rounds: int
    tokens: int
    created: float  # seconds since 1970
    updated: float
    revision: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the state in base 64."""
        names = _COLUMNS.split(", ")
        return {name: getattr(self, name) for name in names} | {"state": base64.b64encode(self.state).decode("ascii")}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """StoreError on what ``to_dict`` did not write."""
        try:
            fields = {name: data[name] for name in _COLUMNS.split(", ")}
            return cls(**{**fields, "state": base64.b64decode(data["state"], validate=True)}).checked()
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            msg = f"an exported row is damaged: {type(error).__name__} {error}"
            raise StoreError(msg) from error

    def checked(self) -> Row:
        """This row. ValueError or TypeError when it is none that was ever saved: files come from anywhere."""
        for name, kind in _TYPES.items():
            if type(getattr(self, name)) not in (kind, int if kind is float else kind):
                msg = f"{name} is {getattr(self, name)!r}"
                raise TypeError(msg)
        good = {
            "key": self.key.isascii() and self.key.isprintable() and self.key != "",
            "arm": Arm.parse(self.arm.partition(REFUSED)[0]).kind == "adaspark",
            "identity": json.dumps([self.identity, self.files], allow_nan=False) != "",
            "created": 0 <= self.created <= _LAST,
            "updated": 0 <= self.updated <= _LAST,
            **{name: 0 <= getattr(self, name) < 1 << 63 for name in ("requests", "rounds", "tokens", "revision")},
        }
        for name, fine in good.items():
            if not fine:
                msg = f"{name} is {getattr(self, name)!r}"
                raise ValueError(msg)
        return self


_TYPES: Final[dict[str, type[Any]]] = {
    "key": str, "arm": str, "identity": dict, "files": dict, "state": bytes, "requests": int, "rounds": int,
    "tokens": int, "created": float, "updated": float, "revision": int,
}  # fmt: skip


def write_export(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as one JSON object."""
    return {"format": EXPORT_FORMAT, "version": SCHEMA, "rows": [row.to_dict() for row in rows]}


def read_export(data: Any) -> list[Row]:
    """The rows of what ``write_export`` gave. StoreError when these are none."""
    if not isinstance(data, dict) or data.get("format") != EXPORT_FORMAT:
        msg = "this is not an export of a store"
        raise StoreError(msg)
    if data.get("version") != SCHEMA:
        msg = f"this export is of version {data.get('version')!r}; this build reads version {SCHEMA}"
        raise StoreError(msg)
    if not isinstance(data.get("rows"), list):
        msg = "this export has no rows"
        raise StoreError(msg)
    return [Row.from_dict(row) for row in data["rows"]]


class Store:
    """An open store. Raises StoreError when the file can be neither used nor replaced.

    A damaged file, or one of an older schema, is renamed and a new one begun, with one warning. One of a newer schema
    is left alone. A file that cannot be written is read where that is possible; ``read_only`` then says why.
    ``look`` only reads, whatever state the file is in: StoreError says what is wrong with it.
    """

    def __init__(self, path: Path, *, look: bool = False) -> None:
        self.path = path
        self._db, self.read_only = (look_into(path), "it was opened to be read") if look else open_database(path)

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- rows

    def revision(self, key: str, arm: str) -> int | None:
        """Changes whenever the row is written; None where there is no row."""
        with self._errors("read"):
            found = self._db.execute("SELECT revision FROM learned WHERE key = ? AND arm = ?", (key, arm)).fetchone()
        return None if found is None else int(found[0])

    def get(self, key: str, arm: str) -> Row | None:
        with self._errors("read"):
            found = self._db.execute(
                f"SELECT {_COLUMNS} FROM learned WHERE key = ? AND arm = ?",  # noqa: S608 - our own column names
                (key, arm),
            ).fetchone()
        return None if found is None else _row(found)

    def rows(self, key: str = "") -> list[Row]:
        """Every row whose key begins with ``key``, the newest first. Damaged ones are left out, with a warning."""
        with self._errors("read"):
            found = self._db.execute(
                f"SELECT {_COLUMNS} FROM learned WHERE substr(key, 1, ?) = ? ORDER BY updated DESC",  # noqa: S608
                (len(key), key),
            ).fetchall()
        rows = []
        for values in found:
            try:
                rows.append(_row(values))
            except StoreError as error:
                log.warning("the store %s: %s. It is left out", self.path, error)
        return rows

    def put(self, key: str, arm: str, identity: dict[str, Any], files: dict[str, Any], state: bytes, work: Work) -> int:
        """Write a row after a request; its new revision."""
        now = time.time()
        revision = secrets.randbits(62)
        values = (key, arm, _json(identity), _json(files), state, 1, *work, now, now, revision)
        with self._transaction():
            self._db.execute(
                f"INSERT INTO learned ({_COLUMNS}) VALUES ({', '.join('?' * len(values))}) "  # noqa: S608
                "ON CONFLICT (key, arm) DO UPDATE SET identity = excluded.identity, files = excluded.files, "
                "state = excluded.state, requests = requests + 1, rounds = rounds + excluded.rounds, "
                "tokens = tokens + excluded.tokens, updated = excluded.updated, revision = excluded.revision",
                values,
            )
            self._db.execute(
                "DELETE FROM learned WHERE (key, arm) NOT IN (SELECT key, arm FROM learned ORDER BY updated DESC LIMIT ?)",
                (MOST_ROWS,),
            )
        return revision

    def set_aside(self, row: Row) -> str:
        """Give a row that no scheduler takes another name; that name."""
        name = f"{row.arm}{REFUSED}{stamp()}"
        with self._transaction():
            self._db.execute(
                "UPDATE OR REPLACE learned SET arm = ? WHERE key = ? AND arm = ?", (name, row.key, row.arm)
            )
        return name

    def reset(self, key: str = "", arm: str | None = None) -> int:
        """Delete the rows whose key begins with ``key``; how many."""
        condition, values = "substr(key, 1, ?) = ?", [len(key), key]
        if arm is not None:
            condition, values = condition + " AND arm = ?", [*values, arm]
        with self._transaction():
            return self._db.execute(f"DELETE FROM learned WHERE {condition}", values).rowcount  # noqa: S608

    def import_rows(self, rows: Sequence[Row]) -> None:
        """Take rows (``read_export``) in place of what is there. All or none."""
        with self._transaction():
            for row in rows:
                values = {
                    **row.to_dict(),
                    "state": row.state,
                    "identity": _json(row.identity),
                    "files": _json(row.files),
                }
                self._db.execute(
                    f"INSERT OR REPLACE INTO learned ({_COLUMNS}) VALUES ({', '.join('?' * 11)})",  # noqa: S608
                    [*list(values.values())[:-1], secrets.randbits(62)],
                )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            msg = f"the store {self.path} cannot be {verb}: {error}"
            raise StoreError(msg) from error


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def _row(values: tuple[Any, ...]) -> Row:
    named = dict(zip(_COLUMNS.split(", "), values, strict=True))
    try:
        for name in ("identity", "files"):
            named[name] = json.loads(named[name])
        return Row(**named).checked()
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"a row is damaged: {type(error).__name__} {error}"
        raise StoreError(msg) from error
