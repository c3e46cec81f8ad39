"""Drives `_core.Scheduler` through rounds with a random drafter and a random target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from core.oracle import Block

from adaspark import _core


def make_scheduler(*, stop_tokens: Iterable[int] = (), **settings: Any) -> _core.Scheduler:
    config = _core.SchedulerConfig()
    for name, value in settings.items():
        setattr(config, name, value)
    return _core.Scheduler(config, np.array(list(stop_tokens), np.int32))


def random_block(rng: np.random.Generator, positions: int, vocabulary: int) -> Block:
    """Distinct tokens a position, as float32 numbers throughout."""
    tokens, values, confidence = [], [], []
    for _ in range(positions):
        tokens.append(
            rng.choice(vocabulary, 8, replace=False).tolist() if vocabulary >= 8 else rng.permutation(8).tolist()
        )
        v = np.sort((rng.standard_normal(8) * 2).astype(np.float32))[::-1]
        values.append([float(x) for x in v])
        confidence.append(float(np.float32(rng.beta(2, 1.5))))
    return Block(tokens, values, confidence)


@dataclass
class Round:
    decision: tuple[bool, bool, float, float]
    tree: Any
    report: dict[str, Any]
    candidates: dict[str, Any]
    path: list[int]
    next_token: int


def run_round(
    core: _core.Scheduler,
    rng: np.random.Generator,
    block: Block | None,
    truth: Callable[[int], int] | None = None,
    verify_us: Callable[[int], float] = lambda rows: 10_000.0 + 300.0 * rows,
    draft_us: float = 5000.0,
    last: bool = False,
) -> Round:
    """One round. ``truth(i)``: lane of the target's token at block position i, 8 = none of them; by default random."""
    decision = core.decide(0)
    if decision[0] and block is not None:
        tree = core.plan_block(
            np.array(block.tokens, np.int32).reshape(-1),
            np.array(block.values, np.float32).reshape(-1),
            np.array(block.confidence, np.float32),
        )
    else:
        tree = core.plan()
    report, candidates = core.report, core.candidates
    path = [0]
    token = -1
    while True:
        at = int(tree["candidates"][path[-1]])
        children = np.flatnonzero(candidates["parents"] == at)
        known = [int(candidates["tokens"][c]) for c in children]
        if truth is not None:
            drafter = [c for c in children if c < 8 * candidates["positions"]]
            lane = truth(int(drafter[0]) // 8) if drafter else 8
            token = int(candidates["tokens"][drafter[lane]]) if lane < len(drafter) else 900_000
        elif known and rng.random() < 0.8:
            token = known[int(rng.integers(len(known)) * (rng.random() < 0.6))]
        else:
            token = int(rng.integers(0, 8))
        below = [
            r
            for r in range(path[-1] + 1, len(tree["tokens"]))
            if tree["parents"][r] == path[-1] and tree["tokens"][r] == token
        ]
        if not below:
            break
        path.append(below[0])
    rows = len(tree["tokens"])
    core.observe(
        np.array(path, np.int32), token, draft_us if report["kind"] == "draft" else 1.0, verify_us(rows), 50.0, last
    )
    return Round(decision, tree, report, candidates, path, token)
