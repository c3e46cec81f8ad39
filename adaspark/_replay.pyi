"""The loops over recorded rounds. ``adaspark.replay`` is the documented face of it."""

from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from adaspark._core import Scheduler

@final
class Rounds:
    """Recorded rounds taken apart. ``*_at`` (n + 1,) say where a round's part of the flat arrays begins."""

    header: NDArray[np.uint8]  # (n, 96)
    block_at: NDArray[np.int64]
    tokens: NDArray[np.int32]  # (sum of B * K,)
    logits: NDArray[np.float32]
    confidence_at: NDArray[np.int64]
    confidence: NDArray[np.float32]  # (sum of B,)
    tree_at: NDArray[np.int64]
    tree_tokens: NDArray[np.int32]  # (sum of rows,)
    tree_candidates: NDArray[np.int16]
    tree_parents: NDArray[np.int8]
    path_at: NDArray[np.int64]
    path: NDArray[np.uint8]  # (sum of accepted rows,)
    def __len__(self) -> int: ...
    def block(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        """Tokens, logits and confidence of a round's drafter block."""

def split(data: NDArray[np.uint8]) -> Rounds:
    """The rounds of a request's records. ValueError when they are not whole."""

def replay(
    scheduler: Scheduler,
    rounds: Rounds,
    room: NDArray[np.int32],
    next_token: NDArray[np.int32],
    last: NDArray[np.uint8],
    times: NDArray[np.float64],
) -> int:
    """Feed recorded rounds to a scheduler whose request has begun. ``times`` (n, 3): draft, verify, commit, microseconds.

    The first round whose decision or tree is not the recorded one, -1 when there is none.
    """

@final
class Plan:
    """What plans the rounds of a decode: a scheduler, or (None) a fixed arm of ``size`` drafts or rows."""

    def __init__(self, scheduler: Scheduler | None, chain: bool, size: int, stop_tokens: Iterable[int]) -> None: ...

def replay_fixed(plan: Plan, rounds: Rounds, room: NDArray[np.int32], left: NDArray[np.int32]) -> int:
    """The first round of a fixed arm whose tree is not the recorded one, or -1."""

def decode(
    plan: Plan,
    rounds: Rounds,
    block_of: NDArray[np.int64],
    prompt: NDArray[np.int32],
    text: NDArray[np.int32],
    max_rows: int,
    verify_us: NDArray[np.float64],
    grid: int,
    draft_us: NDArray[np.float64],
    commit_us: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Decode a known text under a plan at the prices of a cost law; columns over rounds (rounds, 7): position in the text,
    kind (0 plain, 1 text, 2 draft), rows, accepted drafts, microseconds, S, whether a block was wanted and not there."""
