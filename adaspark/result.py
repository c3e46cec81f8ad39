"""What a reply leaves behind: its text, how it ended, where the time went, what was drafted and accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaspark._engine import DepthCounts, Statistics


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
class SourceDrafts:
    """Drafts of one source; the depths add up to the totals."""

    drafted: int
    accepted: int
    drafted_by_depth: tuple[int, ...]  # depth 1 first
    accepted_by_depth: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What the models of the arm ``adaspark`` said of one reply's rounds, against what came of them."""

    expected_accepted: float  # drafts expected: the sum of Q over the verified rows, the last round left out
    realised_accepted: int  # drafts accepted in those rounds
    labelled: int  # parents whose candidates were labelled
    fitted_log_loss: float | None  # nats a parent: the fitted acceptance model, ...
    head_log_loss: float | None  # ... and the head-based estimate on the same labels
    priced_rounds: int  # rounds but the first whose verify was priced
    price_error: float | None  # median |price / time - 1| of those


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Drafts of one reply. ``rows == rounds + drafted``; the depths and the sources add up to the totals."""

    active: bool  # whether anything was, or could have been, drafted
    reason: str | None  # why it is not active, or why another arm ran than the one asked for
    rounds: int  # verify calls
    rows: int  # verified rows, anchors included
    drafted: int
    accepted: int
    drafted_by_depth: tuple[int, ...]  # depth 1 first
    accepted_by_depth: tuple[int, ...]
    sources: Mapping[str, SourceDrafts]  # "drafter" alone, the request's own "text" alone, "agreed": both
    tokens_per_round: float | None  # tokens after the first over rounds
    width_rounds: Mapping[int, int]  # verified rows -> rounds
    width_shares: Mapping[int, float]  # the same, as shares of the rounds
    rounds_plain: int  # the arm adaspark: its rounds by kind
    rounds_text: int
    rounds_draft: int
    learning: Learning | None  # the arm adaspark


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
        for drafts in (speculation, *speculation["sources"].values()):
            for name in ("drafted_by_depth", "accepted_by_depth"):
                drafts[name] = list(drafts[name])
        for name in ("width_rounds", "width_shares"):
            speculation[name] = {str(width): value for width, value in sorted(speculation[name].items())}
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
    """``active`` and ``reason`` are what the arm allows; a reply that drafted nothing all the same says why."""
    rounds = statistics["rounds"]
    if active and rounds > 0 and statistics["drafted"] == 0:
        active, reason = False, _idle_reason(statistics)
    widths = statistics["width_rounds"]
    return Speculation(
        active=active,
        reason=reason,
        rounds=rounds,
        rows=statistics["rows"],
        drafted=statistics["drafted"],
        accepted=statistics["accepted"],
        drafted_by_depth=tuple(statistics["drafted_by_depth"]),
        accepted_by_depth=tuple(statistics["accepted_by_depth"]),
        sources={
            "drafter": _source(statistics["sources"]["drafter"]),
            "text": _source(statistics["sources"]["text"]),
            "agreed": _source(statistics["sources"]["agreed"]),
        },
        tokens_per_round=(rounds + statistics["accepted"]) / rounds if rounds else None,
        width_rounds=dict(widths),
        width_shares={width: count / rounds for width, count in widths.items()},
        rounds_plain=statistics["rounds_plain"],
        rounds_text=statistics["rounds_text"],
        rounds_draft=statistics["rounds_draft"],
        learning=_learning(statistics) if statistics["arm"] == "adaspark" else None,
    )


def _idle_reason(statistics: Statistics) -> str:
    if statistics["arm"] != "adaspark":
        return "the reply was too short for drafts"
    if statistics["rounds_draft"] > 0:
        return "nothing the drafter proposed was expected to pay"
    return "no draft was expected to pay: plain decoding was cheaper"


def _source(counts: DepthCounts) -> SourceDrafts:
    return SourceDrafts(
        drafted=sum(counts["drafted_by_depth"]),
        accepted=sum(counts["accepted_by_depth"]),
        drafted_by_depth=tuple(counts["drafted_by_depth"]),
        accepted_by_depth=tuple(counts["accepted_by_depth"]),
    )


def _learning(statistics: Statistics) -> Learning:
    labelled = statistics["labelled"]
    return Learning(
        expected_accepted=statistics["expected_accepted"],
        realised_accepted=statistics["realised_accepted"],
        labelled=labelled,
        fitted_log_loss=statistics["fitted_loss"] / labelled if labelled else None,
        head_log_loss=statistics["head_loss"] / labelled if labelled else None,
        priced_rounds=statistics["priced_rounds"],
        price_error=statistics["price_error"],
    )


def _rate(tokens: int, microseconds: float) -> float | None:
    return tokens / microseconds * 1e6 if tokens > 0 and microseconds > 0 else None
