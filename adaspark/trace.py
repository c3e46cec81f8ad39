"""Traces: one record a round, enough to replay the scheduler's decisions exactly. ``docs/traces.md`` has the format.

A request is one frame, written after it in one call, so several processes may append to one file, and files put one
after the other are a file. A frame that a killed process left half written costs that frame: the reader goes on with the
next one that is whole. The rounds' records come from the session as they are (``csrc/engine/session_trace.cpp``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from adaspark.config import MAX_BLOCK, MAX_ROWS, Arm
from adaspark.errors import TraceError

if TYPE_CHECKING:
    from adaspark._engine import Request, Session, Target
    from adaspark.identity import Identity

log = logging.getLogger("adaspark")

FORMAT: Final = "adaspark-trace"
VERSION: Final = 1
_FRAME: Final = struct.Struct("<4sIIII")  # magic, version, bytes of the header, bytes of the body, crc32 of both
_MAGIC: Final = b"ADTR"
_LONGEST: Final = 1 << 30  # bytes of a body that anyone means, unpacked
_PARTS: Final = 5  # prompt, reply, end-of-generation tokens, state, rounds
_HEADER: Final[dict[str, Any]] = {
    "arm": str, "full": bool, "continues": bool, "stream": str, "finish_reason": (str, type(None)),
    "learned_after": (str, type(None)), "identity": dict, "parts": list,
}  # fmt: skip
"""What a replay reads of a header, and its types."""


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
                head = file.read(_FRAME.size)
            if not _begins_as_trace(head):
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
                rest = memoryview(_frame(header, parts))
                while rest:  # a write may take less than all of it
                    rest = rest[file.write(rest) :]
        except OSError as error:
            self._broken = True
            log.warning("the trace %s cannot be written: %s. Nothing more is traced", self.path, error.strerror)


def read_trace(path: Path) -> list[TracedRequest]:
    """The whole requests of a trace file. What a killed process or a damaged disk left between them is told in a warning.

    Raises TraceError when the file cannot be read, is no trace, is of another version, or holds a request that nobody
    wrote so.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"the trace {path} cannot be read: {error.strerror}"
        raise TraceError(msg) from error
    out: list[TracedRequest] = []
    at = left_out = 0
    while at < len(data):
        end = _frame_end(data, at)
        if end is None:  # look for the next one
            start, at = at, data.find(_MAGIC, at + 1)
            at = len(data) if at < 0 else at
            left_out += at - start
            continue
        try:
            out.append(_request(data, at))
        except (ValueError, TypeError, KeyError, RecursionError, zlib.error) as error:
            msg = (
                f"the request at byte {at} of the trace {path} is whole, but no trace's: {type(error).__name__} {error}"
            )
            raise TraceError(msg) from error
        at = end
    if not out and left_out:
        _check_kind(path, data)
    if left_out:
        log.warning(
            "%d of %d bytes of the trace %s belong to no whole request and are left out", left_out, len(data), path
        )
    return out


def _begins_as_trace(data: bytes) -> bool:
    """Whether a file's first bytes are a trace's, or what is left of a first write that was cut off."""
    head = data[: _FRAME.size]
    return _MAGIC in head or _MAGIC.startswith(head)


def _check_kind(path: Path, data: bytes) -> None:
    """TraceError when a file without a whole frame is no trace of this version."""
    if not _begins_as_trace(data):
        msg = f"{path} is not a trace"
        raise TraceError(msg)
    version = int.from_bytes(data[4:8], "little")
    if len(data) >= _FRAME.size and data.startswith(_MAGIC) and version != VERSION:
        msg = f"{path} holds a trace of version {version}; this build reads version {VERSION}"
        raise TraceError(msg)


def _frame_end(data: bytes, at: int) -> int | None:
    """Where the frame that begins at a byte ends; None where no whole frame does."""
    if data[at : at + 4] != _MAGIC or len(data) - at < _FRAME.size:
        return None
    _, version, n_header, n_body, checksum = _FRAME.unpack_from(data, at)
    start = at + _FRAME.size
    end: int = start + n_header + n_body
    if version != VERSION or end > len(data) or zlib.crc32(memoryview(data)[start:end]) != checksum:
        return None
    return end


def _request(data: bytes, at: int) -> TracedRequest:
    """The request of a whole frame. Whatever is wrong with it is one of the errors that ``read_trace`` expects."""
    _, _, n_header, n_body, _ = _FRAME.unpack_from(data, at)
    body = at + _FRAME.size + n_header
    header = json.loads(data[at + _FRAME.size : body])
    _check_header(header)
    sizes = header.pop("parts")
    # No more is unpacked than the parts take: a few bytes of zlib can stand for any number.
    raw = zlib.decompressobj().decompress(data[body : body + n_body], sum(sizes) + 1)
    if len(raw) != sum(sizes):
        msg = f"its parts take {sum(sizes)} bytes, its body has {len(raw)} or more"
        raise ValueError(msg)
    parts, start = [], 0
    for size in sizes:
        parts.append(raw[start : start + size])
        start += size
    prompt, reply, stops = (np.frombuffer(part, dtype="<i4").astype(np.int32) for part in parts[:3])
    return TracedRequest(header, prompt, reply, stops, parts[3], parts[4])


def _check_header(header: Any) -> None:
    """One of ``read_trace``'s errors unless a header has what a replay reads of it."""
    for name, kinds in _HEADER.items():
        if not isinstance(header[name], kinds):
            msg = f"{name} is {header[name]!r}"
            raise TypeError(msg)
    Arm.parse(header["arm"])
    for name, low, high in (("block", 0, MAX_BLOCK), ("max_rows", 1, MAX_ROWS)):
        value = header["identity"][name]
        if type(value) is not int or not low <= value <= high:
            msg = f"{name} is {value!r}"
            raise ValueError(msg)
    sizes = header["parts"]
    if len(sizes) != _PARTS or not all(type(size) is int and size >= 0 for size in sizes) or sum(sizes) > _LONGEST:
        msg = f"parts of {sizes!r} bytes"
        raise ValueError(msg)


def _frame(header: dict[str, Any], parts: list[bytes]) -> bytes:
    text = json.dumps({**header, "parts": [len(part) for part in parts]}, separators=(",", ":")).encode()
    body = zlib.compress(b"".join(parts), 1)
    return _FRAME.pack(_MAGIC, VERSION, len(text), len(body), zlib.crc32(text + body)) + text + body
