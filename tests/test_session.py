"""Decode session (csrc/engine/session, text_stream): lossless against plain decoding for every arm; its errors."""

from __future__ import annotations

import dataclasses
import math

import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import oracle, request, run, text_prompt
from session_tools import ATTENTION, DRAFTERS, MAIN_PROMPTS, main_prompt, plain_reply, same_reply

from adaspark import _engine

N_VOCAB = tm.VOCABULARY.size
ARMS = [("chain", 1), ("chain", 3), ("chain", 7), ("tree", 2), ("tree", 8), ("tree", 16), ("tree", 33), ("tree", 64)]
FEWER_ARMS = [("chain", 7), ("tree", 16), ("tree", 48)]


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
