"""csrc/core/suffix_index and candidates: section 3.3, "N-gram candidates"."""

from __future__ import annotations

import numpy as np
import pytest
from core.oracle import Text
from hypothesis import given, settings
from hypothesis import strategies as st

from adaspark import _core

# Few distinct tokens, so that everything repeats.
TEXTS = st.one_of(
    st.lists(st.integers(0, 3), max_size=150),
    st.lists(st.integers(0, 12), max_size=150),
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(1, 8)).map(lambda t: t[0] * t[1]),
)


@st.composite
def copies_of_copies(draw: st.DrawFn) -> list[int]:
    """Passages copied from anywhere in the text so far, often more often than matches are compared."""
    # No runs of one token: past 32 entries of one bucket, which another key's run can fill, the index gives up.
    text = list(range(40))
    for start, length in draw(st.lists(st.tuples(st.integers(0, 900), st.integers(4, 90)), max_size=16)):
        at = start % len(text)
        text += text[at : at + length]
        text += draw(st.lists(st.integers(0, 2), max_size=1))
    return text[:900]


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def both(tokens: list[int]) -> tuple[_core.SuffixIndex, Text]:
    core, plain = _core.SuffixIndex(1024), Text()
    core.extend(ints(tokens))
    for t in tokens:
        plain.append(t)
    return core, plain


@given(TEXTS, st.lists(st.integers(0, 9), max_size=10))
def test_proposals_match_a_scan_of_the_text(tokens, more):
    core, plain = both(tokens)
    for context in (tokens, tokens[-70:] + more, more):
        token, slot, length, _ = plain.propose(context)
        got = core.propose(ints(context))
        assert got[1:] == (slot, length)
        if slot >= 0:
            assert got[0] == token


@given(TEXTS)
def test_precision_matches_a_count(tokens):
    core, plain = both(tokens)
    assert core.precision().tolist() == pytest.approx([plain.precision(s) for s in range(4)], abs=1e-12)


@settings(max_examples=50, deadline=None)
@given(copies_of_copies())
def test_a_followed_copy_is_the_longest_of_the_latest(tokens):
    # What is proposed for a token follows from what was proposed for the one before: the counts tell them apart.
    core, plain = both(tokens)
    assert core.precision().tolist() == pytest.approx([plain.precision(s) for s in range(4)], abs=1e-12)


@settings(max_examples=200)
@given(TEXTS, st.integers(0, 9), st.integers(1, 32))
def test_anchor_chains_match(tokens, anchor, depth):
    core, plain = both(tokens)
    got = core.chain(anchor, depth)
    want = plain.steps([*tokens[-64:], anchor], depth, set())
    assert list(zip(got[0].tolist(), got[1].tolist(), strict=True)) == want


def test_a_chain_starts_with_a_follower_and_turns_into_a_copy():
    core, _ = both([1, 2, 3, 500, 501, 502, 503, 1, 2])
    tokens, slots = core.chain(3, 32)
    assert tokens[:4].tolist() == [500, 501, 502, 503]
    assert slots[:2].tolist() == [0, 2]


def test_the_longest_match_wins_and_then_the_latest():
    core, _ = both([9, 1, 2, 3, 4, 70, 8, 1, 2, 3, 4, 71, 7, 1, 2, 3, 4, 72])
    assert core.propose(ints([9, 1, 2, 3, 4]))[0] == 70  # five tokens match
    assert core.propose(ints([5, 1, 2, 3, 4]))[0] == 72  # four match everywhere


def test_a_fifth_follower_is_ignored():
    tokens: list[int] = []
    for i, follower in enumerate([11, 12, 13, 14, 15, 15, 15]):
        tokens += [100 + i, 1, 2, 3, follower]
    core, _ = both(tokens)
    assert core.propose(ints([1, 2, 3]))[0] == 11


def test_text_beyond_the_capacity_is_left_out():
    core = _core.SuffixIndex(64)
    core.extend(ints(list(range(200))))
    assert len(core) == 64
    assert core.propose(ints([70, 71, 72, 73]))[1] == -1


def test_a_new_request_forgets_the_text():
    core, _ = both([1, 2, 3, 4, 5, 1, 2, 3, 4])
    assert core.propose(ints([1, 2, 3, 4]))[0] == 5
    core.begin(100)
    assert core.propose(ints([1, 2, 3, 4]))[1] == -1
    assert core.precision().tolist() == [0.5] * 4


@pytest.mark.parametrize("distinct", [70_000])
def test_more_contexts_than_the_table_holds(distinct):
    core = _core.SuffixIndex(distinct + 10)
    core.extend(np.arange(distinct, dtype=np.int32))
    assert core.propose(ints([0, 1, 2]))[0] == 3
    assert core.propose(ints([69_000, 69_001, 69_002]))[1] == -1  # 65,536 contexts were taken before
    assert core.propose(ints([69_000, 69_001, 69_002, 69_003]))[0] == 69_004  # copies are not bounded
