"""adaspark.scheduler: the numpy face of the scheduler."""

from __future__ import annotations

import numpy as np
import pytest

from adaspark.scheduler import Block, RoundTimes, Scheduler


def block(rng: np.random.Generator, positions: int = 7, k: int = 8) -> Block:
    logits = -np.sort(-rng.standard_normal((positions, k)), axis=1)
    return Block(rng.integers(0, 100, (positions, k)), logits, rng.random(positions))


def test_a_request_from_start_to_end():
    rng = np.random.default_rng(0)
    s = Scheduler(block=7, stop_tokens=[2])
    s.begin_request(list(range(50)), first_token=7)
    drafted = 0
    for i in range(60):
        d = s.decide()
        drafted += d.draft
        tree = s.plan(block(rng) if d.draft else None)
        n = tree.tokens.size
        assert tree.tokens[0] == (7 if i == 0 else 5)
        assert tree.parents.dtype == np.int32
        assert tree.ancestors.dtype == np.uint64
        path = [0, 1] if n > 1 and rng.random() < 0.5 else [0]
        s.observe(path, 5, RoundTimes(4000.0, 9000.0 + 100.0 * n, 20.0), last=i == 59)
    s.end_request()
    assert drafted > 3
    assert s.report["kind"] in ("plain", "text", "draft")
    assert [w["high"] for w in s.widths][:3] == [1, 2, 4]
    other = Scheduler(block=7)
    other.load(s.save())
    assert other.save() == s.save()


@pytest.mark.parametrize("k", [1, 3, 8])
def test_fewer_candidates_a_position(k):
    rng = np.random.default_rng(1)
    s = Scheduler(block=4, top_k=k, pinned_rows=60, text=False)
    s.begin_request([1, 2, 3], 4)
    s.decide()
    tree = s.plan(block(rng, 4, k))
    assert tree.tokens.size == 1 + 4 * k


def test_empty_columns_take_no_row():
    rng = np.random.default_rng(2)
    b = block(rng, 3)
    tokens = np.array(b.tokens)
    logits = np.array(b.logits)
    tokens[:, 5:] = -1
    logits[:, 5:] = np.nan
    s = Scheduler(block=3, pinned_rows=64, text=False)
    s.begin_request([1, 2, 3], 4)
    s.decide()
    tree = s.plan(Block(tokens, logits, b.confidence))
    assert tree.tokens.size == 1 + 3 * 5
    assert (tree.tokens >= 0).all()


def test_calls_out_of_order_and_malformed_arguments_are_refused():
    rng = np.random.default_rng(3)
    s = Scheduler(pinned_rows=8)
    with pytest.raises(RuntimeError, match="idle"):
        s.decide()
    s.begin_request([1, 2, 3], 4)
    with pytest.raises(RuntimeError, match="between rounds"):
        s.plan()
    s.decide()
    with pytest.raises(ValueError, match="confidence"):
        s.plan(Block(np.zeros((9, 8)), np.zeros((9, 8)), np.zeros(9)))
    with pytest.raises(ValueError, match="tokens must have shape"):
        s.plan(Block(np.zeros((7, 4)), np.zeros((7, 8)), np.zeros(7)))
    s.plan(block(rng))
    times = RoundTimes(1.0, 2.0)
    for path in ([], [1], [0, 99], [0, -1], [0, 0], [[0]]):
        with pytest.raises(ValueError, match="path"):
            s.observe(path, 1, times)
    s.observe([0], 1, times)


@pytest.mark.parametrize(
    "settings",
    [{"block": 33}, {"block": -1}, {"top_k": 0}, {"top_k": 9}, {"max_rows": 0}, {"max_rows": 65}, {"pinned_rows": 65}],
)
def test_settings_out_of_range(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        Scheduler(**settings)


def test_a_state_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="saved state"):
        Scheduler(block=7).load(Scheduler(block=9).save())
