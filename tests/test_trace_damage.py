"""Traces that a crash, a full disk or a stranger has had in hand: what is whole is read, the rest is told."""

from __future__ import annotations

import io
import json
import logging
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tm
from cli_tools import Cli
from conftest import ModelFiles

from adaspark import Engine, trace
from adaspark.errors import TraceError
from adaspark.replay import RECORD, ExactReplay, Recorded
from adaspark.trace import TracedRequest, read_trace

QUIET: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "store": None}
PROMPT = "the thin end of it, the thin end of it"


def write(models: ModelFiles, path: Path) -> None:
    """One more request of one more process."""
    pair = models.target_path(tm.DENSE), models.drafter_path(tm.DENSE, tm.DrafterSpec())
    with Engine(*pair, trace=path, arm="adaspark:8:no-gating", **QUIET) as engine:
        engine.generate(PROMPT, n_predict=48, ignore_eos=True).read()


@pytest.fixture
def path(models: ModelFiles, tmp_path: Path) -> Path:
    path = tmp_path / "rounds.trace"
    write(models, path)
    return path


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ---- torn frames


@pytest.mark.parametrize("kept", [1, 3, 4, 19, 20, 21, 500, -1])
@pytest.mark.parametrize("before", [0, 1])
def test_a_run_goes_on_behind_a_torn_frame(
    models: ModelFiles, path: Path, caplog: pytest.LogCaptureFixture, before: int, kept: int
) -> None:
    """A process killed in mid-write leaves some first bytes of its frame; every other request stays readable."""
    frame = path.read_bytes()
    torn = frame[:kept]
    path.write_bytes(frame * before + torn)
    write(models, path)
    requests = read_trace(path)
    assert len(requests) == before + 1
    assert all(ExactReplay().run(Recorded.of(request)).exact for request in requests)
    size = path.stat().st_size
    assert warnings(caplog) == [
        f"{len(torn)} of {size} bytes of the trace {path} belong to no whole request and are left out"
    ]


def test_every_whole_frame_around_a_damaged_one_is_read(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = path.read_bytes()
    for at in range(0, len(frame), 301):
        damaged = bytearray(frame)
        damaged[at] ^= 0x10
        path.write_bytes(frame + damaged + frame[: len(frame) // 2] + frame)
        caplog.clear()
        assert len(read_trace(path)) == 2, at
        assert len(warnings(caplog)) == 1


def test_a_frame_that_is_written_piecemeal_is_whole(
    models: ModelFiles, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(io.FileIO):
        """Takes a hundred bytes at a time, as a signal or a full pipe makes a file do."""

        def write(self, data: Any) -> int:
            return super().write(data[:100])

    real = Path.open
    monkeypatch.setattr(
        Path, "open", lambda self, mode="r", *a, **k: Slow(self, mode) if mode == "ab" else real(self, mode, *a, **k)
    )
    write(models, path)
    assert len(read_trace(path)) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")  # noqa: PTH110
def test_a_full_disk_is_one_warning(models: ModelFiles, caplog: pytest.LogCaptureFixture) -> None:
    write(models, Path("/dev/full"))
    assert len(warnings(caplog)) == 1
    assert "No space left" in warnings(caplog)[0]


def test_a_killed_request_before_the_first_whole_one(path: Path) -> None:
    """What is left of the magic is no file of somebody else's."""
    path.write_bytes(b"AD")
    assert read_trace(path) == []


# ---- whole frames that no session wrote


def rewritten(
    path: Path, header: Callable[[dict[str, Any]], Any], body: Callable[[bytes], bytes] = lambda b: b
) -> None:
    """Change a frame and make its checksum right."""
    data = path.read_bytes()
    _, _, n_header, n_body, _ = trace._FRAME.unpack_from(data)
    start = trace._FRAME.size
    head = json.loads(data[start : start + n_header])
    changed = header(head)
    text = json.dumps(head if changed is None else changed).encode()
    rest = body(data[start + n_header : start + n_header + n_body])
    path.write_bytes(trace._FRAME.pack(b"ADTR", 1, len(text), len(rest), zlib.crc32(text + rest)) + text + rest)


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda _: [],
    "a number": lambda _: 5,
    "nothing": lambda _: {},
    "no arm": lambda h: h.pop("arm") and None,
    "another arm": lambda h: h.update(arm="bush:3"),
    "arm 7": lambda h: h.update(arm=7),
    "no identity": lambda h: h.update(identity=None),
    "an empty identity": lambda h: h.update(identity={}),
    "a block of words": lambda h: h["identity"].update(block="seven"),
    "an endless block": lambda h: h["identity"].update(block=float("inf")),
    "a long block": lambda h: h["identity"].update(block=10**6),
    "many rows": lambda h: h["identity"].update(max_rows=10**6),
    "no rows": lambda h: h["identity"].update(max_rows=0),
    "parts of words": lambda h: h.update(parts=["a"] * 5),
    "four parts": lambda h: h.update(parts=h["parts"][:4]),
    "a negative part": lambda h: h.update(parts=[-4, *h["parts"][1:]]),
    "a longer part": lambda h: h.update(parts=[h["parts"][0] + 4, *h["parts"][1:]]),
    "a shorter part": lambda h: h.update(parts=[*h["parts"][:4], h["parts"][4] - 8]),
    "an odd part": lambda h: h.update(parts=[h["parts"][0] + 1, h["parts"][1] - 1, *h["parts"][2:]]),
    "huge parts": lambda h: h.update(parts=[1 << 40] * 5),
    "continues": lambda h: h.update(continues="perhaps"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_nobody_wrote_is_an_error(cli: Cli, path: Path, case: str) -> None:
    rewritten(path, HEADERS[case])
    run = cli("replay", path, "--json")
    assert (run.code, run.json["error"]["type"]) == (1, "TraceError")
    assert "internal" not in run.json["error"]["message"]


@pytest.mark.parametrize(
    "body", [lambda _: b"", lambda _: b"no zlib", lambda b: b[:-9], lambda _: zlib.compress(bytes(50_000_000))]
)
def test_a_body_that_nobody_wrote_is_an_error(cli: Cli, path: Path, body: Callable[[bytes], bytes]) -> None:
    rewritten(path, lambda _: None, body)
    run = cli("replay", path, "--json")
    assert (run.code, run.json["error"]["type"]) == (1, "TraceError")


def with_rounds(request: TracedRequest, rounds: bytes) -> TracedRequest:
    return TracedRequest(**{name: getattr(request, name) for name in TracedRequest.__slots__} | {"rounds": rounds})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kind", 4),
        ("kind", 255),
        ("context", -(2**31)),
        ("context", 0),
        ("context", 2**31 - 1),
        ("left", -1),
        ("left", 2**31 - 1),
        ("verify_us", np.nan),
        ("verify_us", -1.0),
        ("draft_us", np.inf),
    ],
)
def test_a_field_out_of_range_is_an_error(path: Path, name: str, value: Any) -> None:
    (request,) = read_trace(path)
    data = bytearray(request.rounds)
    record = np.frombuffer(memoryview(data)[:96], dtype=RECORD)
    record[name] = value
    with pytest.raises(TraceError, match="out of range"):
        Recorded.of(with_rounds(request, bytes(data)))


def test_records_full_of_noise_are_errors_or_are_replayed(path: Path) -> None:
    """Never a crash: what is taken apart without bounds is checked first."""
    (request,) = read_trace(path)
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(400):
        data = np.frombuffer(request.rounds, dtype=np.uint8).copy()
        data[rng.integers(0, len(data), 2)] = rng.integers(0, 256, 2)
        try:
            ExactReplay().run(Recorded.of(with_rounds(request, data.tobytes())))
        except TraceError:
            refused += 1
    assert 20 < refused < 400


@pytest.mark.parametrize("part", ["prompt", "reply", "stop_tokens"])
def test_records_without_their_texts(path: Path, part: str) -> None:
    (request,) = read_trace(path)
    empty = {name: getattr(request, name) for name in TracedRequest.__slots__} | {part: np.empty(0, np.int32)}
    try:
        recorded = Recorded.of(TracedRequest(**empty))
    except TraceError:
        return
    ExactReplay().run(recorded)
