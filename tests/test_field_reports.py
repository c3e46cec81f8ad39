"""Faults other engines were reported for, as tests: drafter files, the end of the context, requests after others.

Where a text ends and how it is cut is in test_field_reports_text, cancelling in test_field_reports_cancel.

The ids (B20, S06, ..) are those of the project's collection of public field reports. Reports on one part are tested with
that part: B01, B03, B04, B06, B08 in test_verify and test_session_proposals; B11, B12, B17 in test_drafter; B09, B12, B15,
S04, S05 in test_drafter_files; S06 in test_drafter_window; B32 on text candidates in test_learned_arm and core/test_text;
B33 in test_store, test_memory and core/test_field_cases; B36, B37 and B39 on the scheduler in core/test_field_cases, on a
machine by ``bench/slow_drafter.py``, ``bench/cold_start.py`` and ``bench/learned_table.py``; limits are in
docs/scheduler.md; B41 in test_sampling; B45 in test_session_prefix; S21 in test_errors; B47 after every request
(``engine_tools.check_statistics``).
"""

from __future__ import annotations

import dataclasses
import gc
import resource
import sys

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import anti, request, run, text_prompt
from field_tools import ARMS, CYCLE_DRAFTER, N_VOCAB, B, oracle_reply
from session_tools import plain_reply, same_reply

from adaspark import _engine

# ------------------------------------------------------------------------------------------------------- drafter files


def test_a_drafter_that_never_fits_is_reported_once(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """B10: the wrong block layout loads like the right one; 64 rounds without a hit are worth a line."""
    wrong = tm.DrafterSpec(seed=131, agree=False, own_head=True)
    path = models.write(models.drafter(tm.DENSE, wrong).file.edit(drop_keys=["dflash.sample_from_anchor"]))
    prompt = text_prompt(models, tm.DENSE, 101, 12)
    target = load_target(tm.DENSE)
    plain = plain_reply(target, prompt, 150)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, path))
    seen: list[int] = []
    reply = run(
        session, target, prompt, request("chain", 3, n_predict=150), lambda _: seen.append(len(session.warnings))
    )
    same_reply(reply, plain)
    assert sum(r["accepted"] > 0 for r in reply.rounds[:64]) <= 3
    assert seen[-1] == 1
    assert seen[60] == 0, "not before 64 rounds"
    assert "sample_from_anchor" in session.warnings[0]


def test_a_drafter_that_fits_is_not_reported(
    cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter
) -> None:
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
    run(session, cycle, prompt, request("chain", 3, n_predict=400))
    assert session.warnings == []


@pytest.mark.parametrize("wanted", [0, 1, B - 1, B, B + 1, 64, 10_000])
@pytest.mark.parametrize("layout", ["anchor", "bonus"])
def test_a_depth_beyond_the_block_is_cut_to_it(
    cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter, wanted: int, layout: str
) -> None:
    """B14: a chain never asks for more positions than the drafter was trained for; 0 drafts nothing."""
    spec = CYCLE_DRAFTER if layout == "anchor" else dataclasses.replace(CYCLE_DRAFTER, sample_from_anchor=False)
    reach = B if layout == "anchor" else B - 1
    plain = plain_reply(cycle, prompt, 80)
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, spec))
    reply = run(session, cycle, prompt, request("chain", wanted, n_predict=80))
    same_reply(reply, plain)
    depth = min(wanted, reach)
    assert {r["drafted"] for r in reply.rounds[:-1]} == {depth}
    assert len(reply.statistics["drafted_by_depth"]) == depth


def test_a_chain_beyond_a_hybrids_reach_is_cut_with_a_line(models: ModelFiles, load_target: LoadTarget) -> None:
    """S02: the snapshots of a recurrent state bound the chain; a longer one is cut, said once, and nothing aborts."""
    target = load_target(tm.HYBRID, kernels="llama")
    prompt = text_prompt(models, tm.HYBRID, 102, 12)
    plain = plain_reply(target, prompt, 90)
    block = tm.DrafterSpec(seed=132, block_size=16)
    drafter = _engine.Drafter(str(models.drafter_path(tm.HYBRID, block)), target, _engine.DrafterOptions())
    session = _engine.Session(target, drafter)
    reply = run(session, target, prompt, request("chain", 32, n_predict=90))
    same_reply(reply, plain)
    assert max(reply.statistics["width_rounds"]) == 1 + target.max_chain
    assert len(session.warnings) == 1
    assert str(target.max_chain) in session.warnings[0]


# --------------------------------------------------------------------------------------------------- end of the context


class TestContextEnd:
    """B20: the block and the tree shrink to what fits; the reply ends exactly with the context."""

    N_CTX = 96

    @pytest.mark.parametrize(("arm", "n"), ARMS)
    def test_exactly_the_room_left(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, arm: str, n: int
    ) -> None:
        long = load_target(tm.CYCLE)
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        session = _engine.Session(target, load_drafter(target, tm.CYCLE, CYCLE_DRAFTER))
        for room in range(B + 3):
            prompt = text_prompt(models, tm.CYCLE, 103, self.N_CTX - room)
            expected = plain_reply(long, prompt, room)
            for n_predict in (64, -1):
                reply = run(session, target, prompt, request(arm, n, n_predict=n_predict))
                assert len(reply.tokens) == room
                same_reply(reply, expected)
                assert reply.finish_reason == "length"
                assert target.n_past <= self.N_CTX

    @pytest.mark.parametrize("depth", [1, 7, 63])
    def test_an_oracle_at_the_end(self, models: ModelFiles, load_target: LoadTarget, depth: int) -> None:
        long = load_target(tm.CYCLE)
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        for room in (0, 1, 2, 3, 8, 9, 30, 70):
            prompt = text_prompt(models, tm.CYCLE, 104, self.N_CTX - room)
            expected = plain_reply(long, prompt, room)
            reply = oracle_reply(target, prompt, plain_reply(long, prompt, room + 64), depth)
            same_reply(reply, expected)

    def test_a_wide_tree_at_the_end(self, models: ModelFiles, load_target: LoadTarget) -> None:
        """Every row needs a cell: 63 wrong siblings are cut to the cells that are left."""
        long = load_target(tm.CYCLE)
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        prompt = text_prompt(models, tm.CYCLE, 105, self.N_CTX - 20)
        expected = plain_reply(long, prompt, 20)
        session = _engine.Session(target)
        session.set_proposer(anti(prompt, plain_reply(long, prompt, 40).tokens, 1, 63, N_VOCAB))
        reply = run(session, target, prompt, request("tree", 64))
        same_reply(reply, expected)
        assert [r["rows"] for r in reply.rounds[:-1]] == list(range(20, 2, -1))

    def test_a_hybrid_at_the_end(self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
        long = load_target(tm.HYBRID)
        target = load_target(tm.HYBRID, n_ctx=64)
        session = _engine.Session(target, load_drafter(target, tm.HYBRID, tm.DrafterSpec()))
        for room in range(B + 3):
            prompt = text_prompt(models, tm.HYBRID, 106, 64 - room)
            reply = run(session, target, prompt, request("chain", 7))
            same_reply(reply, plain_reply(long, prompt, room))

    def test_a_prompt_longer_than_the_context(self, models: ModelFiles, load_target: LoadTarget) -> None:
        """B22: a typed error with both numbers; the next request is fine."""
        target = load_target(tm.CYCLE, n_ctx=self.N_CTX)
        session = _engine.Session(target)
        for n in (self.N_CTX + 1, 2 * self.N_CTX):
            with pytest.raises(_engine.ContextFullError, match=rf"{n}\D.*\D{self.N_CTX}\D"):
                session.begin(text_prompt(models, tm.CYCLE, 107, n), request(n_predict=5))
            reply = run(session, target, text_prompt(models, tm.CYCLE, 108, 10), request(n_predict=5))
            assert len(reply.tokens) == 5

    def test_a_context_of_one_token(self, load_target: LoadTarget) -> None:
        target = load_target(tm.CYCLE, n_ctx=1)
        reply = run(_engine.Session(target), target, [7], request(n_predict=3))
        assert reply.finish_reason == "length"
        assert len(reply.tokens) == target.n_ctx - 1


@pytest.mark.parametrize("tokens", [[], np.zeros(0, np.int32)], ids=["list", "array"])
def test_an_empty_prompt_is_refused(cycle: _engine.Target, prompt: list[int], tokens: list[int]) -> None:
    """S15: in words, and the session goes on."""
    session = _engine.Session(cycle)
    with pytest.raises(ValueError, match="prompt"):
        session.begin(tokens, request(n_predict=5))
    assert len(run(session, cycle, prompt, request(n_predict=5)).tokens) == 5


# ------------------------------------------------------------------------------------------------- requests after others


def test_a_request_does_not_depend_on_the_one_before(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """B32: text and statistics of B after A equal those of B in a fresh target."""
    a, b = text_prompt(models, tm.DENSE, 112, 90), text_prompt(models, tm.DENSE, 113, 30)
    target, fresh = load_target(tm.DENSE), load_target(tm.DENSE)
    used = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
    new = _engine.Session(fresh, load_drafter(fresh, tm.DENSE, tm.DrafterSpec()))
    run(used, target, a, request("tree", 16, n_predict=120, stop=["e"], temperature=1.0, seed=3))
    after = run(used, target, b, request("tree", 16, n_predict=120))
    first = run(new, fresh, b, request("tree", 16, n_predict=120))
    same_reply(after, first)
    counts = [{k: v for k, v in r.statistics.items() if not k.endswith("_us")} for r in (after, first)]
    assert counts[0] == counts[1]


def test_statistics_of_the_smallest_replies(cycle: _engine.Target, prompt: list[int]) -> None:
    """B47: nothing negative, nothing that is not a number, no draft counted that was not made."""
    for n in (0, 1):
        reply = plain_reply(cycle, prompt, n)
        s = reply.statistics
        assert (s["completion_tokens"], s["rounds"], s["rows"], s["drafted"], s["accepted"]) == (n, 0, 0, 0, 0)
        assert s["drafted_by_depth"] == s["accepted_by_depth"] == []
        assert s["width_rounds"] == {}


def resident_bytes() -> int:
    """The most this process ever held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_loading_and_closing_gives_the_memory_back(models: ModelFiles, load_drafter: LoadDrafter) -> None:
    """S22: the cycles are big enough (about 20 MB each) for a leak of one part to show."""

    def cycle_once() -> None:
        options = _engine.TargetOptions()
        options.n_ctx, options.n_threads, options.n_gpu_layers = 8192, 1, 0
        target = _engine.Target(str(models.target_path(tm.WIDE)), options)
        drafter = load_drafter(target, tm.WIDE, tm.DrafterSpec(taps=(0, 1, 2)))
        session = _engine.Session(target, drafter)
        run(session, target, [5, 6, 7], request("tree", 16, n_predict=20))
        target.close()
        del session, drafter, target
        gc.collect()

    for _ in range(5):
        cycle_once()
    before = resident_bytes()
    for _ in range(15):
        cycle_once()
    assert resident_bytes() - before < 30e6


def test_many_requests_hold_no_more_memory(
    cycle: _engine.Target, load_drafter: LoadDrafter, models: ModelFiles
) -> None:
    """S09: 200 requests on one session."""
    session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
    prompts = [text_prompt(models, tm.CYCLE, seed, 40) for seed in range(20)]

    def requests(n: int) -> None:
        for i in range(n):
            session.begin(prompts[i % 20], request("tree", 16, n_predict=16))
            while not session.finished:
                session.step()

    requests(60)
    before = resident_bytes()
    requests(200)
    assert resident_bytes() - before < 8e6
