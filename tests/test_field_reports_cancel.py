"""Faults other engines were reported for, as tests: cancelling a request (see test_field_reports)."""

from __future__ import annotations

import threading

import numpy as np
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import request, run, text_prompt
from field_tools import ARMS, CYCLE_DRAFTER
from session_tools import plain_reply, same_reply

from adaspark import _engine


class TestCancel:
    """B31: a request stops between two rounds, from any thread, and touches nothing else."""

    def test_from_another_thread_at_any_round(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, prompt: list[int]
    ) -> None:
        target, other_target = load_target(tm.CYCLE), load_target(tm.CYCLE)
        plain = plain_reply(target, prompt, 200)
        other_prompt = text_prompt(models, tm.CYCLE, 109, 20)
        other_plain = plain_reply(other_target, other_prompt, 200)
        session = _engine.Session(target, load_drafter(target, tm.CYCLE, CYCLE_DRAFTER))
        other = _engine.Session(other_target)
        rng = np.random.default_rng(110)
        for turn in range(50):
            arm = ARMS[turn % len(ARMS)]
            stop_after = int(rng.integers(0, 20))
            session.begin(prompt, request(*arm, n_predict=200))
            other.begin(other_prompt, request(n_predict=30))
            text = ""
            for _ in range(stop_after):
                text += session.step()
                other.step()
            committed = session.committed
            thread = threading.Thread(target=session.cancel)
            thread.start()
            thread.join()
            text += session.step() + session.step()
            assert session.finished
            assert session.finish_reason == "cancel"
            assert session.committed == committed, "no round after the request to stop"
            assert session.token_ids == plain.tokens[: len(session.token_ids)]
            assert text == tm.VOCABULARY.decode(session.token_ids).decode(errors="ignore")
            assert target.n_kv_cells == target.n_past == session.committed - 1
            while not other.finished:
                other.step()
            assert other.token_ids == other_plain.tokens[:30]
        reply = run(session, target, prompt, request("tree", 16, n_predict=200))
        same_reply(reply, plain)

    def test_while_rounds_are_running(
        self, cycle: _engine.Target, prompt: list[int], load_drafter: LoadDrafter
    ) -> None:
        plain = plain_reply(cycle, prompt, 900)
        session = _engine.Session(cycle, load_drafter(cycle, tm.CYCLE, CYCLE_DRAFTER))
        for _ in range(10):
            session.begin(prompt, request("tree", 16, n_predict=900))
            started = threading.Event()

            def stop(started: threading.Event = started) -> None:
                started.wait()
                session.cancel()

            thread = threading.Thread(target=stop)
            thread.start()
            while not session.finished:
                session.step()
                started.set()
                if len(session.token_ids) > 200:
                    thread.join()
            thread.join()
            assert session.finish_reason == "cancel"
            assert session.token_ids == plain.tokens[: len(session.token_ids)]
            assert cycle.n_kv_cells == cycle.n_past == session.committed - 1

    def test_during_the_prefill(self, models: ModelFiles, load_target: LoadTarget) -> None:
        target = load_target(tm.CYCLE, n_batch=8)
        prompt = text_prompt(models, tm.CYCLE, 111, 100)
        plain = plain_reply(target, prompt, 20)
        target.clear()
        session = _engine.Session(target)

        def progress(done: int, total: int) -> bool:
            assert total == 100
            if done == 40:
                session.cancel()
            return True

        session.begin(prompt, request(n_predict=20), progress)
        assert session.finish_reason == "cancel"
        assert session.token_ids == []
        assert target.n_kv_cells == target.n_past
        assert target.n_past in (40, 48), "at most the batch that was about to run"
        same_reply(run(session, target, prompt, request(n_predict=20)), plain)

    def test_after_the_end_changes_nothing(self, cycle: _engine.Target, prompt: list[int]) -> None:
        session = _engine.Session(cycle)
        reply = run(session, cycle, prompt, request(n_predict=10))
        session.cancel()
        session.step()
        assert session.finish_reason == "length"
        same_reply(run(session, cycle, prompt, request(n_predict=10)), reply)
