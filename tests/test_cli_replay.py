"""``adaspark-run replay``: its table, its object, its plots, and when it says no."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_tools import Cli

from adaspark.plots import calibration, regret
from adaspark.replay import ArmReplay, Recorded
from adaspark.trace import read_trace

N = ("-n", "100", "--ignore-eos", "--store", "none", "the thin end of it, the thin end of it")


@pytest.fixture
def trace(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> Path:
    """A live conversation and a full trace."""
    path = tmp_path / "rounds.trace"
    turns = "one and one\none and one\nthe thin end of it\n"
    live = (*pair, *N[:-1], "--arm", "adaspark:8", "--trace", path)
    assert cli("chat", *live, stdin=turns).code == 0
    assert cli("chat", *pair, *N[:-1], "--trace", path, stdin=turns * 2).code == 0
    return path


def test_a_live_trace(cli: Cli, trace: Path) -> None:
    run = cli("replay", trace, "--json", "--arms", "plain,chain:3,adaspark")
    report = run.json
    assert (run.code, report["exact"], len(report["requests"])) == (0, True, 9)
    assert all(request["differs_at"] is None and request["state_matches"] for request in report["requests"])
    assert [arm["arm"] for arm in report["arms"]] == ["plain", "chain:3", "adaspark"]
    assert report["costs"] == "learned"
    assert report["arms"][0]["rounds"] == report["arms"][0]["tokens"]
    text = cli("replay", trace, "--arms", "plain,chain:3").out
    assert "9 requests" in text
    assert "every decision and every learned state as recorded" in text
    assert "live trace, costs learned" in text
    assert "1.000" in text


def test_full_traces_take_the_place_of_live_ones(cli: Cli, pair: tuple[str, ...], trace: Path, tmp_path: Path) -> None:
    full = tmp_path / "full.trace"
    assert cli(*pair, *N, "--trace", full, "--full-trace").code == 0
    alone = cli("replay", full, "--json")
    assert (alone.code, alone.json["arms"]) == (0, [])
    assert "one width only" in alone.json["reason"]
    both = cli("replay", full, trace, "--json").json
    assert both["exact"]
    assert [arm["covered"] for arm in both["arms"]] == [1.0] * 9
    assert all(arm["tokens"] == 99 for arm in both["arms"])
    costs = tmp_path / "costs.json"
    verify = [{"rows": 1, "us": 1000}, {"rows": 64, "us": 64_000}]
    costs.write_text(json.dumps({"draft": {"us": 0}, "verify": verify}))
    steep = cli("replay", full, "--costs", costs, "--json", "--arms", "plain,tree:16").json
    assert steep["costs"] == "costs.json"
    assert steep["arms"][0]["tokens_per_second"] == pytest.approx(1000.0)
    assert steep["arms"][1]["tokens_per_second"] < 500.0


def test_plots(cli: Cli, trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plots" / "here"
    report = cli("replay", trace, "--json", "--plot", folder, "--arms", "plain,adaspark").json
    names = ["widths.png", "costs.png", "log_loss.png", "calibration.png", "regret.png", "arms.png"]
    assert report["plots"] == [str(folder / name) for name in names]
    for name in names:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
        assert (folder / name).stat().st_size > 5000
    assert report["regret"]["best_pinned"].startswith("adaspark:")
    assert set(folder.iterdir()) == {folder / name for name in names}


def test_plots_of_a_plain_trace_leave_out_what_it_has_not(cli: Cli, pair: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "plain.trace"
    assert cli(*pair, *N, "--arm", "chain:3", "--trace", path).code == 0
    report = cli("replay", path, "--json", "--plot", tmp_path / "plots").json
    assert {Path(name).name for name in report["plots"]} >= {"widths.png", "costs.png"}
    assert not (tmp_path / "plots" / "log_loss.png").exists()
    assert not (tmp_path / "plots" / "calibration.png").exists()


def test_a_trace_that_does_not_replay_is_1(cli: Cli, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = read_trace(trace)
    requests[2].header["learned_after"] = "0" * 64
    monkeypatch.setattr("adaspark.cli.replay.read_trace", lambda _: requests)
    run = cli("replay", trace, "--arms", "plain")
    assert run.code == 1
    assert "request 2 (adaspark:8) differs from the record: its learned state" in run.out
    assert not cli("replay", trace, "--json").json["exact"]


def test_wrong_files_and_usage(cli: Cli, trace: Path, tmp_path: Path) -> None:
    assert cli("replay").code == 2
    assert cli("replay", trace, "--arms", "plain,bush").code == 2
    run = cli("replay", tmp_path / "gone", "--json")
    assert (run.code, run.json["error"]["type"]) == (1, "TraceError")
    (tmp_path / "empty").touch()
    assert "nothing to replay" in cli("replay", tmp_path / "empty").err
    assert cli("replay", trace, "--costs", trace, "--json").json["error"]["type"] == "TraceError"


def test_calibration_has_every_learned_round_but_the_last_ones(trace: Path) -> None:
    requests = [Recorded.of(request) for request in read_trace(trace)]
    expected, accepted = calibration(requests)
    count = sum(int((r.record["rows"][:-1] > 1).sum()) for r in requests)
    assert len(expected) == len(accepted) == count > 0
    assert (expected >= 0).all()
    assert (accepted == accepted.astype(int)).all()


def test_regret_is_time_lost_by_the_token() -> None:
    def arm(name: str, rounds: list[tuple[int, float]]) -> ArmReplay:
        columns = np.zeros((len(rounds), 7))
        columns[:, 3] = [accepted for accepted, _ in rounds]
        columns[:, 4] = [us for _, us in rounds]
        return ArmReplay(name, [columns], sum(accepted + 1 for accepted, _ in rounds))

    slow = arm("adaspark:2", [(0, 1000.0)] * 6)
    best = arm("adaspark:8", [(2, 1500.0), (2, 1500.0)])
    adaptive = arm("adaspark", [(0, 1000.0), (1, 1500.0), (2, 1500.0)])
    chosen, lost = regret(adaptive, [slow, best])
    assert chosen is best
    assert lost.tolist() == pytest.approx([-0.5, 1.0, 1.0, 1.0, 1.0, 1.0])
