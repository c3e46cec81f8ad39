"""Our arms in this process: sessions on one target, each with schedulers of its own that begin with nothing learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaspark import _replay
from adaspark.benchmark.stats import loop_period
from adaspark.replay import RECORD
from kit.engine import Load, load_engine, open_models, request_of
from kit.prompts import Prompt, chat_tokens

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Session, Target

SHORTEST = 16  # tokens after the first; a shorter reply measures little but the first round


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply with the records of its rounds."""

    tokens: list[int]
    steps: int  # tokens after the first, an end-of-generation token included
    decode_ms: float  # first token to last
    rounds: NDArray[Any]  # (n,) of adaspark.replay.RECORD

    @property
    def looped(self) -> bool:
        return loop_period(self.tokens) is not None

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.steps / self.decode_ms * 1e3


def round_ms(rounds: NDArray[Any]) -> NDArray[np.float64]:
    """Milliseconds of each round: up to the verify, the verify, what follows it."""
    total: NDArray[np.float64] = (rounds["draft_us"] + rounds["verify_us"] + rounds["commit_us"]) / 1e3
    return total


@dataclass(frozen=True, slots=True)
class Local:
    """A target and its drafter. What arms learn belongs to a session: a new one is an empty store."""

    target: Target
    drafter: Drafter | None

    @classmethod
    def open(cls, load: Load) -> Local:
        return cls(*open_models(load))

    def session(self) -> Session:
        session: Session = load_engine(None).Session(self.target, self.drafter)
        session.set_trace(True)
        return session

    def reply(self, session: Session, arm: str, prompt: Sequence[int], n_predict: int) -> Reply:
        """Decode greedily from an empty cache."""
        self.target.clear()
        session.begin(prompt, request_of(arm, n_predict))
        session.step()
        while not session.finished:
            session.step()
        statistics = session.statistics
        split = _replay.split(np.frombuffer(session.trace(), dtype=np.uint8))
        return Reply(
            session.token_ids,
            statistics["rounds"] + statistics["accepted"],
            statistics["decode_us"] / 1e3,
            split.header.reshape(-1).view(RECORD).copy(),
        )

    def ids(self, prompt: Prompt) -> list[int]:
        return chat_tokens(self.target, prompt.text)

    def usable(self, prompts: Sequence[Prompt], n_predict: int) -> tuple[list[Prompt], int]:
        """The prompts whose greedy reply neither loops nor ends at once, and how many do. Greedy text is the same under
        every arm but for near ties, so one arm tells; ``chain:3`` is a quick one."""
        session = self.session()
        arm = "plain" if self.drafter is None else "chain:3"
        kept = []
        for prompt in prompts:
            reply = self.reply(session, arm, self.ids(prompt), n_predict)
            if not reply.looped and reply.steps >= SHORTEST:
                kept.append(prompt)
        return kept, len(prompts) - len(kept)
