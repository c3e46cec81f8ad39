"""Which arm a request runs on: what was asked for, within what the target and the drafter can do."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaspark.config import DEFAULT_ARM, Arm

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Target

log = logging.getLogger("adaspark")


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """The arm to run, and why it differs from speculation as asked for (None: it does not)."""

    arm: Arm
    reason: str | None

    @property
    def active(self) -> bool:
        return self.arm.kind != "plain"


class ArmResolver:
    """Resolves arms for one pair; each shortfall is told once."""

    def __init__(self, target: Target, drafter: Drafter | None, default: str | None) -> None:
        self._target = target
        self._drafter = drafter
        self._plans: dict[Arm, ArmPlan] = {}
        if default is not None:
            self._default = self.resolve(default)
        elif drafter is None:
            self._default = ArmPlan(Arm(), "no drafter")
        else:
            usual = Arm.parse(DEFAULT_ARM)
            self._default = self.resolve(str(Arm(usual.kind, min(usual.n, drafter.n_draft))))

    @property
    def default(self) -> Arm:
        """The arm of a request that names none."""
        return self._default.arm

    def resolve(self, text: str | None) -> ArmPlan:
        """The plan for an arm (None = the default). ValueError when it needs a drafter and there is none."""
        if text is None:
            return self._default
        asked = Arm.parse(text)
        if asked not in self._plans:
            self._plans[asked] = self._plan(asked)
        return self._plans[asked]

    def _plan(self, asked: Arm) -> ArmPlan:
        if asked.kind == "plain":
            return ArmPlan(asked, "the arm is plain")
        if self._drafter is None:
            msg = f"arm {asked} needs a drafter: give one, or take the arm plain"
            raise ValueError(msg)
        arm = asked
        reason = None
        if self._target.max_chain == 0:
            arm = Arm()
            reason = f"{self._target.architecture} targets cannot take back drafted tokens yet; decoding plainly"
        elif asked.kind == "tree" and not self._target.supports_tree:
            arm = Arm("chain", min(asked.n - 1, self._drafter.n_draft, self._target.max_chain))
            reason = f"{self._target.architecture} targets verify chains only, not trees; running {arm}"
        if reason is not None:
            log.warning("arm %s: %s", asked, reason)
        fitted = arm.clamp(self._drafter.n_draft, self._target.max_rows)
        if fitted != arm:
            reason = f"arm {asked} clamped to {fitted}"
        return ArmPlan(fitted, reason)
