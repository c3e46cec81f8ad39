"""bench/bound.py: its bound is that of going through every sequence of rounds, and no replayed arm is faster."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tm
from conftest import ModelFiles
from core.oracle import Node, Text, merge

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import bound

from adaspark import Engine
from adaspark.benchmark.stats import Interval
from adaspark.config import MAX_ROWS, Arm
from adaspark.costs import GRID, CostTable
from adaspark.replay import RECORD, Recorded, decode_under
from adaspark.trace import TracedRequest, read_trace

TOP_K = 8
Block = list[list[int]]


def hand_made(
    prompt: list[int], reply: list[int], blocks: list[Block], max_rows: int = MAX_ROWS, stops: tuple[int, ...] = ()
) -> Recorded:
    """A full trace of a reply: the drafter's block at each position, [] where it did not run."""
    records = b""
    for at, block in enumerate(blocks):
        size = (RECORD.itemsize + len(block) * (TOP_K * 8 + 4) + 8 + 7) // 8 * 8
        head = np.zeros(1, RECORD)
        for name, value in {
            "bytes": size, "context": len(prompt) + at, "left": 1, "room": 1, "positions": len(block),
            "top_k": TOP_K if block else 0, "rows": 1, "path": 1,
        }.items():  # fmt: skip
            head[name] = value
        logits = np.tile(-np.arange(TOP_K, dtype=np.float32), len(block))
        parts = (
            head, np.array(block, np.int32), logits, np.full(len(block), 0.5, np.float32), np.int32(reply[at]),
            np.int16(-1), np.int8(-1), np.uint8(0),
        )  # fmt: skip
        records += b"".join(part.tobytes() for part in parts).ljust(size, b"\0")
    positions = max(map(len, blocks), default=0)
    header = {"arm": "plain", "full": True, "identity": {"block": positions, "max_rows": max_rows}}
    ids = (np.array(tokens, np.int32) for tokens in (prompt, reply, stops))
    return Recorded.of(TracedRequest(header, *ids, b"", records))


def costs_of(verify: np.ndarray, draft: float, commit: tuple[float, float] = (0.0, 0.0)) -> CostTable:
    """``verify`` (contexts, MAX_ROWS + 1)."""
    return CostTable(verify, np.full(len(verify), draft), np.array(commit), "test")


def flat(per_row: float, draft: float) -> CostTable:
    return costs_of(np.tile(1000.0 + per_row * np.arange(MAX_ROWS + 1), (100, 1)), draft)


def longest(nodes: list[Node], ahead: list[int], stops: set[int], parent: int = -1) -> int:
    """Rows of the longest path of nodes that is what comes next."""
    if not ahead or ahead[0] in stops:
        return 0
    below = (i for i, node in enumerate(nodes) if node.parent == parent and node.token == ahead[0])
    return max((1 + longest(nodes, ahead[1:], stops, i) for i in below), default=0)


def every_way(recorded: Recorded, blocks: list[Block], costs: CostTable, at: int = 0) -> float:
    """The least time of all sequences of rounds from a position on, one after the other."""
    prompt, reply = recorded.request.prompt.tolist(), recorded.request.reply.tolist()
    stops = set(recorded.request.stop_tokens.tolist())
    if at == len(reply) - 1:
        return 0.0
    room = min(recorded.max_rows, len(reply) - 1 - at)
    ahead = reply[at + 1 : at + room]
    text = Text()
    for token in prompt + reply[:at]:
        text.append(token)
    drafts = [(longest(merge(text, reply[at], [], stops, room - 1), ahead, stops), 0.0, 0)]
    if blocks[at]:
        nodes = merge(text, reply[at], blocks[at], stops, room - 1)
        drafts.append((longest(nodes, ahead, stops), float(costs.draft[0]), 1))
    verify = costs.verify[(len(prompt) + at) // GRID]
    return min(
        draft_us + min(verify[n + 1 : recorded.max_rows + 1]) + costs.commit[kind]
        + every_way(recorded, blocks, costs, at + n + 1)
        for most, draft_us, kind in drafts
        for n in range(most + 1)
    )  # fmt: skip


def bound_of(recorded: Recorded, costs: CostTable) -> bound.Bound:
    return bound.bound_of(bound.reach_of(recorded), len(recorded.request.prompt), costs, recorded.max_rows)


def lanes(token: int, sibling: int = 90) -> list[int]:
    return [token, sibling, *range(91, 97)]


PROMPT = [1, 2, 3, 4, 5, 6, 7, 50, 51]
REPLY = [1, 2, 3, 4, 5, 6, 30, 31, 32]
BLOCKS = [
    [lanes(80), lanes(81)], [lanes(80), lanes(81)], [lanes(80), lanes(81)], [lanes(80), lanes(81)],
    [lanes(5), lanes(6)], [lanes(30), lanes(99, 31)], [lanes(80, 31), lanes(32)], [lanes(80), lanes(81)],
]  # fmt: skip


def test_how_far_the_candidates_reach_is_told_for_every_position() -> None:
    # The text goes on after 1 2 3; the drafter knows 30 at 6, and 31 as a sibling, below which its picks do not hang.
    reach = bound.reach_of(hand_made(PROMPT, REPLY, BLOCKS))
    assert reach.text.tolist() == [0, 0, 3, 2, 1, 0, 0, 0]
    assert reach.draft.tolist() == [0, 0, 3, 2, 1, 2, 1, 0]


@pytest.mark.parametrize(
    ("two", "three", "draft", "us", "rounds"),
    [
        (1000.0, 1000.0, 100.0, 4100.0, (2, 1, 1)),  # after 1: 2 | 3 | 4 5 6 30 | 31 32, the last with the drafter
        (1000.0, 1000.0, 2500.0, 5000.0, (4, 1, 0)),  # two tokens are not worth a slow draft
        (1500.0, 9000.0, 100.0, 6600.0, (2, 2, 1)),  # of what the text knows, a row at a time
        (9000.0, 9000.0, 100.0, 8000.0, (8, 0, 0)),
    ],
)
def test_the_fastest_way_through_a_small_reply(
    two: float, three: float, draft: float, us: float, rounds: tuple[int, int, int]
) -> None:
    """One row takes 1000, two and more of them what is said."""
    verify = np.array([[0.0, 1000.0, two, *[three] * (MAX_ROWS - 2)]])
    recorded, costs = hand_made(PROMPT, REPLY, BLOCKS), costs_of(verify, draft)
    got = bound_of(recorded, costs)
    assert got.rounds == rounds
    assert got.total_us == pytest.approx(us)
    assert every_way(recorded, BLOCKS, costs) == pytest.approx(us)


@pytest.mark.parametrize("seed", range(25))
def test_the_bound_is_that_of_trying_every_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = 4 + seed % 5
    text = rng.integers(0, words, 40).tolist()
    prompt, reply = text[:30], text[30:]
    if seed % 2:
        prompt[5:15] = reply
    blocks: list[Block] = []
    for at in range(len(reply) - 1):
        block = []
        for i in range(3):
            row = rng.permutation(20)[:TOP_K].tolist()
            if at + 1 + i < len(reply) and rng.random() < 0.8:  # the drafter knows what comes, in some lane
                right = reply[at + 1 + i]
                row = [token for token in row if token != right][: TOP_K - 1]
                row.insert(0 if rng.random() < 0.7 else int(rng.integers(1, TOP_K)), right)
            block.append(row)
        blocks.append(block if rng.random() < 0.9 else [])
    stops = (int(rng.integers(0, words)),) if seed % 3 == 0 else ()
    recorded = hand_made(prompt, reply, blocks, 4 if seed % 4 == 0 else MAX_ROWS, stops)
    verify = np.cumsum(rng.exponential(300.0, (3, MAX_ROWS + 1)), axis=1) + 1000.0
    if seed % 5 == 0:  # some wide verifies take less than narrower ones
        verify *= rng.uniform(0.5, 1.0, verify.shape)
    costs = costs_of(verify, float(rng.choice([50.0, 500.0])), (10.0, 40.0))
    assert bound_of(recorded, costs).total_us == pytest.approx(every_way(recorded, blocks, costs))


@pytest.fixture(scope="module")
def trace(models: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "full.trace"
    spec, drafter = tm.DENSE, tm.DrafterSpec()
    pair = models.target_path(spec), models.drafter_path(spec, drafter)
    with Engine(*pair, trace=path, n_threads=1, cache_type_k="f32", cache_type_v="f32", store=None) as engine:
        for prompt in ("the thin end of it, the thin end of it", "it is the end"):
            engine.generate(prompt, n_predict=150, ignore_eos=True, full_trace=True).read()
    return path


def arms() -> list[Arm]:
    names = ("plain", "chain:3", "chain:7", "tree:4", "tree:16", "cost", "adaspark", "adaspark:8", "adaspark:64")
    return [Arm.parse(name) for name in (*names, "adaspark:no-text", "adaspark:no-gating")]


@pytest.mark.parametrize("arm", arms(), ids=str)
def test_no_arm_is_faster_than_the_bound(trace: Path, arm: Arm) -> None:
    requests = [Recorded.of(request) for request in read_trace(trace)]
    requests += [replace(r, request=replace(r.request, reply=r.request.reply[:40].copy())) for r in requests]
    stairs = flat(30.0, 300.0)
    stairs.verify[:, 9:] += 1500.0
    stairs.verify[1:, 16] = 800.0  # and one that takes less than one row
    for costs in (flat(0.0, 0.0), flat(100.0, 200.0), flat(400.0, 5000.0), stairs):
        replay = decode_under(arm, requests, costs)
        for recorded, columns in zip(requests, replay.columns, strict=True):
            assert bound_of(recorded, costs).total_us <= float(columns[:, 4].sum()) * (1 + 1e-9)


def test_the_program_tells_replies_and_means(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    costs, out = tmp_path / "costs.json", tmp_path / "bound.jsonl"
    lines = [{"rows": 1, "us": 1000}, {"rows": 8, "us": 2000}]
    costs.write_text(json.dumps({"verify": lines, "draft": {"us": 300}}), encoding="utf-8")
    command = ["bound.py", str(trace), "--costs", str(costs), "--cut-loops", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    bound.main()
    told: list[dict[str, Any]] = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    replies = [line for line in told if line["kind"] == "reply"]
    assert [(line["texts"], line["number"]) for line in replies] == [("whole", 0), ("whole", 1), ("cut", 0), ("cut", 1)]
    for line in replies:
        assert line["bound_ratio"] >= max(line["adaspark_ratio"], 1.0)
        assert line["plain_us"] == pytest.approx(1000.0 * line["tokens"])
        assert line["bound_ratio"] == pytest.approx(line["plain_us"] / sum(line["bound"]["us"]))
    (every,) = (line for line in told if line["kind"] == "pooled" and line["name"] == "all")
    whole = [line["bound_ratio"] for line in replies if line["texts"] == "whole"]
    assert every["bound"]["value"] == pytest.approx(float(np.exp(np.mean(np.log(whole)))))
    assert sum(every["shares"].values()) == pytest.approx(1.0)
    assert "bound and adaspark at costs.json" in capsys.readouterr().out
    (_, rows, _) = bound.page(out)
    assert str(Interval(**every["bound"])) in rows.splitlines()[-1]


@pytest.mark.parametrize("costs", ["{bad", "{}", '{"verify": [], "draft": {"us": 1}}'])
def test_what_is_no_table_of_costs_is_one_line(
    costs: str, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, out = tmp_path / "costs.json", tmp_path / "kept.jsonl"
    table.write_text(costs, encoding="utf-8")
    out.write_text("kept", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["bound.py", str(trace), "--costs", str(table), "--out", str(out)])
    with pytest.raises(SystemExit) as stopped:
        bound.main()
    assert stopped.value.code == 2
    assert "costs.json is no table of costs" in capsys.readouterr().err.splitlines()[-1]
    assert out.read_text(encoding="utf-8") == "kept"
