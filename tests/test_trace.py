"""Traces (adaspark/trace.py, csrc/engine/session_trace.cpp) and their replay: the live decisions, bit for bit."""

from __future__ import annotations

import logging
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tm
from cli_tools import Cli
from conftest import ModelFiles

from adaspark import Engine
from adaspark.errors import TraceError
from adaspark.replay import FITTED, LAST, RECORD, Check, ExactReplay, Recorded
from adaspark.store import Store
from adaspark.trace import TracedRequest, read_trace

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
QUIET: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "store": None}
PROMPT = "the thin end of it, the thin end of it"
LEARNED = ["adaspark", "adaspark:8", "cost", "adaspark:no-text", "adaspark:no-acceptance", "adaspark:8:no-gating"]
FIXED = ["plain", "chain:1", "chain:3", "chain:7", "tree:2", "tree:16", "tree:64"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rounds.trace"


def open_engine(models: ModelFiles, trace: Path, **options: Any) -> Engine:
    pair = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    return Engine(*pair, trace=trace, **{**QUIET, **options})


def checks(requests: list[TracedRequest]) -> list[Check]:
    exact = ExactReplay()
    return [exact.run(Recorded.of(request)) for request in requests]


@pytest.mark.parametrize("arm", [*LEARNED, *FIXED])
def test_a_replay_decides_as_the_session_did(models: ModelFiles, path: Path, arm: str) -> None:
    with open_engine(models, path, arm=arm) as engine:
        prompts = [PROMPT, "a quite different text", PROMPT * 3]
        results = [
            engine.generate(prompt, n_predict=n, ignore_eos=True).read()
            for prompt, n in zip(prompts, (64, 1, 90), strict=True)
        ]
        results.append(engine.generate(PROMPT, n_predict=60, temperature=0.9, seed=3).read())
    requests = read_trace(path)
    assert [tuple(request.reply) for request in requests] == [result.token_ids for result in results]
    for request, result in zip(requests, results, strict=True):
        record = Recorded.of(request).record
        assert (request.arm, request.full, len(record)) == (arm, False, result.speculation.rounds)
        assert record["rows"].sum() == result.speculation.rows
        assert record["path"].sum() - len(record) == result.speculation.accepted
    for check in checks(requests):
        assert check.differs_at is None
        assert check.state_matches is (
            None if arm in FIXED or (check.rounds == 0 and check.state_matches is None) else True
        )


def test_a_trace_goes_on_where_the_store_did(models: ModelFiles, path: Path, tmp_path: Path) -> None:
    """Stop and resume equals never stopping: two processes and a store between them end in the state of one replay."""
    for n in (2, 3):
        with open_engine(models, path, store=tmp_path / "learned.sqlite") as engine:
            for _ in range(n):
                engine.generate(PROMPT, n_predict=64, ignore_eos=True).read()
    requests = read_trace(path)
    assert [request.header["continues"] for request in requests] == [False, True, False, True, True]
    assert [bool(request.state) for request in requests] == [False, False, True, False, False]
    assert all(check.exact and check.state_matches for check in checks(requests))
    # The same rounds as one process would have seen them: no state taken from the trace, one scheduler throughout.
    for request in requests[1:]:
        request.header.update(continues=True, stream=requests[0].header["stream"])
    exact = ExactReplay()
    assert all(exact.run(Recorded.of(request)).state_matches for request in requests)
    with Store(tmp_path / "learned.sqlite") as store:
        (row,) = store.rows()
    (scheduler,) = exact.learned()
    assert scheduler.save() == row.state


def test_records_say_what_the_statistics_say(models: ModelFiles, path: Path) -> None:
    with open_engine(models, path) as engine:
        for _ in range(3):
            result = engine.generate(PROMPT, n_predict=120, ignore_eos=True, arm="adaspark:8").read()
    recorded = Recorded.of(read_trace(path)[-1])
    record, drafts, learning = recorded.record, result.speculation, result.speculation.learning
    assert learning is not None
    assert [int((record["kind"] == kind).sum()) for kind in range(3)] == [
        drafts.rounds_plain, drafts.rounds_text, drafts.rounds_draft,
    ]  # fmt: skip
    assert np.flatnonzero(record["flags"] & LAST).tolist() == [len(record) - 1]
    assert record["labelled"].sum() == learning.labelled
    assert record["fitted_loss"].sum() / learning.labelled == pytest.approx(learning.fitted_log_loss, rel=1e-4)
    assert record["head_loss"].sum() / learning.labelled == pytest.approx(learning.head_log_loss, rel=1e-4)
    assert record["sum_q"][:-1].sum() == pytest.approx(learning.expected_accepted, rel=1e-4)
    assert (record["context"][1:] == record["context"][:-1] + record["path"][:-1]).all()
    assert (record["left"] >= record["room"]).all()
    assert record["verify_us"].sum() == pytest.approx(result.timings.verify_ms * 1e3)
    assert (record["draft_us"] >= record["inject_us"] + record["drafter_us"]).all()
    assert (record["commit_us"] >= record["walk_us"] * 0.999).all()
    assert ((record["flags"] & FITTED) != 0).any()
    tokens = recorded.rounds.tree_tokens[recorded.rounds.tree_at[:-1]]
    anchors = record["context"] - len(recorded.request.prompt)
    assert (tokens == recorded.request.reply[anchors]).all(), "row 0 is the anchor"
    assert (record["next_token"][:-1] == tokens[1:]).all()


def test_a_full_trace_has_a_block_at_every_position(models: ModelFiles, path: Path) -> None:
    with open_engine(models, path) as engine:
        plain = engine.generate(PROMPT, n_predict=64, ignore_eos=True, arm="plain").read()
        result = engine.generate(PROMPT, n_predict=64, ignore_eos=True, full_trace=True).read()
        assert (result.token_ids, result.speculation.drafted, result.arm) == (plain.token_ids, 0, "plain")
        chain = engine.generate(PROMPT, n_predict=64, ignore_eos=True, arm="chain:7").read()
    _, full, live = read_trace(path)
    assert full.full
    recorded, chained = Recorded.of(full), Recorded.of(live)
    assert recorded.record["positions"].tolist() == [7] * 62 + [0], "after the last round nothing may follow"
    assert recorded.record["context"].tolist() == list(range(len(full.prompt), len(full.prompt) + 63))
    # Where the live chain drafted, the full trace has the very block.
    same = 0
    for i, context in enumerate(chained.record["context"]):
        if chained.record["positions"][i] == 7:
            there = recorded.rounds.block(int(context) - len(full.prompt))
            for ours, theirs in zip(chained.rounds.block(i), there, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            same += 1
    assert same > chain.speculation.rounds // 2
    assert all(check.exact for check in checks([full, live]))


def test_a_file_that_is_no_trace_is_left_alone(models: ModelFiles, tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(TraceError, match="not a trace"):
        open_engine(models, other)
    assert other.read_text() == "mine"


def test_what_a_full_trace_needs(models: ModelFiles, path: Path) -> None:
    pair = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    with Engine(*pair, **QUIET) as engine, pytest.raises(ValueError, match="trace file and a drafter"):
        engine.generate(PROMPT, full_trace=True)
    with Engine(models.target_path(SPEC), None, trace=path, **QUIET) as engine:
        with pytest.raises(ValueError, match="trace file and a drafter"):
            engine.generate(PROMPT, full_trace=True)
        with pytest.raises(ValueError, match="plain decoding"):
            engine.generate(PROMPT, full_trace=True, arm="adaspark")


def test_cancelled_replies_replay_too(models: ModelFiles, path: Path) -> None:
    with open_engine(models, path) as engine:
        for steps in (0, 1, 5, 5):
            generation = engine.generate(PROMPT, ignore_eos=True)
            for _ in range(steps):
                next(generation)
            generation.close()
        engine.generate(PROMPT, n_predict=40, ignore_eos=True).read()
    requests = read_trace(path)
    assert [request.header["finish_reason"] for request in requests] == ["cancel"] * 4 + ["length"]
    assert all(check.exact for check in checks(requests))


# ---- a replay that does not agree says so


@pytest.fixture
def traced(models: ModelFiles, path: Path) -> TracedRequest:
    with open_engine(models, path) as engine:
        for _ in range(2):
            engine.generate(PROMPT, n_predict=96, ignore_eos=True, arm="adaspark:8:no-gating").read()
    exact = read_trace(path)
    assert all(check.exact for check in checks(exact))
    return exact[0]


def changed(request: TracedRequest, **fields: Any) -> TracedRequest:
    return TracedRequest(**{name: getattr(request, name) for name in TracedRequest.__slots__} | fields)


def at_round(request: TracedRequest, number: int, name: str, value: Any) -> bytes:
    """The records with one field of one of them changed."""
    data = bytearray(request.rounds)
    start = 0
    for _ in range(number):
        start += struct.unpack_from("<I", data, start)[0]
    record = np.frombuffer(memoryview(data)[start : start + 96], dtype=RECORD)
    record[name] = value
    return bytes(data)


@pytest.mark.parametrize(("name", "value"), [("next_token", 3), ("verify_us", 1.0), ("flags", LAST)])
def test_a_changed_outcome_ends_in_another_state(traced: TracedRequest, name: str, value: Any) -> None:
    (check,) = checks([changed(traced, rounds=at_round(traced, 2, name, value))])
    assert not check.exact


def test_a_changed_tree_is_found_at_its_round(traced: TracedRequest) -> None:
    (check,) = checks([changed(traced, rounds=at_round(traced, 4, "room", 3))])
    assert check.differs_at == 4


def test_another_prompt_is_found(traced: TracedRequest) -> None:
    prompt = traced.reply[: len(traced.prompt)]  # from here on the text proposes what it never proposed
    (check,) = checks([changed(traced, prompt=prompt)])
    assert not check.exact


def test_a_trace_without_its_beginning_is_refused(path: Path, traced: TracedRequest) -> None:
    assert not traced.header["continues"]
    with pytest.raises(TraceError, match="goes on from"):
        checks(read_trace(path)[1:])


# ---- files


def test_a_cut_off_end_loses_one_request(path: Path, traced: TracedRequest, caplog: pytest.LogCaptureFixture) -> None:
    whole = path.read_bytes()
    first = len(whole)
    for size in range(len(whole) - 1, 0, -max(1, len(whole) // 40)):
        caplog.clear()
        path.write_bytes(whole[:size])
        requests = read_trace(path)
        assert len(requests) in (0, 1)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        if len(requests) == 1:
            np.testing.assert_array_equal(requests[0].reply, traced.reply)
            first = min(first, size)
    assert 0 < first < len(whole)


def test_a_flipped_bit_is_never_replayed(path: Path, traced: TracedRequest) -> None:
    whole = path.read_bytes()
    assert len(traced.reply) == 96
    for at in range(0, len(whole), 997):
        data = bytearray(whole)
        data[at] ^= 0x10
        path.write_bytes(data)
        try:
            requests = read_trace(path)
        except TraceError:
            continue
        assert len(requests) < 2, "a frame whose length was damaged is cut off"


def test_damaged_records_are_errors(traced: TracedRequest) -> None:
    for rounds in (
        traced.rounds[:-8],
        traced.rounds[:50],
        at_round(traced, 1, "bytes", 8),
        at_round(traced, 1, "path", 70),
    ):
        with pytest.raises(TraceError, match="damaged"):
            Recorded.of(changed(traced, rounds=rounds))


def test_files_that_are_no_traces(path: Path, traced: TracedRequest, tmp_path: Path) -> None:
    assert traced.arm
    whole = path.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(b"not a trace at all")
    with pytest.raises(TraceError, match="not a trace"):
        read_trace(other)
    other.write_bytes(whole.replace(b"ADTR" + struct.pack("<I", 1), b"ADTR" + struct.pack("<I", 99)))
    with pytest.raises(TraceError, match="version 99"):
        read_trace(other)
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "gone")
    other.write_bytes(whole + whole)
    assert len(read_trace(other)) == 4, "traces one after the other are a trace"


def test_a_trace_that_cannot_be_written_costs_one_line_and_no_reply(
    models: ModelFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_engine(models, tmp_path) as engine:  # a folder
        for _ in range(2):
            assert engine.generate(PROMPT, n_predict=8, ignore_eos=True).read().completion_tokens == 8
    assert len([record for record in caplog.records if "cannot be written" in record.getMessage()]) == 1


def test_processes_append_to_one_file(models: ModelFiles, path: Path) -> None:
    command = [
        *(sys.executable, "-m", "adaspark", "-m", str(models.target_path(SPEC))),
        *("-md", str(models.drafter_path(SPEC, DRAFTER)), "-t", "1", "-n", "48", "--ignore-eos", "--json"),
        *("--store", "none", "--trace", str(path), PROMPT),
    ]
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    requests = read_trace(path)
    assert len({request.header["stream"] for request in requests}) == 3
    assert all(check.exact for check in checks(requests))


def test_flags(cli: Cli, pair: tuple[str, ...], path: Path) -> None:
    n = ("-n", "24", "--ignore-eos", "--store", "none")
    assert cli(*pair, *n, "--trace", path, "hi").code == 0
    assert cli(*pair, *n, "--trace", path, "--full-trace", "hi").code == 0
    assert cli("chat", *pair, *n, "--trace", path, stdin="one\ntwo\n").code == 0
    requests = read_trace(path)
    assert [request.full for request in requests] == [False, True, False, False]
    assert requests[0].reply.tolist() == requests[1].reply.tolist()
    run = cli(*pair, *n, "--full-trace", "hi")
    assert (run.code, "needs a trace file" in run.err) == (2, True)
