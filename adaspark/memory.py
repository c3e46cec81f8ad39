"""Joins a session's schedulers and the store: read before a request, written after it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from adaspark.config import file_path
from adaspark.errors import StoreError
from adaspark.store import Store, Work, default_path

if TYPE_CHECKING:
    import os

    from adaspark._engine import Request, Session
    from adaspark.identity import Identity

log = logging.getLogger("adaspark")

NO_STORE = "none"


def store_path(store: str | os.PathLike[str] | None) -> Path | None:
    """The file a ``store`` option names: "auto" is the user's cache folder, "none" and None are no file."""
    if store is None or store == NO_STORE:
        return None
    return default_path() if store == "auto" else file_path(store, "store")


class Memory:
    """What the arms of one engine have learned, kept in a store.

    Nothing here fails a request: what goes wrong with the store is one warning, and the schedulers then learn for this
    process alone.
    """

    def __init__(self, path: Path | None, identity: Callable[[], Identity]) -> None:
        self._path = path
        self._make_identity = identity
        self._identity: Identity | None = None
        self._store: Store | None = None
        self._revisions: dict[str, int] = {}  # by arm: what this process has read or written last
        self._told: set[str] = set()

    def before(self, session: Session, request: Request, arm: str) -> None:
        """Bring the arm's scheduler up to what the store has, when another process was there last."""
        if request.arm != "adaspark" or not self._open() or self._store is None or self._identity is None:
            return
        key = self._identity.key
        try:
            revision = self._store.revision(key, arm)
            if revision is None or revision == self._revisions.get(arm):
                return
            row = self._store.get(key, arm)
            if row is None:
                return
            self._revisions[arm] = row.revision
            if not session.restore(request, row.state):
                name = row.arm if self._store.read_only else self._store.set_aside(row)
                self._tell(f"what arm {arm} had learned is damaged: it is kept as {name!r}, and learning begins anew")
        except StoreError as error:
            self._tell(str(error))

    def after(self, session: Session, request: Request, arm: str, work: Work) -> None:
        """Save what the arm has learned, after a request."""
        if request.arm != "adaspark" or self._store is None or self._identity is None or self._store.read_only:
            return
        state = session.learned(request)
        if state is None or work.rounds == 0:  # nothing was learned
            return
        try:
            self._revisions[arm] = self._store.put(
                self._identity.key, arm, self._identity.facts, self._identity.files, state, work
            )
        except StoreError as error:
            self._tell(f"{error}. What is learned lasts as long as this process")

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        self._store = None

    def _open(self) -> bool:
        """Whether there is a store. Opened with the first request that learns."""
        if self._path is not None and self._store is None:
            path, self._path = self._path, None  # one attempt
            try:
                self._identity = self._identity or self._make_identity()
                self._store = Store(path)
            except (StoreError, OSError) as error:
                self._tell(f"{error}. What is learned lasts as long as this process")
            else:
                if self._store.read_only:
                    self._tell(
                        f"the store {path} cannot be written: {self._store.read_only}. "
                        "What is learned lasts as long as this process"
                    )
        return self._store is not None

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            log.warning("%s", message)
