"""Replaying traces: exactly, to check decisions; and a recorded text under another plan, to compare arms."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adaspark import _core, _replay
from adaspark.config import Arm
from adaspark.costs import GRID, CostTable, learned_table, sampled_table
from adaspark.errors import TraceError
from adaspark.learned import TOP_K, core_config
from adaspark.trace import TracedRequest

RECORD: Final = np.dtype(
    [
        ("bytes", "<u4"), ("context", "<i4"), ("left", "<i4"), ("room", "<i4"), ("next_token", "<i4"), ("kind", "u1"),
        ("reason", "u1"), ("flags", "u1"), ("positions", "u1"), ("top_k", "u1"), ("rows", "u1"), ("path", "u1"),
        ("asked_rows", "u1"), ("expected", "<f4"), ("sum_q", "<f4"), ("verify_price", "<f4"), ("draft_price", "<f4"),
        ("fitted_loss", "<f4"), ("head_loss", "<f4"), ("labelled", "<i4"), ("inject_us", "<f4"), ("drafter_us", "<f4"),
        ("walk_us", "<f4"), ("unused", "<u4"), ("draft_us", "<f8"), ("verify_us", "<f8"), ("commit_us", "<f8"),
    ]
)  # fmt: skip
"""The fixed part of a round's record (``csrc/engine/session_trace.cpp``)."""

MAX_LEFT: Final = 1 << 24
"""More tokens than a reply has."""

FITTED, EXPLORED, LAST, PROBING = 1, 2, 4, 8
KINDS: Final = ("plain", "text", "draft", "fixed")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A traced request with its rounds taken apart."""

    request: TracedRequest
    rounds: _replay.Rounds
    record: NDArray[Any]  # (n,) of RECORD

    @classmethod
    def of(cls, request: TracedRequest) -> Recorded:
        """TraceError when a record is damaged."""
        try:
            rounds = _replay.split(np.frombuffer(request.rounds, dtype=np.uint8))
            recorded = cls(request, rounds, rounds.header.reshape(-1).view(RECORD))
            recorded._check()
        except ValueError as error:
            msg = f"a request of the trace is damaged: {error}"
            raise TraceError(msg) from error
        return recorded

    def _check(self) -> None:
        """ValueError when the records hold what no session records; schedulers take what they are given."""
        record, rounds = self.record, self.rounds
        drafted = record["positions"] > 0
        times = np.stack([record[name] for name in ("draft_us", "verify_us", "commit_us")])
        anchors = record["context"] - len(self.request.prompt)
        good = {
            "kind": record["kind"] < len(KINDS),
            "positions": record["positions"] <= self.block,
            "top_k": ~drafted | (record["top_k"] == TOP_K),
            "time": np.isfinite(times) & (times >= 0.0),
            "anchor": (anchors >= 0) & (anchors <= len(self.request.reply)) & (len(self.request.reply) > 0),
            "left": (record["left"] >= 0) & (record["left"] <= MAX_LEFT),
            "block": np.isfinite(rounds.logits),
            "confidence": (rounds.confidence >= 0.0) & (rounds.confidence <= 1.0),
        }
        for name, values in good.items():
            if not np.all(values):
                msg = f"a record's {name} is out of range"
                raise ValueError(msg)

    @property
    def block(self) -> int:
        """Positions of the drafter's whole block; 0 without a drafter."""
        return int(self.request.header["identity"]["block"])

    @property
    def max_rows(self) -> int:
        return int(self.request.header["identity"]["max_rows"])

    @property
    def longest(self) -> int:
        """Tokens of prompt and reply."""
        return len(self.request.prompt) + len(self.request.reply)

    def blocks(self) -> NDArray[np.int64]:
        """By position of the reply: the round whose whole block was drafted with that token as the anchor, or -1."""
        out = np.full(len(self.request.reply), -1, np.int64)
        anchors = self.record["context"].astype(np.int64) - len(self.request.prompt)
        whole = (self.block > 0) & (self.record["positions"] == self.block) & (anchors < len(out))
        out[anchors[whole]] = np.flatnonzero(whole)
        return out

    def scheduler(self, arm: Arm) -> _core.Scheduler:
        """An empty scheduler for an arm on this request's pair."""
        return _core.Scheduler(core_config(arm, self.block, self.max_rows), self.request.stop_tokens)


def _chunk(record: NDArray[Any], name: str, kind: type[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(record[name], dtype=kind)


# ---- exactly


@dataclass(frozen=True, slots=True)
class Check:
    """How a request's replay compares with what was recorded."""

    arm: str
    rounds: int
    differs_at: int | None  # the first round that was decided or planned differently
    state_matches: bool | None  # the learned state after it is the recorded one, bit for bit; None: nothing to compare

    @property
    def exact(self) -> bool:
        return self.differs_at is None and self.state_matches is not False


class ExactReplay:
    """Replays the requests of a trace in order, each arm's scheduler going on where its last request left it."""

    def __init__(self) -> None:
        self._schedulers: dict[tuple[str, str], _core.Scheduler] = {}

    def run(self, recorded: Recorded) -> Check:
        """TraceError when the trace lacks what this request's scheduler goes on from."""
        request, record = recorded.request, recorded.record
        room = _chunk(record, "room", np.int32)
        arm = Arm.parse(request.arm)
        if arm.kind != "adaspark":
            if request.full:  # plain decoding; the blocks were for the trace alone
                differs = -1 if bool((record["rows"] == 1).all()) else int(np.argmax(record["rows"] != 1))
            else:
                plan, left = fixed_plan(arm, request.stop_tokens), _chunk(record, "left", np.int32)
                differs = _replay.replay_fixed(plan, recorded.rounds, room, left)
            return Check(request.arm, len(record), None if differs < 0 else differs, None)
        scheduler = self._scheduler(recorded, arm)
        if len(record) > 0 or (request.header["finish_reason"] == "cancel" and len(request.reply) > 0):
            tokens = int(record["left"][0]) if len(record) > 0 else 0
            scheduler.begin_request(request.prompt, int(request.reply[0]), tokens)
            differs = _replay.replay(
                scheduler,
                recorded.rounds,
                room,
                _chunk(record, "next_token", np.int32),
                np.ascontiguousarray(record["flags"] & LAST),
                np.stack([record["draft_us"], record["verify_us"], record["commit_us"]], axis=1),
            )
            if differs >= 0:
                return Check(request.arm, len(record), differs, False)
            scheduler.end_request()
        after = request.header["learned_after"]
        matches = None if after is None else hashlib.sha256(scheduler.save()).hexdigest() == after
        return Check(request.arm, len(record), None, matches)

    def learned(self) -> list[_core.Scheduler]:
        """The schedulers as the trace left them."""
        return list(self._schedulers.values())

    def _scheduler(self, recorded: Recorded, arm: Arm) -> _core.Scheduler:
        request = recorded.request
        key = (str(request.header["stream"]), str(arm))
        if request.header["continues"]:
            if key not in self._schedulers:
                msg = "the trace does not have the request that this one's scheduler goes on from"
                raise TraceError(msg)
            return self._schedulers[key]
        scheduler = recorded.scheduler(arm)
        if request.state and not scheduler.load(request.state):
            msg = "the trace's learned state is of another version of the scheduler"
            raise TraceError(msg)
        self._schedulers[key] = scheduler
        return scheduler


def fixed_plan(arm: Arm, stop_tokens: NDArray[np.int32]) -> _replay.Plan:
    return _replay.Plan(None, arm.kind == "chain", arm.n, stop_tokens.tolist())


# ---- under another plan


@dataclass(slots=True)
class ArmReplay:
    """A text decoded anew under an arm, at the prices of a cost table; one entry of ``columns`` a request."""

    arm: str
    columns: list[NDArray[np.float64]] = field(default_factory=list)  # (rounds, 7), as _replay.decode returns them
    tokens: int = 0

    def _sum(self, column: int) -> float:
        return float(sum(part[:, column].sum() for part in self.columns))

    @property
    def rounds(self) -> int:
        return sum(len(part) for part in self.columns)

    @property
    def time_us(self) -> float:
        return self._sum(4)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.time_us * 1e6 if self.time_us > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        kinds = np.concatenate([part[:, 1] for part in self.columns]) if self.columns else np.empty(0)
        rounds = max(self.rounds, 1)
        return {
            "arm": self.arm,
            "tokens_per_second": self.tokens_per_second,
            "tokens": self.tokens,
            "rounds": self.rounds,
            "rounds_by_kind": {KINDS[kind]: int((kinds == kind).sum()) for kind in range(3)},
            "rows_per_round": self._sum(2) / rounds,
            "accepted": int(self._sum(3)),
            "expected_accepted": self._sum(5) if Arm.parse(self.arm).kind == "adaspark" else None,
            "covered": 1.0 - self._sum(6) / rounds,
        }


def decode_under(arm: Arm, requests: Sequence[Recorded], costs: CostTable, scheduler: Any = None) -> ArmReplay:
    """Decode the texts of some requests one after the other under an arm that starts with nothing learned.

    ``scheduler`` stands in for the empty ``_core.Scheduler`` of a learning arm: one that has learned, or one that watches.

    Where the trace has no block that the arm asks for, the round goes on without one (``covered`` in the result).
    """
    out = ArmReplay(str(arm))
    for recorded in requests:
        request = recorded.request
        if arm.kind != "adaspark":
            plan = fixed_plan(arm, request.stop_tokens)
        else:
            scheduler = scheduler or recorded.scheduler(arm)
            plan = _replay.Plan(scheduler, False, 0, ())
        out.columns.append(
            _replay.decode(
                plan, recorded.rounds, recorded.blocks(), request.prompt, request.reply, recorded.max_rows,
                costs.verify, GRID, costs.draft, costs.commit,
            )
        )  # fmt: skip
        out.tokens += max(0, len(request.reply) - 1)
    return out


def cost_table(requests: Sequence[Recorded], learned: Sequence[_core.Scheduler]) -> CostTable:
    """The cost law of a trace: what its schedulers learned, or else its rounds' own times.

    TraceError when its rounds ran at one width only.
    """
    longest = max((recorded.longest for recorded in requests), default=0)
    best: CostTable | None = None
    priced = 0
    for scheduler in learned:
        count = sum(us is not None for us in scheduler.prices_at(longest)["us"])
        if count > priced and (table := learned_table(scheduler, longest)) is not None:
            best, priced = table, count
    if best is not None and best.draft.any():
        return best
    records = [recorded.record[1:] for recorded in requests]  # a request's first round runs cold
    record = np.concatenate(records) if records else np.empty(0, RECORD)
    verify, draft, commit = (record[name].astype(np.float64) for name in ("verify_us", "draft_us", "commit_us"))
    sampled = sampled_table(record["rows"].astype(np.int32), verify, draft, commit, record["positions"] > 0, longest)
    if best is not None and sampled is not None:  # learned without drafting: the trace's own times of the drafter
        return CostTable(best.verify, np.full(len(best.verify), sampled.draft[0]), best.commit, best.source)
    table = best or sampled
    if table is None:
        msg = "the trace's rounds ran at one width only: give a table (--costs), or add a trace of the arm adaspark"
        raise TraceError(msg)
    return table
