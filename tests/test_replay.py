"""Replaying a text under other plans (adaspark/replay.py, _replay.pyx), held against plain Python, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tm
from conftest import ModelFiles
from core.driver import make_scheduler, random_block, run_round

from adaspark import Engine, _core
from adaspark.config import MAX_ROWS, Arm
from adaspark.costs import GRID, CostTable, learned_table, read_costs, sampled_table, widths_between
from adaspark.errors import TraceError
from adaspark.replay import ArmReplay, Recorded, cost_table, decode_under
from adaspark.trace import read_trace

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
QUIET: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "store": None}
PROMPT = "the thin end of it, the thin end of it"


@pytest.fixture(scope="module")
def trace(models: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two full requests, then live ones."""
    path = tmp_path_factory.mktemp("traces") / "both.trace"
    pair = models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER)
    with Engine(*pair, trace=path, **QUIET) as engine:
        for prompt in (PROMPT, PROMPT[::-1]):
            engine.generate(prompt, n_predict=150, ignore_eos=True, full_trace=True).read()
        for arm in ("chain:7", "tree:16", "adaspark", "adaspark"):
            engine.generate(PROMPT, n_predict=150, ignore_eos=True, arm=arm).read()
    return path


@pytest.fixture(scope="module")
def requests(trace: Path) -> list[Recorded]:
    return [Recorded.of(request) for request in read_trace(trace)]


def flat(verify: float = 1000.0, per_row: float = 0.0, draft: float = 500.0, commit: float = 10.0) -> CostTable:
    contexts = 100
    rows = verify + per_row * np.arange(MAX_ROWS + 1)
    return CostTable(np.tile(rows, (contexts, 1)), np.full(contexts, draft), np.array([commit, commit]), "test")


def plain_walk(recorded: Recorded, arm: Arm) -> list[tuple[int, int, int]]:
    """(position, rows, accepted) of a fixed arm's rounds, the long way."""
    text = recorded.request.reply.tolist()
    stops = set(recorded.request.stop_tokens.tolist())
    out, at = [], 0
    while at < len(text) - 1:
        left = len(text) - 1 - at
        tree = [(text[at], -1)]
        if left > 1 and arm.n > 0:
            tokens, logits, confidence = recorded.rounds.block(at)
            ids, values = tokens.reshape(len(confidence), -1), logits.reshape(len(confidence), -1).astype(np.float64)
            depth = min(arm.n if arm.kind == "chain" else arm.n - 1, left - 1, len(confidence))
            share = np.exp(values - values[:, :1])
            share /= share.sum(axis=1, keepdims=True)
            nodes = []  # (Q, candidate, token, candidate above)
            above = 1.0
            for i in range(depth):
                for k in range(ids.shape[1]):
                    q = float(confidence[i]) if k == 0 else float(share[i, k])
                    if arm.kind == "chain":
                        q = 1.0 if k == 0 else 0.0
                    if int(ids[i, k]) in stops or ids[i, k] < 0:
                        q = 0.0
                    nodes.append((above * q, i * ids.shape[1] + k, int(ids[i, k]), (i - 1) * ids.shape[1]))
                above = nodes[i * ids.shape[1]][0]
            kept = sorted((node for node in nodes if node[0] > 0), key=lambda node: (-node[0], node[1]))
            rows = depth if arm.kind == "chain" else arm.n - 1
            tree += [(token, above if above >= 0 else -2) for _, _, token, above in kept[:rows]]
            numbers = [-2] + [candidate for _, candidate, _, _ in kept[:rows]]
        else:
            numbers = [-2]
        accepted, node = 0, -2
        while True:
            wanted = text[at + accepted + 1]
            below = [
                number
                for number, (token, parent) in zip(numbers[1:], tree[1:], strict=True)
                if parent == node and token == wanted
            ]
            if not below:
                break
            node = below[0]
            accepted += 1
        out.append((at, len(tree), accepted))
        at += accepted + 1
    return out


@pytest.mark.parametrize("arm", ["plain", "chain:1", "chain:3", "chain:7", "tree:4", "tree:16"])
def test_fixed_arms_walk_as_plain_python_does(requests: list[Recorded], arm: str) -> None:
    for recorded in requests[:2]:
        got = decode_under(Arm.parse(arm), [recorded], flat())
        (columns,) = got.columns
        assert [tuple(map(int, row)) for row in columns[:, [0, 2, 3]]] == plain_walk(recorded, Arm.parse(arm))
        assert columns[:, 6].sum() == 0, "a full trace has every block"


@pytest.mark.parametrize("arm", ["adaspark", "cost", "adaspark:16", "adaspark:no-gating", "chain:3", "plain"])
def test_a_replay_covers_the_text_and_adds_up(requests: list[Recorded], arm: str) -> None:
    costs = flat(1000.0, 7.0)
    got = decode_under(Arm.parse(arm), requests[:2], costs)
    assert got.tokens == sum(len(recorded.request.reply) - 1 for recorded in requests[:2])
    for columns, recorded in zip(got.columns, requests, strict=False):
        positions, kinds, rows, accepted, us = columns[:, :5].T
        assert positions[0] == 0
        assert (positions[1:] == positions[:-1] + accepted[:-1] + 1).all()
        assert positions[-1] + accepted[-1] + 1 == len(recorded.request.reply) - 1
        drafted = kinds == 2
        np.testing.assert_allclose(us, 1000.0 + 7.0 * rows + 500.0 * drafted + 10.0)
    told = got.to_dict()
    assert told["tokens_per_second"] == pytest.approx(got.tokens / got.time_us * 1e6)
    assert sum(told["rounds_by_kind"].values()) == told["rounds"]
    assert told["covered"] == 1.0
    assert told["tokens"] == told["rounds"] + told["accepted"]


def test_a_scheduler_that_is_handed_in_decodes_and_learns(requests: list[Recorded]) -> None:
    arm, texts = Arm.parse("adaspark"), requests[:2]
    mine = texts[0].scheduler(arm)
    got, own = decode_under(arm, texts, flat(), mine), decode_under(arm, texts, flat())
    np.testing.assert_array_equal(np.concatenate(got.columns), np.concatenate(own.columns))
    learned = mine.save()
    assert learned != texts[0].scheduler(arm).save()
    decode_under(arm, texts, flat(), mine)  # goes on from there
    assert mine.save() != learned


def test_a_live_trace_lacks_blocks_and_says_so(requests: list[Recorded]) -> None:
    got = decode_under(Arm.parse("chain:2"), requests[2:3], flat())  # recorded under chain:7, which accepts more
    assert 0.2 < got.to_dict()["covered"] < 1.0
    own = decode_under(Arm.parse("chain:7"), requests[2:3], flat())
    assert own.to_dict()["covered"] > 0.8  # but for the end, where the live arm drafts less than a whole block
    live = requests[2].record
    assert [int(n) for n in own.columns[0][:10, 2]] == live["rows"][:10].tolist()


def test_a_scheduler_finds_what_pays(requests: list[Recorded]) -> None:
    """Against fixed arms on known laws: free rows and a free drafter, or a drafter that costs more than it brings."""
    both = requests[:2] * 4
    rate = {
        (name, arm): decode_under(Arm.parse(arm), both, costs).tokens_per_second
        for name, costs in {"free": flat(1000.0, 0.0, 10.0), "dear": flat(1000.0, 100.0, 50_000.0)}.items()
        for arm in ("plain", "chain:7", "tree:16", "adaspark")
    }
    assert rate["free", "adaspark"] > 1.5 * rate["free", "plain"]
    assert rate["free", "adaspark"] > 0.9 * max(rate["free", "chain:7"], rate["free", "tree:16"])
    assert rate["dear", "adaspark"] > 0.8 * rate["dear", "plain"]
    assert rate["dear", "chain:7"] < 0.5 * rate["dear", "plain"]


def test_replays_repeat(requests: list[Recorded]) -> None:
    one, two = (decode_under(Arm.parse("adaspark"), requests[:2], flat(900.0, 20.0)) for _ in range(2))
    for a, b in zip(one.columns, two.columns, strict=True):
        np.testing.assert_array_equal(a, b)


def test_nothing_to_replay_is_nothing(requests: list[Recorded]) -> None:
    assert decode_under(Arm.parse("adaspark"), [], flat()).tokens_per_second == 0.0
    assert ArmReplay("plain").to_dict()["rounds"] == 0
    assert len(requests) == 6


# ---- costs


def test_widths_between_and_beyond() -> None:
    us = widths_between([1, 4, 8], [100.0, 130.0, 230.0])
    assert us[[1, 4, 8]].tolist() == [100.0, 130.0, 230.0]
    assert us[[2, 3, 6, 12]].tolist() == pytest.approx([110.0, 120.0, 180.0, 330.0])
    assert us[64] == pytest.approx(230.0 + 56 * 25.0)
    assert (np.diff(widths_between([1, 8], [100.0, 90.0]))[8:] == 0).all(), "never cheaper without end"


def test_the_learned_law_is_the_schedulers(requests: list[Recorded]) -> None:
    scheduler = make_scheduler()
    rng = np.random.default_rng(11)
    scheduler.begin_request(rng.integers(0, 9, 30).astype(np.int32), 1, 4000)
    for _ in range(120):  # times of this machine might rule all widths but one out
        run_round(scheduler, rng, random_block(rng, 7, 9))
    scheduler.end_request()
    table = learned_table(scheduler, 1000)
    assert table is not None
    for context in (0, 128, 960):
        prices = scheduler.prices_at(context)
        for rows, us in zip(prices["rows"], prices["us"], strict=True):
            if us is not None:
                assert table.verify[context // GRID, rows] == pytest.approx(us)
    chosen = cost_table(requests, [scheduler])
    assert chosen.source == "learned"
    assert (chosen.draft > 0).all()
    assert learned_table(_core.Scheduler(_core.SchedulerConfig(), np.empty(0, np.int32)), 1000) is None


def test_a_trace_without_a_scheduler_has_its_samples(requests: list[Recorded]) -> None:
    table = cost_table(requests[:4], [])  # full, chain:7 and tree:16
    assert table.source == "sampled"
    record = requests[2].record
    low, high = np.quantile(record["verify_us"][record["rows"] == 8], [0.0, 0.5])
    assert 0.3 * low <= table.verify[0, 8] <= high
    with pytest.raises(TraceError, match="one width only"):
        cost_table(requests[:2], [])


def test_samples_are_priced_low() -> None:
    rng = np.random.default_rng(3)
    rows = rng.choice(np.array([1, 8], np.int32), 400)
    noise = rng.exponential(0.2, 400)
    verify = np.where(rows == 1, 1000.0, 2000.0) * (1.0 + noise)
    drafted = rows == 8
    table = sampled_table(rows, verify, np.where(drafted, 300.0, 0.0), np.full(400, 20.0), drafted, 500)
    assert table is not None
    assert 1000.0 <= table.verify[0, 1] <= 1080.0
    assert 2000.0 <= table.verify[0, 8] <= 2160.0
    assert table.draft[0] == pytest.approx(300.0)
    assert table.commit.tolist() == pytest.approx([20.0, 20.0])


def test_a_table_from_a_file(tmp_path: Path) -> None:
    """The paper's Table 1 in microseconds: LFM2.5-2.6B at 8, 16 and 32 rows."""
    path = tmp_path / "costs.json"
    data: dict[str, Any] = {
        "draft": {"us": 5000, "us_per_token": 0.1},
        "commit_us": [5, 50],
        "verify": [
            {"rows": 16, "us": 25800, "us_per_token": 0.20},
            {"rows": 8, "us": 23900, "us_per_token": 0.13},
            {"rows": 32, "us": 43700, "us_per_token": 0.43},
        ],
    }
    path.write_text(json.dumps(data))
    table = read_costs(path, 1600)
    assert table.verify[1600 // GRID, 8] == pytest.approx(23900 + 208)
    assert table.verify[0, 24] == pytest.approx((25800 + 43700) / 2)
    assert table.verify[0, 1] == pytest.approx(23900)
    assert table.draft[640 // GRID] == pytest.approx(5064)
    assert table.commit.tolist() == [5.0, 50.0]
    for wrong in (
        {},
        {**data, "verify": data["verify"][:1]},
        {**data, "draft": 3},
        {**data, "commit_us": [1]},
        {**data, "commit_us": [1, -1]},
        {**data, "draft": {"us": -3}},
        {**data, "verify": [{"rows": np.inf, "us": 1}, data["verify"][0]]},
        {**data, "verify": [{"rows": 1, "us": np.inf}, data["verify"][0]]},
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(TraceError, match="no table of costs"):
            read_costs(path, 100)
    with pytest.raises(TraceError):
        read_costs(tmp_path / "gone", 100)
