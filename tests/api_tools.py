"""What tests of ``adaspark.Engine`` share: a pair, its options, and what holds for every reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tiny_models as tm

from adaspark import Result

SPEC, DRAFTER = tm.DENSE, tm.DrafterSpec()
PROMPT = "the thin end of it"
QUIET: dict[str, Any] = {"n_threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}


def check(result: Result) -> None:
    """What holds for every reply."""
    drafts, times = result.speculation, result.timings
    assert len(result.token_ids) == result.completion_tokens
    assert 0 <= drafts.accepted <= drafts.drafted
    assert drafts.rows == drafts.rounds + drafts.drafted
    assert sum(drafts.drafted_by_depth) == drafts.drafted
    assert sum(drafts.accepted_by_depth) == drafts.accepted
    assert sum(drafts.width_rounds.values()) == drafts.rounds
    assert sum(width * rounds for width, rounds in drafts.width_rounds.items()) == drafts.rows
    if result.completion_tokens and result.finish_reason == "length":
        # one token from the prefill, one a round, and the accepted drafts
        assert 1 + drafts.rounds + drafts.accepted == result.completion_tokens
    assert sum(source.drafted for source in drafts.sources.values()) == drafts.drafted
    assert sum(source.accepted for source in drafts.sources.values()) == drafts.accepted
    for source in drafts.sources.values():
        assert (sum(source.drafted_by_depth), sum(source.accepted_by_depth)) == (source.drafted, source.accepted)
    assert sum(drafts.width_shares.values()) == pytest.approx(1.0 if drafts.rounds else 0.0)
    assert (drafts.learning is not None) == result.arm.startswith(("adaspark", "cost"))
    if not drafts.active:
        assert drafts.reason
        assert drafts.drafted == 0
    assert all(value is None or value >= 0 for value in json.loads(json.dumps(result.to_dict()["timings"])).values())
    assert (times.decode_tok_s is None) == (result.completion_tokens <= 1)
    json.dumps(result.to_dict(), allow_nan=False)
