"""Running arms over conversations, one after the other on one engine, and what their replies amount to."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from adaspark.benchmark.machine import QUIET, wait_quiet
from adaspark.benchmark.stats import Interval, first_difference, geometric_mean, loop_period, spread

if TYPE_CHECKING:
    from adaspark.benchmark.conversations import Conversation
    from adaspark.engine import Engine
    from adaspark.result import Result

SHORTEST: Final = 16  # tokens after the first; a shorter reply measures little but the first round
QUIET_LIMIT_S: Final = 10.0
WARM_UP: Final = 16  # tokens


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply of one arm."""

    steps: int  # tokens after the first, an end-of-generation token included
    decode_ms: float  # first token to last
    looped: bool  # its end repeats: it says nothing about text
    parts: int | None  # the token where it is not the first arm's reply any more
    rounds: int
    rows: int
    drafted: int
    accepted: int
    rounds_by_kind: tuple[int, int, int]  # plain, text, draft; zeros on a fixed arm

    @property
    def usable(self) -> bool:
        return self.steps >= SHORTEST and not self.looped


@dataclass(frozen=True, slots=True)
class Measured:
    """One conversation under every arm: replies by arm, then turn."""

    line: int
    source: str
    busy: float | None  # share of the machine that others used right before; None where the system does not tell
    replies: dict[str, tuple[Reply, ...]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    engine: Engine, conversation: Conversation, arms: Sequence[str], n_predict: int, turns: int, rng: random.Random
) -> Measured:
    """Every turn under every arm, arms in a new random order each turn. An arm hears its own replies."""
    busy = wait_quiet(QUIET_LIMIT_S)
    messages: dict[str, list[dict[str, str]]] = {arm: [] for arm in arms}
    replies: dict[str, list[Reply]] = {arm: [] for arm in arms}
    for text in conversation.turns[:turns]:
        results: dict[str, Result] = {}
        for arm in rng.sample(list(arms), len(arms)):
            messages[arm].append({"role": "user", "content": text})
            engine.target.clear()  # every reply starts from an empty cache, under every arm
            results[arm] = engine.generate(messages[arm], n_predict=n_predict, arm=arm).read()
            messages[arm].append({"role": "assistant", "content": results[arm].text})
        for arm in arms:
            replies[arm].append(_reply(results[arm], results[arms[0]]))
    return Measured(conversation.line, conversation.source, busy, {arm: tuple(replies[arm]) for arm in arms})


def warm_up(engine: Engine, conversation: Conversation) -> None:
    """Touch the weights; teaches no arm anything."""
    arms = ("plain",) if engine.drafter is None else ("plain", "chain:1")
    for arm in arms:
        engine.generate(conversation.turns[0], n_predict=WARM_UP, arm=arm).read()


def _reply(result: Result, first: Result) -> Reply:
    drafts = result.speculation
    return Reply(
        steps=drafts.rounds + drafts.accepted,
        decode_ms=result.timings.decode_ms,
        looped=loop_period(result.token_ids) is not None,
        parts=first_difference(first.token_ids, result.token_ids),
        rounds=drafts.rounds,
        rows=drafts.rows,
        drafted=drafts.drafted,
        accepted=drafts.accepted,
        rounds_by_kind=(drafts.rounds_plain, drafts.rounds_text, drafts.rounds_draft),
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """An arm over the conversations of one file. Ratios are to the baseline, over replies that neither side looped in."""

    arm: str
    tokens_per_second: float  # pooled over usable replies
    median: float  # of the conversations' tokens per second, with their quartiles
    low: float
    high: float
    ratio: Interval | None  # geometric mean over conversations; the interval is a bootstrap over them
    worst: float | None  # the least ratio of a single reply of at least 100 tokens
    conversations: int  # with a usable reply on both sides
    looped: int  # replies left out because one side looped
    short: int  # replies left out because one side was too short
    other_text: int  # replies that are not the first arm's, token for token
    accepted: float | None  # share of the drafts
    tokens_per_round: float
    rounds_by_kind: tuple[int, int, int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


LONG: Final = 100  # tokens of a reply whose ratio is told on its own


def summarise(measured: Sequence[Measured], arm: str, baseline: str) -> Summary | None:
    """None where no reply is usable."""
    rates, ratios, worst = [], [], []
    looped = short = other = 0
    usable: list[Reply] = []
    everything = [reply for one in measured for reply in one.replies[arm]]
    for one in measured:
        pairs = list(zip(one.replies[arm], one.replies[baseline], strict=True))
        looped += sum(ours.looped or theirs.looped for ours, theirs in pairs)
        kept = [pair for pair in pairs if pair[0].usable and pair[1].usable]
        short += sum(
            not (ours.looped or theirs.looped) and not (ours.usable and theirs.usable) for ours, theirs in pairs
        )
        other += sum(ours.parts is not None for ours, _ in pairs)
        if not kept:
            continue
        usable += [ours for ours, _ in kept]
        rates.append(_rate([ours for ours, _ in kept]))
        ratios.append(rates[-1] / _rate([theirs for _, theirs in kept]))
        worst += [_rate([ours]) / _rate([theirs]) for ours, theirs in kept if min(ours.steps, theirs.steps) >= LONG]
    if not usable:
        return None
    middle = spread(rates)
    drafted = sum(reply.drafted for reply in usable)
    return Summary(
        arm=arm,
        tokens_per_second=_rate(usable),
        median=middle.median,
        low=middle.low,
        high=middle.high,
        ratio=geometric_mean(ratios),
        worst=min(worst, default=None),
        conversations=len(rates),
        looped=looped,
        short=short,
        other_text=other,
        accepted=sum(reply.accepted for reply in usable) / drafted if drafted else None,
        tokens_per_round=sum(reply.steps for reply in usable) / sum(reply.rounds for reply in usable),
        rounds_by_kind=_sum3([reply.rounds_by_kind for reply in everything]),
    )


def _sum3(counts: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    return (sum(c[0] for c in counts), sum(c[1] for c in counts), sum(c[2] for c in counts))


def _rate(replies: Sequence[Reply]) -> float:
    """Tokens a second over some replies."""
    return sum(reply.steps for reply in replies) / sum(reply.decode_ms for reply in replies) * 1e3


def loaded(measured: Sequence[Measured]) -> int:
    """Conversations that were measured beside other work."""
    return sum(one.busy is not None and one.busy >= QUIET for one in measured)


Step = Callable[[int, int], bool]
"""Told (conversations done, in all) after each; False stops."""


def run(
    engine: Engine, conversations: Sequence[Conversation], arms: Sequence[str], n_predict: int, turns: int, seed: int,
    step: Step,
) -> list[Measured]:  # fmt: skip
    """Measure conversations in a random order, so that sources do not come in blocks. The one at hand when ``step`` stops
    is left out: its replies may be cut short."""
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    order = rng.sample(list(conversations), len(conversations))
    out: list[Measured] = []
    step(0, len(order))
    for conversation in order:
        one = measure(engine, conversation, arms, n_predict, turns, rng)
        if not step(len(out) + 1, len(order)):
            break
        out.append(one)
    return out
