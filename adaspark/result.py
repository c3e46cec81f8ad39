"""What a reply leaves behind: its text, how it ended, where the time went, what was drafted and accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaspark._engine import Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times in milliseconds, rates in tokens per second. A rate is None where there is nothing to measure it on."""

    load_ms: float  # target and drafter, once an engine
    prefill_ms: float
    decode_ms: float  # from the first token to the last
    draft_ms: float
    plan_ms: float
    verify_ms: float
    walk_ms: float
    commit_ms: float
    inject_ms: float
    prefill_tok_s: float | None  # prompt tokens that were not already in the cache
    decode_tok_s: float | None  # (completion tokens - 1) / decode time


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts of one reply. ``rows == rounds + drafted``; the depths add up to the totals."""

    active: bool
    reason: str | None  # why it is not active, or why another arm ran than the one asked for
    rounds: int  # verify calls
    rows: int  # verified rows, anchors included
    drafted: int
    accepted: int
    drafted_by_depth: tuple[int, ...]  # depth 1 first
    accepted_by_depth: tuple[int, ...]
    width_rounds: Mapping[int, int]  # verified rows -> rounds
    rounds_plain: int  # the arm adaspark: its rounds by kind ...
    rounds_text: int
    rounds_draft: int
    text_drafted: int  # ... drafts proposed by the request's own text alone ...
    text_accepted: int
    agreed_accepted: int  # ... and accepted ones that text and drafter proposed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished reply."""

    text: str
    token_ids: tuple[int, ...]  # without the end-of-generation token
    finish_reason: str  # "stop" | "length" | "cancel"
    prompt_tokens: int
    reused_tokens: int  # of the prompt, already in the cache
    completion_tokens: int
    model: str  # file
    drafter: str | None  # file
    kernels: str  # what ran the forwards: "own/<instruction set>", "ggml/<device>" or "llama"
    arm: str  # the arm that ran
    seed: int | None  # None when greedy
    timings: Timings
    speculation: Speculation

    def to_dict(self) -> dict[str, Any]:
        """The reply as one JSON object."""
        data = asdict(self)
        data["token_ids"] = list(self.token_ids)
        speculation = data["speculation"]
        for name in ("drafted_by_depth", "accepted_by_depth"):
            speculation[name] = list(speculation[name])
        speculation["width_rounds"] = {
            str(width): count for width, count in sorted(self.speculation.width_rounds.items())
        }
        return data


def timings_of(statistics: Statistics, load_ms: float) -> Timings:
    """Milliseconds and rates from the engine's microseconds."""
    parts = {
        f"{name}_ms": float(statistics[f"{name}_us"]) / 1e3  # type: ignore[literal-required]
        for name in ("prefill", "decode", "draft", "plan", "verify", "walk", "commit", "inject")
    }
    return Timings(
        load_ms=load_ms,
        prefill_tok_s=_rate(statistics["prompt_tokens"] - statistics["reused_tokens"], statistics["prefill_us"]),
        decode_tok_s=_rate(statistics["completion_tokens"] - 1, statistics["decode_us"]),
        **parts,
    )


def speculation_of(statistics: Statistics, active: bool, reason: str | None) -> Speculation:
    return Speculation(
        active=active,
        reason=reason,
        rounds=statistics["rounds"],
        rows=statistics["rows"],
        drafted=statistics["drafted"],
        accepted=statistics["accepted"],
        drafted_by_depth=tuple(statistics["drafted_by_depth"]),
        accepted_by_depth=tuple(statistics["accepted_by_depth"]),
        width_rounds=dict(statistics["width_rounds"]),
        rounds_plain=statistics["rounds_plain"],
        rounds_text=statistics["rounds_text"],
        rounds_draft=statistics["rounds_draft"],
        text_drafted=statistics["text_drafted"],
        text_accepted=statistics["text_accepted"],
        agreed_accepted=statistics["agreed_accepted"],
    )


def _rate(tokens: int, microseconds: float) -> float | None:
    return tokens / microseconds * 1e6 if tokens > 0 and microseconds > 0 else None
