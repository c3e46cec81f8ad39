"""Looking into what a scheduler has learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from adaspark import _core
from adaspark.config import MAX_BLOCK, MAX_ROWS, Arm

if TYPE_CHECKING:
    from adaspark.store import Row

CONTEXTS: Final = (128, 512, 2048, 8192)
"""Tokens at which prices are shown."""

TOP_K: Final = 8
"""K: candidates a drafter's position keeps (``engine/drafter.h``)."""


def core_config(arm: Arm, block: int, max_rows: int, top_k: int = TOP_K) -> _core.SchedulerConfig:
    """The scheduler a session makes for an arm (``Session::scheduler_make``). ``block``: 0 without a drafter."""
    config = _core.SchedulerConfig()
    config.block, config.top_k, config.max_rows, config.pinned_rows = block, top_k, max_rows, arm.n
    config.text, config.acceptance, config.gating = arm.text, arm.acceptance, arm.gating
    return config


def describe_state(row: Row) -> dict[str, Any] | None:
    """Prices and estimates of a stored state; None when this build cannot read it."""
    block, max_rows = row.identity.get("block"), row.identity.get("max_rows")
    if (
        type(block) is not int
        or type(max_rows) is not int
        or not (0 <= block <= MAX_BLOCK and 1 <= max_rows <= MAX_ROWS)
    ):
        return None
    config = core_config(Arm("adaspark"), block, max_rows)
    scheduler = _core.Scheduler(config, np.empty(0, np.int32))
    if not scheduler.load(row.state):
        return None
    prices = [scheduler.prices_at(context) for context in CONTEXTS]
    acceptance = scheduler.acceptance
    return {
        "contexts": list(CONTEXTS),
        "widths": [
            {"rows": rows, "samples": prices[0]["samples"][i], "us": [at["us"][i] for at in prices]}
            for i, rows in enumerate(prices[0]["rows"])
        ],
        "draft_us": prices[0]["draft_us"],
        "commit_us": list(prices[0]["commit_us"]),
        "fitted_loss": acceptance["guard_fitted"],
        "head_loss": acceptance["guard_head"],
        "weights": [float(weight) for weight in acceptance["weights"]],
        "incumbent": scheduler.incumbent,
    }
