"""Requests after others in a session (csrc/engine/session): caches serve the common prefix, texts are the same."""

from __future__ import annotations

import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import request, run, text_prompt
from session_tools import plain_reply, same_reply

from adaspark import _engine


class TestPrefixReuse:
    """The caches of the last request serve the common prefix of the next, the drafter's too (B45)."""

    @pytest.mark.parametrize(("arm", "n"), [("plain", 0), ("chain", 5), ("tree", 16)])
    def test_turns_of_a_chat_equal_fresh_runs(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, arm: str, n: int
    ) -> None:
        spec = tm.DENSE
        target, fresh_target = load_target(spec), load_target(spec)
        session = _engine.Session(target, load_drafter(target, spec, tm.DrafterSpec()))
        fresh = _engine.Session(fresh_target, load_drafter(fresh_target, spec, tm.DrafterSpec()))
        history = text_prompt(models, spec, 54, 60)
        for turn in range(4):
            held = target.n_past
            prompt = history + text_prompt(models, spec, 55 + turn, 11)
            reply = run(session, target, prompt, request(arm, n, n_predict=33))
            fresh_target.clear()
            cold = run(fresh, fresh_target, prompt, request(arm, n, n_predict=33))
            same_reply(reply, cold)
            reference.assert_decisive(models.target(spec), prompt, cold.tokens)
            assert cold.statistics["reused_tokens"] == 0
            assert reply.statistics["reused_tokens"] == held
            # the drafter knows the reused positions: it drafts what it would have drafted after a cold start
            assert [r["accepted"] for r in reply.rounds] == [r["accepted"] for r in cold.rounds]
            assert [r["drafted"] for r in reply.rounds] == [r["drafted"] for r in cold.rounds]
            history = prompt + reply.tokens

    def test_the_same_prompt_again(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
    ) -> None:
        target = load_target(tm.DENSE)
        session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
        prompt = text_prompt(models, tm.DENSE, 57, 40)
        first = run(session, target, prompt, request("tree", 16, n_predict=60))
        again = run(session, target, prompt, request("tree", 16, n_predict=60))
        same_reply(again, first)
        reference.assert_decisive(models.target(tm.DENSE), prompt, first.tokens)
        assert again.statistics["reused_tokens"] == len(prompt) - 1, "the last token runs for its logits"
        assert [r["accepted"] for r in again.rounds] == [r["accepted"] for r in first.rounds]

    @pytest.mark.parametrize("edited", [0, 1, 30, 58, 59])
    @pytest.mark.parametrize(("spec", "seed"), [(tm.DENSE, 199), (tm.HYBRID, 97)], ids=["llama", "lfm2"])
    def test_an_edited_history(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec, seed: int,
        edited: int,
    ) -> None:  # fmt: skip
        target = load_target(spec)
        session = _engine.Session(target, load_drafter(target, spec, tm.DrafterSpec()))
        prompt = text_prompt(models, spec, seed, 60)
        run(session, target, prompt, request("chain", 5, n_predict=30))
        changed = list(prompt)
        changed[edited] = next(t for t in models.target(spec).text_tokens if t != prompt[edited])
        reply = run(session, target, changed, request("chain", 5, n_predict=30))
        target.clear()
        plain = plain_reply(target, changed, 30)
        same_reply(reply, plain)
        reference.assert_decisive(models.target(spec), changed, plain.tokens)
        assert reply.statistics["reused_tokens"] == (edited if target.supports_tree else 0)

    def test_a_shorter_history(self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
        target = load_target(tm.DENSE)
        session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
        prompt = text_prompt(models, tm.DENSE, 56, 60)
        run(session, target, prompt, request("tree", 16, n_predict=60))
        reply = run(session, target, prompt[:7], request("tree", 16, n_predict=60))
        assert reply.statistics["reused_tokens"] == 6
        target.clear()
        plain = plain_reply(target, prompt[:7], 60)
        same_reply(reply, plain)
        reference.assert_decisive(models.target(tm.DENSE), prompt[:7], plain.tokens)

    def test_a_plain_request_between_two_drafted_ones(
        self, models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
    ) -> None:
        """The drafter does not see the plain request's tokens: they must be run again for it, not guessed."""
        target, fresh_target = load_target(tm.DENSE), load_target(tm.DENSE)
        session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
        fresh = _engine.Session(fresh_target, load_drafter(fresh_target, tm.DENSE, tm.DrafterSpec()))
        prompt = text_prompt(models, tm.DENSE, 57, 40)
        run(session, target, prompt, request("tree", 16, n_predict=20))
        middle = run(session, target, prompt, request(n_predict=50))
        longer = prompt + middle.tokens + text_prompt(models, tm.DENSE, 58, 5)
        reply = run(session, target, longer, request("tree", 16, n_predict=40))
        cold = run(fresh, fresh_target, longer, request("tree", 16, n_predict=40))
        same_reply(reply, cold)
        reference.assert_decisive(models.target(tm.DENSE), longer, cold.tokens)
        assert [r["accepted"] for r in reply.rounds] == [r["accepted"] for r in cold.rounds]

    def test_two_sessions_of_one_target(self, models: ModelFiles, load_target: LoadTarget) -> None:
        """Each begin takes the target over; neither leaves something behind in the other's text."""
        target = load_target(tm.DENSE)
        a, b = text_prompt(models, tm.DENSE, 61, 20), text_prompt(models, tm.DENSE, 65, 25)
        plain_a = plain_reply(target, a, 30)
        target.clear()
        plain_b = plain_reply(target, b, 30)
        for prompt, plain in ((a, plain_a), (b, plain_b)):
            reference.assert_decisive(models.target(tm.DENSE), prompt, plain.tokens)
        one, two = _engine.Session(target), _engine.Session(target)
        for _ in range(2):
            same_reply(run(one, target, a, request(n_predict=30)), plain_a)
            same_reply(run(two, target, b, request(n_predict=30)), plain_b)
