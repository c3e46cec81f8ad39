"""csrc/core/tree: Proposition 1, Corollary 4 and the depth-first layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaspark import _core

COARSE = st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.9, 1.0])


@st.composite
def trees(draw: st.DrawFn, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(1, most))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    q = draw(st.lists(st.one_of(COARSE, st.floats(0, 1, width=32)), min_size=n, max_size=n))
    return np.array(parents, np.int32), np.array(q, np.float32)


def path_products(parents: np.ndarray, q: np.ndarray) -> np.ndarray:
    out = np.empty_like(q)
    for i, p in enumerate(parents):
        out[i] = q[i] if p < 0 else out[p] * q[i]
    return out


@given(trees(most=319), st.integers(0, 70))
def test_order_is_by_decreasing_path_probability_ties_to_the_lower_index(tree, limit):
    parents, q = tree
    order, path_q = _core.order_best_first(parents, q, limit)
    want = path_products(parents, q)
    assert np.array_equal(path_q, want)
    ranked = sorted((i for i in range(len(q)) if want[i] > 0), key=lambda i: (-want[i], i))
    assert order.tolist() == ranked[:limit]


@given(trees())
def test_every_prefix_is_a_tree(tree):
    order, _ = _core.order_best_first(*tree, 63)
    placed = {-1}
    for i in order.tolist():
        assert tree[0][i] in placed
        placed.add(i)


def best_tree_sum(parents: np.ndarray, path_q: np.ndarray, size: int) -> float:
    """The largest sum of Q over trees of at most ``size`` nodes, by trying all of them."""
    best = 0.0

    def grow(chosen: frozenset[int], total: float, start: int) -> None:
        nonlocal best
        best = max(best, total)
        if len(chosen) == size:
            return
        for i in range(start, len(parents)):
            if parents[i] < 0 or int(parents[i]) in chosen:
                grow(chosen | {i}, total + float(path_q[i]), i + 1)

    grow(frozenset(), 0.0, 0)
    return best


@given(trees(most=9), st.integers(1, 9))
def test_proposition_1_no_tree_of_the_same_size_has_a_larger_sum(tree, size):
    order, path_q = _core.order_best_first(*tree, size)
    assert float(path_q[order].astype(float).sum()) == pytest.approx(best_tree_sum(tree[0], path_q, size), abs=1e-6)


@given(trees(most=9), st.lists(st.booleans(), min_size=9, max_size=9), st.integers(1, 9))
def test_corollary_4_the_merged_order_is_no_worse_than_any_tree_of_the_drafter_alone(tree, from_drafter, size):
    parents, q = tree
    # A drafter candidate hangs from drafter candidates only.
    mine: list[int] = []
    for i, p in enumerate(parents):
        if from_drafter[i] and (p < 0 or int(p) in mine):
            mine.append(i)
    order, path_q = _core.order_best_first(parents, q, size)
    renumber = {old: new for new, old in enumerate(mine)}
    drafter = np.array([-1 if parents[i] < 0 else renumber[int(parents[i])] for i in mine], np.int32)
    alone = best_tree_sum(drafter, path_q[mine], size) if mine else 0.0
    assert float(path_q[order].astype(float).sum()) >= alone - 1e-6


@given(trees(), st.integers(1, 64))
def test_layout_is_depth_first_with_children_by_rank(tree, rows):
    parents, q = tree
    tokens = np.arange(100, 100 + len(q), dtype=np.int32)
    order, _ = _core.order_best_first(parents, q, rows - 1)
    t = _core.layout_depth_first(7, tokens, parents, q, rows)
    rank = {int(c): r for r, c in enumerate(order)}
    children: dict[int, list[int]] = {}
    for c in order.tolist():
        children.setdefault(int(parents[c]), []).append(c)
    want: list[int] = []

    def visit(node: int) -> None:
        for c in sorted(children.get(node, []), key=rank.__getitem__):
            want.append(c)
            visit(c)

    visit(-1)
    assert t["candidates"].tolist() == [-1, *want]
    assert t["tokens"].tolist() == [7, *(100 + c for c in want)]
    assert t["ranks"].tolist() == [-1, *(rank[c] for c in want)]
    for row in range(1, len(want) + 1):
        above = int(t["parents"][row])
        assert above < row
        assert t["candidates"][above] == parents[t["candidates"][row]]
        assert t["depths"][row] == t["depths"][above] + 1
        assert int(t["ancestors"][row]) == int(t["ancestors"][above]) | 1 << row
    assert t["parents"][0] == -1
    assert t["ancestors"][0] == 1


def test_a_hand_made_round():
    #        anchor
    #       /      \
    #   0: 0.8     1: 0.15
    #   /    \
    # 2: .9  3: .05
    parents = np.array([-1, -1, 0, 0], np.int32)
    q = np.array([0.8, 0.15, 0.9, 0.05], np.float32)
    order, _ = _core.order_best_first(parents, q, 4)
    assert order.tolist() == [0, 2, 1, 3]
    t = _core.layout_depth_first(9, np.array([10, 11, 12, 13], np.int32), parents, q, 4)
    assert t["tokens"].tolist() == [9, 10, 12, 11]
    assert t["parents"].tolist() == [-1, 0, 1, 0]


def test_malformed_candidates_are_refused():
    with pytest.raises(ValueError, match="precede"):
        _core.order_best_first(np.array([0], np.int32), np.array([0.5], np.float32), 1)
    with pytest.raises(ValueError, match="q must be"):
        _core.order_best_first(np.array([-1], np.int32), np.array([1.5], np.float32), 1)
