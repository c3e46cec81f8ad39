"""Decode session (csrc/engine/session, text_stream): lossless against plain decoding, for every arm and proposal."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Proposal, Reply, anti, chain, mixed, oracle, request, run
from numpy.typing import NDArray

from adaspark import _engine

N_VOCAB = tm.VOCABULARY.size
TARGETS = {"llama": tm.DENSE, "qwen3": tm.QWEN3, "qwen3moe": tm.ROUTED, "lfm2": tm.HYBRID}
ATTENTION = {name: spec for name, spec in TARGETS.items() if name != "lfm2"}
DRAFTERS = {
    "agreeing": tm.DrafterSpec(),
    "random": tm.DrafterSpec(seed=102, agree=False, own_head=True),
    "reduced vocabulary": tm.DrafterSpec(seed=103, reduced=100),
    "anchor only conditions": tm.DrafterSpec(seed=104, sample_from_anchor=False, block_size=8),
}
ARMS = [("chain", 1), ("chain", 3), ("chain", 7), ("tree", 2), ("tree", 8), ("tree", 16), ("tree", 33), ("tree", 64)]
FEWER_ARMS = [("chain", 7), ("tree", 16), ("tree", 48)]


def text_prompt(models: ModelFiles, spec: tm.TargetSpec, seed: int, n: int) -> list[int]:
    tokens = models.target(spec).text_tokens
    return np.random.default_rng(seed).choice(tokens, n).tolist()


# Seeds of a prompt for each target whose plain text of 300 tokens is varied and hangs on no rounding.
MAIN_PROMPTS = {tm.DENSE: 54589, tm.QWEN3: 24188, tm.ROUTED: 8081, tm.HYBRID: 17298, tm.HYBRID_ROUTED: 4707}


def main_prompt(models: ModelFiles, spec: tm.TargetSpec) -> list[int]:
    return text_prompt(models, spec, MAIN_PROMPTS[spec], 12)


def plain_reply(target: _engine.Target, prompt: list[int], n: int, **fields: object) -> Reply:
    return run(_engine.Session(target), target, prompt, request(n_predict=n, **fields))


def same_reply(got: Reply, plain: Reply) -> None:
    assert got.tokens == plain.tokens
    assert got.text == plain.text
    assert got.finish_reason == plain.finish_reason


def test_plain_is_the_argmax_of_the_definition(models: ModelFiles, load_target: LoadTarget) -> None:
    prompt = text_prompt(models, tm.QWEN3, 40, 9)
    expected = reference.greedy(models.target(tm.QWEN3), prompt, 30)
    reference.assert_decisive(models.target(tm.QWEN3), prompt, expected)
    target = load_target(tm.QWEN3)
    reply = plain_reply(target, prompt, 30)
    assert reply.tokens == expected
    assert reply.text.encode() == tm.VOCABULARY.decode(expected)
    assert reply.finish_reason == "length"
    assert reply.statistics["rounds"] == 29
    assert reply.statistics["drafted"] == 0
    assert reply.statistics["arm"] == "plain"


@pytest.mark.parametrize("spec", MAIN_PROMPTS, ids=lambda spec: spec.architecture)
def test_plain_texts_are_worth_comparing(models: ModelFiles, load_target: LoadTarget, spec: tm.TargetSpec) -> None:
    """A text that repeats one token, or hangs on rounding, would make the equality tests below worthless."""
    prompt = main_prompt(models, spec)
    tokens = plain_reply(load_target(spec), prompt, 300).tokens
    assert len(set(tokens)) > 50
    assert len({tuple(tokens[i : i + 3]) for i in range(297)}) > 150
    reference.assert_decisive(models.target(spec), prompt, tokens)


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())
@pytest.mark.parametrize("spec", ATTENTION.values(), ids=ATTENTION.keys())
def test_every_arm_gives_the_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec, drafter: tm.DrafterSpec
) -> None:
    prompt = main_prompt(models, spec)
    target = load_target(spec)
    plain = plain_reply(target, prompt, 300)
    session = _engine.Session(target, load_drafter(target, spec, drafter))
    accepted = {}
    arms = ARMS if spec is tm.DENSE and drafter.agree else FEWER_ARMS
    for arm, n in arms:
        reply = run(session, target, prompt, request(arm, n, n_predict=300))
        same_reply(reply, plain)
        assert reply.statistics["drafted"] > 0
        assert max(reply.statistics["width_rounds"]) <= (n + 1 if arm == "chain" else n)
        accepted[arm, n] = reply.statistics["accepted"]
    if drafter.agree:
        # far from nothing, and never the whole block only: both ends of the walk are exercised
        assert accepted["chain", 7] > 60
        assert accepted["tree", 16] > 60
    else:
        assert accepted["chain", 7] < 60


@pytest.mark.parametrize("kernels", ["own", "ggml", "llama"])
@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())
def test_every_chain_of_a_hybrid_gives_the_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, drafter: tm.DrafterSpec, kernels: str
) -> None:
    prompt = main_prompt(models, tm.HYBRID)
    target = load_target(tm.HYBRID, kernels=kernels)
    plain = plain_reply(target, prompt, 300)
    session = _engine.Session(target, load_drafter(target, tm.HYBRID, drafter))
    for n in (1, 2, 3, 7, 8, 64):
        reply = run(session, target, prompt, request("chain", n, n_predict=300))
        same_reply(reply, plain)
        assert reply.statistics["drafted"] > 0
        assert max(reply.statistics["width_rounds"]) <= 1 + min(n, 7)


@pytest.mark.parametrize("kernels", ["own", "ggml"])
@pytest.mark.parametrize("spec", [tm.HYBRID, tm.HYBRID_ROUTED], ids=["lfm2", "lfm2moe"])
def test_every_tree_of_a_hybrid_gives_the_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec, kernels: str
) -> None:
    """On our own graph, where trees need no state of the model to go back."""
    prompt = main_prompt(models, spec)
    target = load_target(spec, kernels=kernels)
    plain = plain_reply(target, prompt, 300)
    session = _engine.Session(target, load_drafter(target, spec, tm.DrafterSpec()))
    for arm, n in (("tree", 8), ("tree", 33), ("adaspark", 0), ("adaspark", 16)):
        reply = run(session, target, prompt, request(arm, n, n_predict=300))
        same_reply(reply, plain)
        if n > 0 and (arm == "tree" or kernels == "own"):  # a learned width drafts little where a draft costs much
            assert reply.statistics["accepted"] > 5
        assert reply.statistics["drafted"] > 0  # but finds out what it costs


def test_a_hybrid_says_that_it_takes_no_trees(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    target = load_target(tm.HYBRID, kernels="llama")
    session = _engine.Session(target, load_drafter(target, tm.HYBRID, tm.DrafterSpec()))
    with pytest.raises((ValueError, _engine.AdaSparkError), match="chain"):
        session.begin([5, 6], request("tree", 8))
    prompt = text_prompt(models, tm.HYBRID, 42, 5)
    assert run(session, target, prompt, request("chain", 3, n_predict=9)).finish_reason == "length"


def test_default_cache_and_threads_are_lossless_too(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """The F16 cache and flash attention of the defaults: the pure successor model leaves rounding no choice."""
    prompt = text_prompt(models, tm.CYCLE, 43, 12)
    target = load_target(tm.CYCLE, cache_type_k="f16", cache_type_v="f16", n_threads=2, n_threads_batch=2)
    plain = plain_reply(target, prompt, 180)
    reference.assert_decisive(models.target(tm.CYCLE), prompt, plain.tokens)
    session = _engine.Session(target, load_drafter(target, tm.CYCLE, tm.DrafterSpec(taps=(0, 1, 2))))
    for arm, n in (("chain", 7), ("tree", 16), ("tree", 64)):
        reply = run(session, target, prompt, request(arm, n, n_predict=180))
        same_reply(reply, plain)


# -------------------------------------------------------------------------------------------------- scripted proposals


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


# ----------------------------------------------------------------------------------------------------------- one session


def test_step_by_step_state(models: ModelFiles, load_target: LoadTarget) -> None:
    prompt = text_prompt(models, tm.DENSE, 45, 10)
    target = load_target(tm.DENSE)
    plain = plain_reply(target, prompt, 30)
    reference.assert_decisive(models.target(tm.DENSE), prompt, plain.tokens)
    session = _engine.Session(target)
    session.set_proposer(oracle(prompt, plain.tokens, 4))
    session.begin(prompt, request("tree", 64, n_predict=30))
    assert not session.finished
    assert session.finish_reason is None
    assert session.token_ids == plain.tokens[:1]
    assert session.last_round is None
    lengths = []
    while not session.finished:
        session.step()
        lengths.append(len(session.token_ids))
        assert session.committed == len(prompt) + len(session.token_ids)
        assert session.token_ids == plain.tokens[: lengths[-1]]
    assert lengths == [1, 6, 11, 16, 21, 26, 30]
    assert session.finish_reason == "length"
    last = session.last_round
    assert last is not None
    assert last["tokens"] == plain.tokens[26:]
    assert (last["rows"], last["drafted"], last["accepted"]) == (4, 3, 3)
    assert session.step() == ""
    assert session.token_ids == plain.tokens


def test_step_needs_a_request(load_target: LoadTarget) -> None:
    session = _engine.Session(load_target(tm.DENSE))
    with pytest.raises((ValueError, RuntimeError, _engine.AdaSparkError)):
        session.step()


@pytest.mark.parametrize(
    "fields",
    [
        {"n_predict": -2}, {"temperature": -0.1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": -0.1},
        {"top_p": 1.5}, {"min_p": -0.5}, {"min_p": 1.5}, {"arm": "tree", "arm_n": 0}, {"arm": "tree", "arm_n": 65},
        {"arm": "chain", "arm_n": -1}, {"arm": "bush"},
    ],
    ids=str,
)  # fmt: skip
def test_a_request_out_of_range_is_refused(
    load_target: LoadTarget, load_drafter: LoadDrafter, fields: dict[str, object]
) -> None:
    target = load_target(tm.DENSE)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, tm.DrafterSpec()))
    with pytest.raises(ValueError, match=r"\w"):
        session.begin([5, 6, 7], request(**{"arm": "plain", **fields}))  # type: ignore[arg-type]
    assert run(session, target, [5, 6, 7], request(n_predict=3)).finish_reason == "length"


@pytest.mark.parametrize(("arm", "n"), [("chain", 3), ("tree", 8)])
def test_an_arm_that_drafts_needs_a_drafter(load_target: LoadTarget, arm: str, n: int) -> None:
    session = _engine.Session(load_target(tm.DENSE))
    with pytest.raises((ValueError, _engine.AdaSparkError), match="drafter"):
        session.begin([5, 6, 7], request(arm, n))


def test_a_failed_begin_leaves_the_session_usable(models: ModelFiles, load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_ctx=128)
    prompt = text_prompt(models, tm.DENSE, 48, 20)
    plain = plain_reply(target, prompt, 40)
    reference.assert_decisive(models.target(tm.DENSE), prompt, plain.tokens)
    session = _engine.Session(target)
    for wrong in ([], [5, N_VOCAB], [-1], [5] * 129):
        with pytest.raises((ValueError, _engine.ContextFullError)):
            session.begin(wrong, request(n_predict=5))
        same_reply(run(session, target, prompt, request(n_predict=40)), plain)


def test_the_prefill_can_be_watched_and_stopped(models: ModelFiles, load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_batch=16)
    prompt = text_prompt(models, tm.DENSE, 47, 70)
    plain = plain_reply(target, prompt, 20)
    reference.assert_decisive(models.target(tm.DENSE), prompt, plain.tokens)
    target.clear()
    session = _engine.Session(target)
    seen: list[tuple[int, int]] = []

    def stop_at_half(done: int, total: int) -> bool:
        seen.append((done, total))
        return done < 32

    session.begin(prompt, request(n_predict=20), stop_at_half)
    assert session.finished
    assert session.finish_reason == "cancel"
    assert session.token_ids == []
    assert session.step() == ""
    assert seen[-1] == (32, 70)
    same_reply(run(session, target, prompt, request(n_predict=20)), plain)


# ------------------------------------------------------------------------------------------------------ prefix reuse


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_every_arm_gives_the_plain_text_of_many_models(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, seed: int
) -> None:
    """Other seeds of every architecture, 600 tokens, all widths of 2 to 64 as trees."""
    for spec in ATTENTION.values():
        other = dataclasses.replace(spec, seed=1000 + seed)
        prompt = text_prompt(models, other, seed, 12)
        target = load_target(other)
        plain = plain_reply(target, prompt, 600)
        session = _engine.Session(target, load_drafter(target, other, tm.DrafterSpec(seed=2000 + seed)))
        for n in range(2 + seed, 65, 8):
            same_reply(run(session, target, prompt, request("tree", n, n_predict=600)), plain)
