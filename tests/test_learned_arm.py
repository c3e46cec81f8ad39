"""The arm adaspark in a session (csrc/engine/session_plan): whatever the scheduler learns, the text is the model's own."""

from __future__ import annotations

from itertools import zip_longest

import pytest
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from engine_tools import Reply, request, run, text_prompt
from session_tools import ATTENTION, DRAFTERS, plain_reply, same_reply

from adaspark import _engine


def check_sources(reply: Reply) -> None:
    """Every round is of one kind, every accepted draft of one source."""
    s = reply.statistics
    assert s["arm"] == "adaspark"
    assert s["rounds_plain"] + s["rounds_text"] + s["rounds_draft"] == s["rounds"]
    sources = s["sources"]
    for totals in ("drafted_by_depth", "accepted_by_depth"):
        by_source = [sources["drafter"][totals], sources["text"][totals], sources["agreed"][totals]]
        assert [sum(counts) for counts in zip_longest(*by_source, fillvalue=0)] == s[totals]
    if s["rounds_draft"] == 0:
        assert sum(sources["drafter"]["drafted_by_depth"]) == sum(sources["agreed"]["drafted_by_depth"]) == 0
    # Rounds are labelled by their outcome, the last one is not; the first runs cold.
    assert s["realised_accepted"] <= s["accepted"]
    assert 0.0 <= s["expected_accepted"] <= s["drafted"]
    assert s["priced_rounds"] <= max(s["rounds"] - 1, 0)
    assert (s["price_error"] is None) == (s["priced_rounds"] == 0)
    assert s["price_error"] is None or 0.0 <= s["price_error"] < 100.0
    assert min(s["fitted_loss"], s["head_loss"]) > 0.0 if s["labelled"] else s["fitted_loss"] == s["head_loss"] == 0.0
    assert s["width_rounds"].get(1, 0) >= s["rounds_plain"]


@pytest.mark.parametrize("drafter", DRAFTERS.values(), ids=DRAFTERS.keys())
@pytest.mark.parametrize("spec", ATTENTION.values(), ids=ATTENTION.keys())
def test_the_learned_arm_gives_the_plain_text(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, spec: tm.TargetSpec, drafter: tm.DrafterSpec
) -> None:
    target = load_target(spec, n_ctx=512)
    session = _engine.Session(target, load_drafter(target, spec, drafter))
    for seed, pinned in ((1, 0), (2, 0), (3, 2), (4, 8), (5, 33)):
        prompt = text_prompt(models, spec, seed, 20)
        got = run(session, target, prompt, request("adaspark", pinned, n_predict=150))
        check_sources(got)
        same_reply(got, plain_reply(target, prompt, 150))


def test_pinned_widths_draft_and_accept(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    target = load_target(tm.DENSE, n_ctx=512)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, DRAFTERS["agreeing"]))
    reply = run(session, target, text_prompt(models, tm.DENSE, 7, 20), request("adaspark", 8, n_predict=150))
    assert reply.statistics["accepted"] > 0
    assert max(reply.statistics["width_rounds"]) <= 8


def test_without_a_drafter_only_the_text_proposes(models: ModelFiles, load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_ctx=512)
    session = _engine.Session(target)
    once = plain_reply(target, text_prompt(models, tm.DENSE, 8, 20), 100)
    prompt = [*text_prompt(models, tm.DENSE, 8, 20), *once.tokens] * 2  # text that comes again
    got = run(session, target, prompt, request("adaspark", 8, n_predict=100))
    check_sources(got)
    assert got.statistics["rounds_draft"] == 0
    assert got.statistics["rounds_text"] > 0
    assert sum(got.statistics["sources"]["text"]["drafted_by_depth"]) == got.statistics["drafted"]
    same_reply(got, plain_reply(target, prompt, 100))


def test_text_is_never_taken_from_another_request(models: ModelFiles, load_target: LoadTarget) -> None:
    target = load_target(tm.DENSE, n_ctx=512)
    session = _engine.Session(target)
    first = text_prompt(models, tm.DENSE, 9, 60)
    second = [*text_prompt(models, tm.DENSE, 10, 8), *first[:3]]  # ends where the first request's text would go on
    fresh = run(_engine.Session(target), target, second, request("adaspark", 8, n_predict=1))
    run(session, target, first, request("adaspark", 8, n_predict=40))
    after = run(session, target, second, request("adaspark", 8, n_predict=1))
    assert after.tokens == fresh.tokens
    rounds = run(session, target, second, request("adaspark", 8, n_predict=2)).rounds
    assert rounds[0]["rows"] == 1, "nothing in this request's own text follows its last tokens"


@pytest.mark.parametrize("room", range(10))
def test_the_context_ends_exactly(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, room: int
) -> None:
    target = load_target(tm.DENSE, n_ctx=64)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, DRAFTERS["agreeing"]))
    prompt = text_prompt(models, tm.DENSE, 11, 64 - room)
    got = run(session, target, prompt, request("adaspark", 16, n_predict=-1))
    assert (len(got.tokens), got.finish_reason) == (room, "length")
    same_reply(got, plain_reply(target, prompt, -1))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9, 17])
def test_budgets_are_exact(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, n: int) -> None:
    target = load_target(tm.DENSE, n_ctx=256)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, DRAFTERS["agreeing"]))
    got = run(session, target, text_prompt(models, tm.DENSE, 12, 20), request("adaspark", 0, n_predict=n))
    assert (len(got.tokens), got.finish_reason) == (n, "length")


def test_a_seed_gives_the_plain_text(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    target = load_target(tm.DENSE, n_ctx=512)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, DRAFTERS["agreeing"]))
    prompt = text_prompt(models, tm.DENSE, 13, 20)
    fields = {"temperature": 0.8, "top_k": 40, "seed": 5}
    for pinned in (0, 8):
        got = run(session, target, prompt, request("adaspark", pinned, n_predict=120, **fields))
        same_reply(got, plain_reply(target, prompt, 120, **fields))


def test_hybrid_targets_are_refused(load_target: LoadTarget) -> None:
    session = _engine.Session(load_target(tm.HYBRID, kernels="llama"))
    with pytest.raises(ValueError, match="chains only"):
        session.begin([5, 6], request("adaspark"))


@pytest.mark.parametrize("pinned", [-1, 65])
def test_impossible_widths_are_refused(load_target: LoadTarget, pinned: int) -> None:
    session = _engine.Session(load_target(tm.DENSE))
    with pytest.raises(ValueError, match="1 to 64"):
        session.begin([5, 6], request("adaspark", pinned))
