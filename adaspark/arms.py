"""Which arm a request runs on: what was asked for, within what the target and the drafter can do."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaspark.config import DEFAULT_ARM, Arm
from adaspark.errors import OptionError

if TYPE_CHECKING:
    from adaspark._engine import Drafter, Request, Target

log = logging.getLogger("adaspark")

CHAIN_INSTEAD = 3
"""Drafts of the chain that stands in for ``adaspark`` where the target verifies chains only."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """The arm to run, and why it differs from speculation as asked for (None: it does not)."""

    arm: Arm
    reason: str | None

    @property
    def active(self) -> bool:
        return self.arm.kind != "plain"


def set_arm(request: Request, arm: Arm) -> None:
    """Make a request run on an arm."""
    request.arm, request.arm_n = arm.kind, arm.n
    request.text, request.acceptance, request.gating = arm.text, arm.acceptance, arm.gating


class ArmResolver:
    """Resolves arms for one pair; each shortfall is told once."""

    def __init__(self, target: Target, drafter: Drafter | None, default: str | None) -> None:
        self._target = target
        self._drafter = drafter
        self._plans: dict[Arm, ArmPlan] = {}
        self._usual = DEFAULT_ARM if default is None else default
        if default is not None:
            self.resolve(default)  # what was asked for is checked now; the usual arm is not spoken of unless it runs

    @property
    def default(self) -> Arm:
        """The arm of a request that names none."""
        return self.resolve(None).arm

    def resolve(self, text: str | None) -> ArmPlan:
        """The plan for an arm (None = the default). OptionError when it needs a drafter and there is none."""
        asked = Arm.parse(self._usual if text is None else text)
        if asked not in self._plans:
            self._plans[asked] = self._plan(asked)
        return self._plans[asked]

    def _plan(self, asked: Arm) -> ArmPlan:
        if asked.kind == "plain":
            return ArmPlan(asked, "the arm is plain")
        if self._drafter is None and not asked.text_alone:
            msg = f"arm {asked} needs a drafter: give one, or take the arm adaspark or plain"
            raise OptionError(msg)
        n_draft = 0 if self._drafter is None else self._drafter.n_draft
        arm = asked
        reason = None
        if self._target.max_chain == 0:
            arm = Arm()
            reason = f"{self._target.architecture} targets cannot take back drafted tokens yet"
            if self._target.max_rows < 2:
                reason = "a verify takes one row (-c, max_rows), which leaves none for a draft"
            reason += "; decoding plainly"
        elif asked.kind != "chain" and not self._target.supports_tree:
            chain = min(asked.n - 1 if asked.n > 0 else CHAIN_INSTEAD, n_draft, self._target.max_chain)
            arm = Arm("chain", chain) if chain > 0 else Arm()
            reason = f"{self._target.architecture} targets verify chains only, not trees; running {arm}"
        elif self._drafter is None:
            return ArmPlan(asked.clamp(0, self._target.max_rows), "no drafter: only the text itself proposes")
        if reason is not None:
            log.warning("arm %s: %s", asked, reason)
        fitted = arm.clamp(n_draft, self._target.max_rows)
        if fitted != arm:
            reason = f"arm {asked} clamped to {fitted}"
        return ArmPlan(fitted, reason)
