"""Traces: one record a round, enough to replay the scheduler's decisions exactly. ``docs/traces.md`` has the format.

A request is one frame, written after it in one call, so several processes may append to one file, and files put one
after the other are a file. The rounds' records come from the session as they are (``csrc/engine/session_trace.cpp``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adaspark.errors import TraceError

if TYPE_CHECKING:
    from adaspark._engine import Request, Session, Target
    from adaspark.identity import Identity

log = logging.getLogger("adaspark")

FORMAT: Final = "adaspark-trace"
VERSION: Final = 1
_FRAME: Final = struct.Struct("<4sIIII")  # magic, version, bytes of the header, bytes of the body, crc32 of both
_MAGIC: Final = b"ADTR"
_LONGEST: Final = 1 << 30  # bytes of a frame that anyone means


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request of a trace."""

    header: dict[str, Any]
    prompt: NDArray[np.int32]
    reply: NDArray[np.int32]  # without the end-of-generation token
    stop_tokens: NDArray[np.int32]
    state: bytes  # what the scheduler had learned before; empty: nothing, or see header["continues"]
    rounds: bytes  # records, one after the other

    @property
    def arm(self) -> str:
        return str(self.header["arm"])

    @property
    def full(self) -> bool:
        """Whether the drafter ran at every position of the reply."""
        return bool(self.header["full"])


class TraceWriter:
    """Appends requests to a trace file. What goes wrong is one warning, and no request's matter."""

    def __init__(self, path: Path, target: Target, identity: Identity) -> None:
        self.path = path
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(len(_MAGIC))
            if head != _MAGIC[: len(head)]:
                msg = f"{path} is not a trace, and requests would be appended to it: name another file"
                raise TraceError(msg)
        self._identity = identity
        self._target = target
        self._stop_tokens = [token for token in range(target.n_vocab) if target.is_eog(token)]
        self._stream = secrets.token_hex(8)
        self._prompt: Sequence[int] = ()
        self._before = b""
        self._after: dict[str, str] = {}  # digest of what each arm knew after its last traced request
        self._broken = False

    def before(self, session: Session, request: Request, prompt: Sequence[int]) -> None:
        """Right before a request begins."""
        self._prompt = prompt
        self._before = (session.learned(request) or b"") if request.arm == "adaspark" else b""

    def after(self, session: Session, request: Request, arm: str) -> None:
        """Right after it ended."""
        if self._broken:
            return
        learned = (session.learned(request) or b"") if request.arm == "adaspark" else b""
        before = hashlib.sha256(self._before).hexdigest()
        continues = bool(self._before) and self._after.get(arm) == before
        statistics = session.statistics
        header = {
            "format": FORMAT,
            "stream": self._stream,
            "arm": arm,
            "full": request.draft_only,
            "continues": continues,
            "finish_reason": session.finish_reason,
            "temperature": request.temperature,
            "context": self._target.n_ctx,
            "rounds": statistics["rounds"],
            "decode_us": statistics["decode_us"],
            "learned_before": before if self._before else None,
            "learned_after": hashlib.sha256(learned).hexdigest() if learned else None,
            "identity": self._identity.facts,
            "files": self._identity.files,
        }
        parts = [
            np.asarray(self._prompt, dtype="<i4").tobytes(),
            np.asarray(session.token_ids, dtype="<i4").tobytes(),
            np.asarray(self._stop_tokens, dtype="<i4").tobytes(),
            b"" if continues else self._before,
            session.trace(),
        ]
        self._after[arm] = hashlib.sha256(learned).hexdigest()
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(_frame(header, parts))
        except OSError as error:
            self._broken = True
            log.warning("the trace %s cannot be written: %s. Nothing more is traced", self.path, error.strerror)


def read_trace(path: Path) -> list[TracedRequest]:
    """The requests of a trace file. A last frame that was cut off is left out, with a warning.

    Raises TraceError when the file cannot be read, is no trace, of another version, or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"the trace {path} cannot be read: {error.strerror}"
        raise TraceError(msg) from error
    return list(_frames(path, data))


def _frames(path: Path, data: bytes) -> Iterator[TracedRequest]:
    at = 0
    while at < len(data):
        if data[at : at + 4] != _MAGIC[: len(data) - at]:
            msg = f"{path} is not a trace" if at == 0 else f"{path} is damaged at byte {at}"
            raise TraceError(msg)
        if len(data) - at < _FRAME.size:
            break
        _, version, n_header, n_body, checksum = _FRAME.unpack_from(data, at)
        if version != VERSION:
            msg = f"{path} holds a trace of version {version}; this build reads version {VERSION}"
            raise TraceError(msg)
        start, end = at + _FRAME.size, at + _FRAME.size + n_header + n_body
        if end > len(data) and n_header + n_body < _LONGEST:
            break
        if zlib.crc32(data[start:end]) != checksum:
            msg = f"{path} is damaged at byte {at}: the checksum is wrong"
            raise TraceError(msg)
        yield _request(data[start : start + n_header], data[start + n_header : end])
        at = end
    if at < len(data):
        log.warning("the last request of the trace %s was cut off and is left out", path)


def _request(header: bytes, body: bytes) -> TracedRequest:
    data = json.loads(header)
    raw = zlib.decompress(body)
    parts = []
    at = 0
    for size in data.pop("parts"):
        parts.append(raw[at : at + size])
        at += size
    prompt, reply, stops = (np.frombuffer(part, dtype="<i4").astype(np.int32) for part in parts[:3])
    return TracedRequest(data, prompt, reply, stops, parts[3], parts[4])


def _frame(header: dict[str, Any], parts: list[bytes]) -> bytes:
    text = json.dumps({**header, "parts": [len(part) for part in parts]}, separators=(",", ":")).encode()
    body = zlib.compress(b"".join(parts), 1)
    return _FRAME.pack(_MAGIC, VERSION, len(text), len(body), zlib.crc32(text + body)) + text + body
