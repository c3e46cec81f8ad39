"""DSpark drafter (csrc/engine/drafter): a context smaller than the text, and its life beside its target."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference
import tiny_models as tm
from conftest import LoadDrafter, LoadTarget, ModelFiles
from drafter_tools import BASE, NOISE, check_block
from engine_tools import request, run, text_prompt
from session_tools import plain_reply, same_reply
from test_target import random_tokens

from adaspark import _engine


@pytest.mark.parametrize("window", [1, 16, 64, 200])
def test_a_smaller_context_slides(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter, window: int
) -> None:
    """S06: the text runs far past the drafter's memory; nothing fails and the drafter goes on being useful."""
    prompt = text_prompt(models, tm.CYCLE, 88, 150)
    layout = tm.DrafterSpec(taps=(0, 1, 2))
    target = load_target(tm.CYCLE)
    plain = plain_reply(target, prompt, 400)
    reference.assert_decisive(models.target(tm.CYCLE), prompt, plain.tokens)
    session = _engine.Session(target, load_drafter(target, tm.CYCLE, layout, n_ctx=window))
    reply = run(session, target, prompt, request("chain", 7, n_predict=400))
    same_reply(reply, plain)
    late = reply.rounds[len(reply.rounds) // 2 :]
    assert sum(r["accepted"] for r in late) > 0.5 * sum(r["drafted"] for r in late)


def test_a_window_that_has_not_filled_changes_nothing(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE, n_ctx=64)
    committed = random_tokens(89, 64)
    target.prefill(committed)
    check_block(tiny, drafter.draft(9, 7), committed, 9, 7)


def test_a_window_that_slid_drafts_from_recent_text_only(
    models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter
) -> None:
    """Some number of recent positions explains the block exactly: nothing older, nothing missing, right positions."""
    tiny = models.drafter(tm.DENSE, BASE)
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE, n_ctx=48)
    committed = random_tokens(90, 170)
    target.prefill(committed)
    ids, values, _ = drafter.draft(9, 1)
    inputs = reference.forward(tiny.target, committed).layer_inputs
    errors = []
    for window in range(8, 58):
        block = reference.draft_block(tiny, committed, 9, 1, window=window, inputs=inputs)
        errors.append(float(np.abs(block.all_values[0, ids[0]] - values[0]).max()))
    assert min(errors) < NOISE
    assert 12 <= 8 + int(np.argmin(errors)) <= 48 + BASE.block_size


def test_rolling_back_over_a_window(models: ModelFiles, load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    """A request whose common prefix lies before what the drafter still remembers is answered all the same."""
    target = load_target(tm.DENSE)
    session = _engine.Session(target, load_drafter(target, tm.DENSE, BASE, n_ctx=32))
    prompt = text_prompt(models, tm.DENSE, 91, 200)
    run(session, target, prompt, request("chain", 7, n_predict=50))
    for keep in (150, 20, 199):
        other = prompt[:keep] + text_prompt(models, tm.DENSE, 201 + keep, 10)
        reply = run(session, target, other, request("chain", 7, n_predict=40))
        target.clear()
        plain = plain_reply(target, other, 40)
        same_reply(reply, plain)
        reference.assert_decisive(models.target(tm.DENSE), other, plain.tokens)
        assert reply.statistics["drafted"] > 0


def test_one_drafter_at_a_time(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    target = load_target(tm.DENSE)
    first = load_drafter(target, tm.DENSE, BASE)
    with pytest.raises((ValueError, _engine.AdaSparkError), match="drafter"):
        load_drafter(target, tm.DENSE, dataclasses.replace(BASE, seed=127))
    target.prefill([5, 6, 7])
    assert first.draft(8, 3)[0].shape == (3, 8)


def test_a_drafter_of_a_closed_target(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    target = load_target(tm.DENSE)
    drafter = load_drafter(target, tm.DENSE, BASE)
    session = _engine.Session(target, drafter)
    target.prefill([5, 6, 7])
    target.close()
    with pytest.raises(_engine.BackendError):
        drafter.draft(8, 3)
    with pytest.raises(_engine.BackendError):
        session.begin([5, 6, 7], request("chain", 3))


def test_a_drafter_loaded_late_must_be_shown_the_text(load_target: LoadTarget, load_drafter: LoadDrafter) -> None:
    """Tokens committed before the drafter came are unknown to it: it says so and does not guess."""
    target = load_target(tm.DENSE)
    target.prefill([5, 6, 7])
    drafter = load_drafter(target, tm.DENSE, BASE)
    with pytest.raises((ValueError, RuntimeError, _engine.AdaSparkError), match="3"):
        drafter.draft(8, 3)
    reply = run(_engine.Session(target, drafter), target, [5, 6, 7, 8], request("chain", 3, n_predict=20))
    assert reply.statistics["drafted"] > 0
