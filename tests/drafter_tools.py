"""A drafter's blocks against the definition, and the layouts of its file."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import tiny_models as tm
from engine_tools import on_gpu
from numpy.typing import NDArray

BASE = tm.DrafterSpec()
LAYOUTS = {
    "shares the target's head": BASE,
    "own head": tm.DrafterSpec(seed=111, own_head=True),
    "own embedding and head": tm.DrafterSpec(seed=112, own_head=True, own_embedding=True),
    "reduced vocabulary": tm.DrafterSpec(seed=113, reduced=100),
    "tiny vocabulary": tm.DrafterSpec(seed=114, reduced=5),
    "anchor only conditions": tm.DrafterSpec(seed=115, sample_from_anchor=False, block_size=8),
    "anchor only conditions, reduced": tm.DrafterSpec(seed=116, sample_from_anchor=False, block_size=6, reduced=80),
    "no confidence head": tm.DrafterSpec(seed=117, confidence=False),
    "no confidence head, reduced": tm.DrafterSpec(seed=118, confidence=False, reduced=100),
    "one layer, one tap": tm.DrafterSpec(seed=119, n_layer=1, taps=(2,), block_size=4),
    "first block tapped, out of order": tm.DrafterSpec(seed=120, taps=(3, 0)),
    "a block of 16": tm.DrafterSpec(seed=121, block_size=16),
}
# An F16 cache is the drafter's default: entries are rounded to 11 bits on the way.
NOISE = 0.03 if not on_gpu() else 0.06
Draft = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]


def check_block(
    drafter: tm.TinyDrafter, got: Draft, committed: list[int], anchor: int, n: int, noise: float = NOISE,
    taps: tuple[int, ...] | None = None,
) -> None:  # fmt: skip
    """The ids may swap where two values are closer than the noise; the values at every place may not differ."""
    expected = reference.draft_block(drafter, committed, anchor, n, taps=taps)
    ids, values, confidence = got
    assert ids.shape == values.shape == (n, 8)
    assert confidence.shape == (n,)
    known = min(8, len(drafter.d2t))
    assert (ids[:, known:] == -1).all()
    assert (ids[:, :known] >= 0).all()
    place = {int(token): i for i, token in enumerate(drafter.d2t)}
    for i in range(n):
        assert len(set(ids[i, :known].tolist())) == known
        of_these = expected.all_values[i, [place[t] for t in ids[i, :known].tolist()]]
        np.testing.assert_allclose(values[i, :known], of_these, atol=noise)
        np.testing.assert_allclose(values[i, :known], expected.values[i, :known], atol=noise)
        assert (np.diff(values[i, :known]) <= 0).all()
        if ids[i, 0] != expected.ids[i, 0]:  # a near tie: the chain below hangs on another token
            assert expected.values[i, 0] - expected.values[i, 1] < noise
            return
        assert confidence[i] == pytest.approx(expected.confidence[i], abs=noise)
