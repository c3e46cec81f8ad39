"""Scripted proposals in a session (csrc/engine/session): what is right is accepted, what is wrong changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Proposal, anti, chain, mixed, oracle, request, run
from numpy.typing import NDArray
from session_tools import main_prompt, plain_reply, same_reply

from adaspark import _engine

N_VOCAB = tm.VOCABULARY.size


class TestScripted:
    @pytest.fixture
    def target(self, load_target: LoadTarget) -> _engine.Target:
        return load_target(tm.DENSE)

    @pytest.fixture
    def prompt(self, models: ModelFiles) -> list[int]:
        return main_prompt(models, tm.DENSE)

    @pytest.mark.parametrize("depth", [1, 2, 5, 7, 16, 63])
    def test_an_oracle_is_accepted_whole(self, target: _engine.Target, prompt: list[int], depth: int) -> None:
        plain = plain_reply(target, prompt, 129)
        session = _engine.Session(target)
        session.set_proposer(oracle(prompt, plain.tokens, depth))
        reply = run(session, target, prompt, request("tree", 64, n_predict=129))
        same_reply(reply, plain)
        s = reply.statistics
        assert s["accepted"] == s["drafted"] == 128 - s["rounds"]
        assert s["rounds"] == math.ceil(128 / (depth + 1))
        assert all(r["accepted"] == depth for r in reply.rounds[:-1])

    @pytest.mark.parametrize(("width", "depth"), [(1, 1), (1, 63), (63, 1), (9, 7), (21, 3)])
    def test_nothing_wrong_is_accepted(self, target: _engine.Target, prompt: list[int], width: int, depth: int) -> None:
        plain = plain_reply(target, prompt, 80)
        session = _engine.Session(target)
        session.set_proposer(anti(prompt, plain.tokens, depth, width, N_VOCAB))
        reply = run(session, target, prompt, request("tree", 64, n_predict=80))
        same_reply(reply, plain)
        assert reply.statistics["accepted"] == 0
        assert reply.statistics["rounds"] == 79
        assert reply.rounds[0]["drafted"] == width * depth

    @pytest.mark.parametrize("right", [0, 1, 2, 5, 9])
    def test_a_mixed_tree_is_accepted_down_to_its_first_error(
        self, target: _engine.Target, prompt: list[int], right: int
    ) -> None:
        """Wrong siblings are listed before every right node (B03)."""
        plain = plain_reply(target, prompt, 160)
        session = _engine.Session(target)
        session.set_proposer(mixed(prompt, plain.tokens, right, 12, N_VOCAB))
        reply = run(session, target, prompt, request("tree", 64, n_predict=121))
        assert reply.tokens == plain.tokens[:121]
        assert {r["accepted"] for r in reply.rounds[:-1]} == {right}
        depths = reply.statistics["drafted_by_depth"]
        assert len(depths) == 12
        assert depths[0] == 2 * sum(r["drafted"] > 0 for r in reply.rounds), "all but a last round of one token"

    def test_the_right_sibling_is_found_wherever_it_stands(self, target: _engine.Target, prompt: list[int]) -> None:
        """Every depth offers 5 siblings, the right one at a place that changes with depth and round."""
        plain = plain_reply(target, prompt, 140)

        def propose(committed: NDArray[np.int32]) -> Proposal:
            at = len(committed) - len(prompt)
            tokens: list[int] = []
            parents: list[int] = []
            parent = -1
            for level, right in enumerate(plain.tokens[at : at + 6]):
                spot = (at + level) % 5
                base = len(tokens)
                tokens += [right if i == spot else (right + 1 + i) % N_VOCAB for i in range(5)]
                parents += [parent] * 5
                parent = base + spot
            return tokens, parents

        session = _engine.Session(target)
        session.set_proposer(propose)
        reply = run(session, target, prompt, request("tree", 64, n_predict=127))
        assert reply.tokens == plain.tokens[:127]
        assert reply.statistics["rounds"] == 18
        assert reply.statistics["accepted"] == 108

    def test_random_proposals_do_no_harm(self, target: _engine.Target, prompt: list[int]) -> None:
        """Bushy random trees in which the right continuation may or may not occur."""
        rng = np.random.default_rng(44)
        plain = plain_reply(target, prompt, 260)

        def propose(committed: NDArray[np.int32]) -> Proposal:
            at = len(committed) - len(prompt)
            tokens: list[int] = []
            parents: list[int] = []
            depths = {-1: 0}
            for i in range(int(rng.integers(0, 64))):
                parent = int(rng.integers(-1, i)) if i else -1
                depths[i] = depths[parent] + 1
                right = plain.tokens[min(at + depths[i] - 1, 259)]
                tokens.append(right if rng.random() < 0.4 else int(rng.integers(0, N_VOCAB)))
                parents.append(parent)
            return tokens, parents

        session = _engine.Session(target)
        session.set_proposer(propose)
        reply = run(session, target, prompt, request("tree", 64, n_predict=200))
        assert reply.tokens == plain.tokens[:200]
        assert 50 < reply.statistics["accepted"] < 199
        assert len(reply.statistics["width_rounds"]) > 10

    def test_no_proposal_is_a_plain_round(self, target: _engine.Target, prompt: list[int]) -> None:
        plain = plain_reply(target, prompt, 20)
        session = _engine.Session(target)
        session.set_proposer(lambda _: ([], []))
        reply = run(session, target, prompt, request("tree", 64, n_predict=20))
        same_reply(reply, plain)
        assert reply.statistics["width_rounds"] == {1: 19}

    def test_a_removed_proposer_is_not_asked(
        self, target: _engine.Target, prompt: list[int], load_drafter: LoadDrafter
    ) -> None:
        session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
        asked: list[int] = []

        def propose(committed: NDArray[np.int32]) -> Proposal:
            asked.append(len(committed))
            return [], []

        session.set_proposer(propose)
        run(session, target, prompt, request("tree", 8, n_predict=10))
        assert asked == list(range(len(prompt) + 1, len(prompt) + 9)), "not in the last round: nothing fits the budget"
        session.set_proposer(None)
        reply = run(session, target, prompt, request("tree", 8, n_predict=10))
        assert len(asked) == 8
        assert reply.statistics["drafted"] > 0

    def test_an_exception_of_the_proposer_comes_through(self, target: _engine.Target, prompt: list[int]) -> None:
        plain = plain_reply(target, prompt, 20)
        session = _engine.Session(target)

        def propose(committed: NDArray[np.int32]) -> Proposal:
            message = f"nothing to say after {len(committed)}"
            raise LookupError(message)

        session.set_proposer(propose)
        session.begin(prompt, request("tree", 8, n_predict=20))
        session.step()
        with pytest.raises(LookupError, match="nothing to say"):
            session.step()
        assert target.n_kv_cells == target.n_past == session.committed - 1
        session.set_proposer(None)
        same_reply(run(session, target, prompt, request(n_predict=20)), plain)

    @pytest.mark.parametrize(
        "proposal", [([5, 6], [-1]), ([5], [0]), ([5, 6], [-1, 1]), ([5], [-2]), ([N_VOCAB], [-1]), ([-1], [-1])]
    )
    def test_a_malformed_proposal_is_refused(
        self, target: _engine.Target, prompt: list[int], proposal: Proposal
    ) -> None:
        session = _engine.Session(target)
        session.set_proposer(lambda _: proposal)
        session.begin(prompt, request("tree", 8, n_predict=20))
        session.step()
        with pytest.raises(ValueError):  # noqa: PT011 (several messages)
            session.step()
        assert target.n_kv_cells == target.n_past == session.committed - 1

    def test_more_candidates_than_rows_are_cut(self, target: _engine.Target, prompt: list[int]) -> None:
        plain = plain_reply(target, prompt, 300)
        session = _engine.Session(target)
        session.set_proposer(oracle(prompt, plain.tokens, 150))
        reply = run(session, target, prompt, request("tree", 64, n_predict=200))
        assert reply.tokens == plain.tokens[:200]
        assert max(reply.statistics["width_rounds"]) == 64


@pytest.mark.parametrize("accepted", [[0], [7], [0, 1, 6, 7], [3]])
def test_a_hybrid_follows_any_accepted_length(models: ModelFiles, load_target: LoadTarget, accepted: list[int]) -> None:
    """B06: accepting nothing, everything, and both in turn, for 200 tokens."""
    prompt = main_prompt(models, tm.HYBRID)
    target = load_target(tm.HYBRID)
    plain = plain_reply(target, prompt, 220)
    rounds = iter(range(10_000))

    def propose(committed: NDArray[np.int32]) -> Proposal:
        at = len(committed) - len(prompt)
        keep = accepted[next(rounds) % len(accepted)]
        return chain([t if i < keep else (t + 1) % N_VOCAB for i, t in enumerate(plain.tokens[at : at + 7])])

    session = _engine.Session(target)
    session.set_proposer(propose)
    reply = run(session, target, prompt, request("chain", 7, n_predict=200))
    assert reply.tokens == plain.tokens[:200]
    assert {r["accepted"] for r in reply.rounds[:-1]} == set(accepted)
