"""``adaspark-run bench`` and adaspark/benchmark: what is measured, what is left out, what is told."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tm
from cli_tools import SMALL, Cli
from conftest import ModelFiles

from adaspark import Engine
from adaspark.benchmark.conversations import Conversation, read_conversations
from adaspark.benchmark.runs import LONG, SHORTEST, Measured, Reply, measure, run, summarise

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests time nothing, so they need no quiet machine."""
    monkeypatch.setattr("adaspark.benchmark.runs.wait_quiet", lambda _: 0.0)


def reply(ms: float, steps: int = 127, **fields: Any) -> Reply:
    return Reply(**{"steps": steps, "decode_ms": ms, "looped": False, "parts": None, "rounds": steps, "rows": steps,
                    "drafted": 0, "accepted": 0, "rounds_by_kind": (0, 0, 0)} | fields)  # fmt: skip


def measured(line: int, plain: list[Reply], other: list[Reply]) -> Measured:
    return Measured(line, "test", 0.0, {"plain": tuple(plain), "chain:3": tuple(other)})


def write(path: Path, conversations: list[list[str]]) -> Path:
    path.write_text(
        "".join(json.dumps({"source": f"s{i}", "turns": turns}) + "\n" for i, turns in enumerate(conversations))
    )
    return path


# ---- summaries


def test_ratios_are_of_conversations_and_their_mean_is_geometric() -> None:
    data = [
        measured(0, [reply(100.0), reply(300.0)], [reply(50.0), reply(50.0)]),  # 4 times as fast over both turns
        measured(1, [reply(100.0)], [reply(100.0)]),
    ]
    got = summarise(data, "chain:3", "plain")
    assert got is not None
    assert got.ratio is not None
    assert got.ratio.value == pytest.approx(2.0)
    assert got.ratio.low <= 2.0 <= got.ratio.high
    assert got.tokens_per_second == pytest.approx(3 * 127 / 200.0 * 1e3), "pooled over all replies"
    assert got.worst == pytest.approx(1.0)
    assert (got.conversations, got.looped, got.short) == (2, 0, 0)
    base = summarise(data, "plain", "plain")
    assert base is not None
    assert base.ratio is not None
    assert (base.ratio.low, base.ratio.value, base.ratio.high) == pytest.approx((1.0, 1.0, 1.0))


def test_loops_and_short_replies_are_counted_and_left_out() -> None:
    data = [
        measured(0, [reply(100.0)], [reply(10.0, looped=True)]),
        measured(1, [reply(100.0, looped=True), reply(100.0)], [reply(10.0, looped=True), reply(50.0)]),
        measured(2, [reply(5.0, SHORTEST - 1)], [reply(1.0, SHORTEST - 1)]),
        measured(3, [reply(100.0, parts=None)], [reply(50.0, parts=7)]),
    ]
    got = summarise(data, "chain:3", "plain")
    assert got is not None
    assert got.ratio is not None
    assert got.ratio.value == pytest.approx(2.0)
    assert (got.conversations, got.looped, got.short, got.other_text) == (2, 2, 1, 1)
    assert summarise(data[:1], "chain:3", "plain") is None
    assert summarise([], "chain:3", "plain") is None


def test_the_worst_ratio_is_of_long_replies() -> None:
    data = [measured(0, [reply(10.0, LONG - 1)], [reply(90.0, LONG - 1)]), measured(1, [reply(100.0)], [reply(125.0)])]
    got = summarise(data, "chain:3", "plain")
    assert got is not None
    assert got.worst == pytest.approx(0.8)


def test_the_interval_is_over_conversations_and_not_over_turns() -> None:
    """Ten equal turns of one conversation say no more than one."""
    rng = np.random.default_rng(4)
    speeds = np.exp(rng.normal(0.0, 0.4, 8))
    one = [measured(i, [reply(100.0)], [reply(100.0 / s)]) for i, s in enumerate(speeds)]
    ten = [measured(i, [reply(100.0)] * 10, [reply(100.0 / s)] * 10) for i, s in enumerate(speeds)]
    a, b = summarise(one, "chain:3", "plain"), summarise(ten, "chain:3", "plain")
    assert a is not None
    assert b is not None
    assert a.ratio is not None
    assert b.ratio is not None
    assert (a.ratio.low, a.ratio.value, a.ratio.high) == pytest.approx((b.ratio.low, b.ratio.value, b.ratio.high))
    assert a.ratio.high / a.ratio.low > 1.2


# ---- files


def test_conversations_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [[f"p{i}", "and"] for i in range(6)])
    assert [c.turns[0] for c in read_conversations(path)] == [f"p{i}" for i in range(6)]
    assert [(c.line, c.source) for c in read_conversations(path, 3)] == [(0, "s0"), (2, "s2"), (4, "s4")]
    for wrong in ("no json", "[]", "{}", '{"turns": []}', '{"turns": 3}'):
        path.write_text('{"turns": ["fine"]}\n' + wrong + "\n")
        with pytest.raises(ValueError, match="line 2"):
            read_conversations(path)


# ---- runs


@pytest.fixture(scope="module")
def engine(models: ModelFiles) -> Any:
    options: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32", "store": None}
    with Engine(models.target_path(SPEC), models.drafter_path(SPEC, DRAFTER), **options) as engine:
        yield engine


ARMS = ["plain", "chain:3", "adaspark"]


def test_every_arm_hears_its_own_replies(engine: Engine) -> None:
    got = measure(engine, Conversation(3, "x", ("one", "two", "three")), ARMS, 40, 2, random.Random(0))
    assert (got.line, got.source, set(got.replies)) == (3, "x", set(ARMS))
    for arm in ARMS:
        assert len(got.replies[arm]) == 2
        for one in got.replies[arm]:
            assert one.steps > 0
            assert one.decode_ms > 0
            assert one.parts is None, "greedy text is the same under every arm"
            assert one.rows == one.rounds + one.drafted
    expected = engine.generate("one", n_predict=40, arm="plain").read()
    chat = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": expected.text},
        {"role": "user", "content": "two"},
    ]
    second = engine.generate(chat, n_predict=40, arm="plain").read()
    assert [r.steps for r in got.replies["plain"]] == [
        result.speculation.rounds + result.speculation.accepted for result in (expected, second)
    ]


def test_arms_take_turns_in_random_order(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str | None] = []
    generate = Engine.generate

    def spy(self: Engine, prompt: Any, **params: Any) -> Any:
        order.append(params["arm"])
        return generate(self, prompt, **params)

    monkeypatch.setattr(Engine, "generate", spy)
    conversations = [Conversation(i, "", ("hi",)) for i in range(12)]
    assert len(run(engine, conversations, ARMS, 4, 1, 5, lambda *_: True)) == 12
    rounds = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(set(each) == set(ARMS) for each in rounds), "one conversation under all arms before the next"
    assert len(set(rounds)) > 2


def test_what_is_stopped_is_left_out(engine: Engine) -> None:
    conversations = [Conversation(i, "", ("hi",)) for i in range(5)]
    seen: list[tuple[int, int]] = []

    def step(done: int, total: int) -> bool:
        seen.append((done, total))
        return done < 3

    assert len(run(engine, conversations, ["plain"], 4, 1, 0, step)) == 2
    assert seen == [(0, 5), (1, 5), (2, 5), (3, 5)]


# ---- the command


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path / "prompts.jsonl", [["one and two", "three"], ["the thin end of it"], ["a b c"]])


def test_the_object_has_every_reply(cli: Cli, pair: tuple[str, ...], prompts: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", [["x"]])
    data = cli("bench", *pair, prompts, other, "--arms", "plain,chain:3,cost", "-n", "48", "--json").json
    assert (data["arms"], data["n_predict"], len(data["files"])) == (["plain", "chain:3", "cost"], 48, 2)
    assert data["kernels"]
    assert data["machine"]["cpus"]
    first = data["files"][0]
    assert (first["file"], first["baseline"]) == (prompts.name, "plain")
    assert sorted(one["line"] for one in first["conversations"]) == [0, 1, 2]
    assert all(len(one["replies"]["cost"]) == 1 for one in first["conversations"])
    for summary in first["arms"]:
        replies = [one["replies"][summary["arm"]][0] for one in first["conversations"]]
        assert summary["looped"] + summary["short"] + summary["conversations"] == 3
        assert sum(summary["rounds_by_kind"]) == (sum(r["rounds"] for r in replies) if summary["arm"] == "cost" else 0)


def test_turns_and_a_share_of_the_file(cli: Cli, pair: tuple[str, ...], prompts: Path) -> None:
    flags = ("--arms", "plain", "-n", "20", "--json", "--turns", "2", "--conversations", "1")
    (only,) = cli("bench", *pair, prompts, *flags).json["files"][0]["conversations"]
    assert (only["line"], len(only["replies"]["plain"])) == (0, 2)


def test_the_table_and_the_plot(
    cli: Cli, pair: tuple[str, ...], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaspark.benchmark.runs.loop_period", lambda _: None)  # tiny models do nothing but loop
    run = cli("bench", *pair, prompts, "--arms", "plain,chain:3", "-n", "64", "--plot", tmp_path / "plots")
    assert run.code == 0
    for words in ("3 conversations, ratios to plain", "plain", "chain:3", "ratio [95%]", "1.000 [1.000, 1.000]"):
        assert words in run.out
    assert (tmp_path / "plots" / "prompts.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "cache" / "learned.sqlite").exists(), "a benchmark leaves nothing behind"


def test_looped_replies_are_told(
    cli: Cli, pair: tuple[str, ...], prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adaspark.benchmark.runs.loop_period", lambda _: 1)
    run = cli("bench", *pair, prompts, "--arms", "plain,chain:3", "-n", "64")
    assert (run.code, run.out) == (0, "")
    assert "every reply looped" in run.err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("gone.jsonl",),
        ("{prompts}", "--arms", "plain,plain"),
        ("{prompts}", "--arms", "bush"),
        ("{prompts}", "-n", "1"),
        ("{prompts}", "--conversations", "0"),
        ("{prompts}", "--arm", "plain"),
        ("{prompts}", "-md", "none", "--arms", "chain:3"),
    ],
)
def test_wrong_usage(cli: Cli, pair: tuple[str, ...], prompts: Path, arguments: tuple[str, ...]) -> None:
    given = [argument.format(prompts=prompts) for argument in arguments]
    run = cli("bench", *(pair if "-md" not in given else pair[:2] + SMALL), *given, "--json")
    assert (run.code, run.json["error"]["type"]) == (2, "UsageError")


def test_ctrl_c_tells_what_was_measured(pair: tuple[str, ...], tmp_path: Path) -> None:
    many = write(tmp_path / "many.jsonl", [["hi"]] * 5000)
    command = [
        sys.executable,
        "-m",
        "adaspark",
        "bench",
        *pair,
        str(many),
        "--arms",
        "plain",
        "-n",
        "64",
        "--json",
        "-vv",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it has begun to load
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    data = json.loads(out)
    assert "error" in data or len(data["files"][0]["conversations"]) < 5000
