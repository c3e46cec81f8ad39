"""The scheduler on its own: drive AdaSpark's decisions from any engine that can draft a block and verify a tree.

>>> scheduler = Scheduler(block=7)
>>> scheduler.begin_request(prompt, first_token)
>>> while not done:
...     decision = scheduler.decide()
...     block = drafter.block() if decision.draft else None
...     tree = scheduler.plan(block)
...     path, next_token = verify(tree)  # rows accepted, from row 0 down one branch
...     scheduler.observe(path, next_token, RoundTimes(draft_us, verify_us, commit_us))
>>> scheduler.end_request()

Shapes: B positions of a drafter block, K candidates a position, n rows of a tree. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaspark import _core

__all__ = ["Block", "Decision", "RoundTimes", "Scheduler", "Tree"]


class Block(NamedTuple):
    """What the drafter proposed for the B positions after the anchor.

    Attributes
    ----------
    tokens : (B, K) integer array
        Token ids. Column 0 is the drafter's pick, the others its siblings; an id below 0 is an empty column.
    logits : (B, K) float array
        Their logits after the Markov head (natural logarithm, any offset per position), largest first.
    confidence : (B,) float array
        The confidence head, in [0, 1]: P(pick accepted | the picks before it were).
    """

    tokens: ArrayLike
    logits: ArrayLike
    confidence: ArrayLike


class Decision(NamedTuple):
    """What to do before the drafter runs.

    Attributes
    ----------
    draft : bool
        Run the drafter and hand its block to ``plan``.
    probing : bool
        It runs against its prediction, to notice when it starts to pay.
    value_text : float
        Tokens by which the best round without drafting beats decoding at the long-run rate.
    enough : float
        Drafting may stop where the confidences so far multiply to less: no row below pays. 0: never.
    """

    draft: bool
    probing: bool
    value_text: float
    enough: float


class Tree(NamedTuple):
    """The rows of one verify, depth-first; row 0 is the anchor.

    Attributes
    ----------
    tokens : (n,) int32
        Token id of each row.
    parents : (n,) int32
        Parent row, less than the row; -1 for the anchor.
    depths : (n,) int32
        Rows below the anchor.
    ancestors : (n,) uint64
        Bit r is set where row r is the row itself or above it: the attention mask among the tree's rows.
    candidates : (n,) int32
        Index of the candidate that took the row; -1 for the anchor.
    ranks : (n,) int32
        Place in the best-first order, from 0; -1 for the anchor.
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]
    ancestors: NDArray[np.uint64]
    candidates: NDArray[np.int32]
    ranks: NDArray[np.int32]


class RoundTimes(NamedTuple):
    """Wall-clock microseconds of one round. 0 = not measured.

    Attributes
    ----------
    draft : float
        From before the drafter's forward to just before the verify. Ignored by the cost model in rounds without a block.
    verify : float
        The verify: forward, reading the argmaxes, walking the tree.
    commit : float
        After it: compacting the cache, feeding the drafter.
    """

    draft: float
    verify: float
    commit: float = 0.0


@dataclass(frozen=True)
class _Limits:
    block: tuple[int, int] = (0, 32)
    top_k: tuple[int, int] = (1, 8)
    max_rows: tuple[int, int] = (1, 64)


class Scheduler:
    """Decides each round whether to draft and which tree to verify, and learns from the outcome.

    Parameters
    ----------
    block : int
        B, positions a drafter block has, in [0, 32]. 0: there is no drafter.
    top_k : int
        K, candidates a position, in [1, 8].
    max_rows : int
        Widest verify the engine can run, in [1, 64], the anchor included.
    pinned_rows : int
        Above 0: every tree has this many rows (1: plain decoding) and no width is chosen.
    stop_tokens : iterable of int
        Ids that end a reply; they never take a row. At most 16.
    gating, text, acceptance, offset, exploration, law, rate, gains, margin, siblings : bool
        Mechanisms that can be switched off alone. ``gating=False`` drafts every round, ``siblings=False`` keeps to the
        drafter's picks (a chain); the others name a part of the model.

    Notes
    -----
    Not thread-safe. An empty scheduler learns while it serves; ``save``/``load`` carry that on bit for bit.
    """

    def __init__(
        self,
        *,
        block: int = 7,
        top_k: int = 8,
        max_rows: int = 64,
        pinned_rows: int = 0,
        stop_tokens: Iterable[int] = (),
        gating: bool = True,
        text: bool = True,
        acceptance: bool = True,
        offset: bool = True,
        exploration: bool = True,
        law: bool = True,
        rate: bool = True,
        gains: bool = True,
        margin: bool = True,
        siblings: bool = True,
    ) -> None:
        limits = _Limits()
        for name, value, (low, high) in (
            ("block", block, limits.block),
            ("top_k", top_k, limits.top_k),
            ("max_rows", max_rows, limits.max_rows),
            ("pinned_rows", pinned_rows, (0, max_rows)),
        ):
            if not low <= value <= high:
                msg = f"{name} must be in [{low}, {high}], not {value}"
                raise ValueError(msg)
        config = _core.SchedulerConfig()
        config.block, config.top_k, config.max_rows, config.pinned_rows = block, top_k, max_rows, pinned_rows
        config.gating, config.text, config.acceptance, config.offset = gating, text, acceptance, offset
        config.exploration, config.law, config.rate, config.gains = exploration, law, rate, gains
        config.margin, config.siblings = margin, siblings
        stops = np.fromiter(stop_tokens, dtype=np.int32)
        if stops.size > 16:
            msg = f"at most 16 stop tokens, not {stops.size}"
            raise ValueError(msg)
        self._core = _core.Scheduler(config, stops)
        self._block, self._top_k = block, top_k
        self._phase = "idle"
        self._tree: Tree | None = None

    def _expect(self, *phases: str) -> None:
        if self._phase not in phases:
            msg = f"called out of order: the scheduler is {self._phase}, not {' or '.join(phases)}"
            raise RuntimeError(msg)

    def begin_request(self, prompt: ArrayLike, first_token: int, reply_tokens: int = 8192) -> None:
        """Start a request.

        Parameters
        ----------
        prompt : (m,) integer array
            Every token in the target's cache.
        first_token : int
            The target's token after the prompt: the first anchor.
        reply_tokens : int
            How much longer the text may grow; text beyond it is not indexed.
        """
        tokens = np.ascontiguousarray(prompt, dtype=np.int32)
        if tokens.ndim != 1:
            msg = f"prompt must have one dimension, not {tokens.ndim}"
            raise ValueError(msg)
        if reply_tokens < 0:
            msg = f"reply_tokens must not be negative: {reply_tokens}"
            raise ValueError(msg)
        self._core.begin_request(tokens, first_token, reply_tokens)
        self._phase = "between rounds"

    def decide(self, max_rows: int = 0) -> Decision:
        """Start a round. ``max_rows`` above 0 caps its rows (room left in the cache or the reply)."""
        self._expect("between rounds")
        decision = Decision(*self._core.decide(max_rows))
        self._phase = "deciding"
        return decision

    def plan(self, block: Block | None = None) -> Tree:
        """The tree to verify this round; ``block`` is what the drafter proposed, None where it did not run."""
        self._expect("deciding")
        if block is None:
            r = self._core.plan()
        else:
            tokens = np.ascontiguousarray(block.tokens, dtype=np.int32)
            logits = np.ascontiguousarray(block.logits, dtype=np.float32)
            confidence = np.ascontiguousarray(block.confidence, dtype=np.float32)
            positions = confidence.size
            if confidence.ndim != 1 or not 1 <= positions <= self._block:
                msg = f"confidence must be (B,) with 1 <= B <= {self._block}, not {confidence.shape}"
                raise ValueError(msg)
            for name, shape in (("tokens", tokens.shape), ("logits", logits.shape)):
                if shape != (positions, self._top_k):
                    msg = f"{name} must have shape {(positions, self._top_k)}, not {shape}"
                    raise ValueError(msg)
            r = self._core.plan_block(tokens.reshape(-1), logits.reshape(-1), confidence)
        self._phase = "verifying"
        self._tree = Tree(r["tokens"], r["parents"], r["depths"], r["ancestors"], r["candidates"], r["ranks"])
        return self._tree

    def observe(self, path: ArrayLike, next_token: int, times: RoundTimes, *, last: bool = False) -> None:
        """Learn from the round.

        Parameters
        ----------
        path : (p,) integer array
            Accepted rows of the tree: row 0, then one branch downwards.
        next_token : int
            The target's token after the path: the next round's anchor.
        times : RoundTimes
            Microseconds.
        last : bool
            The reply ends with this round.
        """
        self._expect("verifying")
        rows = np.ascontiguousarray(path, dtype=np.int32)
        parents = self._tree.parents if self._tree is not None else np.empty(0, np.int32)
        if rows.ndim != 1 or rows.size == 0 or rows[0] != 0 or rows.min() < 0 or rows.max() >= parents.size:
            msg = "path must be rows of the tree, starting at row 0"
            raise ValueError(msg)
        if not np.array_equal(parents[rows[1:]], rows[:-1]):
            msg = "path must go down one branch: each row's parent is the row before it"
            raise ValueError(msg)
        self._core.observe(rows, next_token, times.draft, times.verify, times.commit, last)
        self._phase = "between rounds"

    def end_request(self) -> None:
        """Refit the cost laws. Call once after a request's last ``observe``; takes well under a millisecond."""
        self._expect("between rounds")
        self._core.end_request()
        self._phase = "idle"

    def save(self) -> bytes:
        """What was learned, as versioned bytes. A request in progress is not part of it."""
        return self._core.save()

    def load(self, state: bytes) -> None:
        """Restore what ``save`` returned; ValueError where it does not fit this scheduler or is damaged."""
        if not self._core.load(state):
            msg = "the saved state is damaged, of another version or of another configuration"
            raise ValueError(msg)
        self._phase = "idle"

    @property
    def report(self) -> dict[str, Any]:
        """The last plan: kind ("plain", "text", "draft"), reason of its width, expected tokens, prices in microseconds."""
        return self._core.report

    @property
    def widths(self) -> list[dict[str, Any]]:
        """Learned widths, ascending: ``low``, ``high`` (rows), ``samples``, ``us`` (price at the last context)."""
        return self._core.widths

    @property
    def rate(self) -> float:
        """Long-run tokens per microsecond of the context band, at the machine speed its laws know; 0 while unknown."""
        return self._core.rate
