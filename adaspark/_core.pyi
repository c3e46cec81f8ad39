"""The scheduler without an engine (csrc/core). ``adaspark.scheduler`` is the documented face of it.

Arrays are taken as they are: contiguous and of the type stated, or TypeError. Times are microseconds.
"""

from typing import Any, TypeAlias, TypedDict, final, type_check_only

import numpy as np
from numpy.typing import NDArray

_Int: TypeAlias = NDArray[np.int32]
_Float: TypeAlias = NDArray[np.float32]
_Double: TypeAlias = NDArray[np.float64]

MAX_ROWS: int
MAX_CANDIDATES: int

@type_check_only
class TreeRows(TypedDict):
    tokens: _Int
    parents: _Int
    depths: _Int
    candidates: _Int
    ranks: _Int
    ancestors: NDArray[np.uint64]

def block_candidates(tokens: _Int, logits: _Float, confidence: _Float) -> tuple[_Int, _Float]:
    """Parents and head-based q of a block's candidates. tokens, logits (B * K,), by position; confidence (B,)."""

def order_best_first(parents: _Int, q: _Float, limit: int) -> tuple[_Int, _Float]:
    """Candidate indices by decreasing Q (at most ``limit``), and Q of every candidate."""

def layout_depth_first(anchor: int, tokens: _Int, parents: _Int, q: _Float, rows: int) -> TreeRows:
    """The best-first tree of at most ``rows`` rows, laid out depth-first."""

def choose_width(
    rows: _Int,
    price: _Double,
    draft: _Double,
    text: _Double,
    draft_reference: float,
    text_reference: float,
    rate: float,
    fixed: float,
    incumbent: int = ...,
    margin: float = ...,
    gains: tuple[float, float, float, float] = ...,
) -> tuple[int, float, float]:
    """(rows, tokens, value) of Eq. (7). gains: draft above, text above, draft below, text below the reference width."""

def split_point(tops: _Int, price: _Double, tokens: _Double, held: int, rate: float, fixed: float) -> int:
    """Width to split a class at, or 0. ``tokens`` (65,): expected, by rows."""

def gated_steps(gradients: _Double) -> tuple[float, float, float]:
    """(weight, z, n) of a bucket of the acceptance model after these gradients."""

def prior_steps(gradients: _Double, prior: float) -> tuple[float, float, float]:
    """(weight, z, n) of a shared coefficient of the acceptance model after these gradients."""

@final
class CostLaw:
    """One verify time as a function of context (Eq. 4), with its sample bank."""

    def __init__(self) -> None: ...
    def add(self, context: int, time: float) -> None: ...
    def price(self, context: int) -> float: ...
    def refit(self) -> bool: ...
    @property
    def trained(self) -> bool: ...
    @property
    def samples(self) -> int: ...
    @property
    def scale(self) -> float: ...
    @property
    def floor(self) -> float: ...
    @property
    def banked(self) -> int: ...
    @property
    def weights(self) -> _Double: ...
    @property
    def squared_gradients(self) -> _Double: ...

@final
class WidthTable:
    """Learned widths and their prices (Eq. 5)."""

    def __init__(self, max_rows: int = ..., law: bool = ...) -> None: ...
    def offer(self, context: int, max_rows: int = ...) -> tuple[_Int, _Double, float]:
        """Offered widths, their prices, and the price of drafting."""
    def unmeasured(self, max_rows: int = ...) -> int: ...
    def idle(self, max_rows: int = ...) -> int:
        """Narrowest width of few samples that has not run for long, or 0."""
    def price_at_least(self, rows: int) -> float: ...
    def record(self, rows: int, context: int, verify: float, draft: float = ...) -> None: ...
    def came_out_short(self, asked: int, built: int) -> None: ...
    def split(self, rows: int) -> bool: ...
    def refit(self) -> None: ...
    @property
    def clock(self) -> float: ...
    @property
    def markup(self) -> float:
        """What a typical time is over law, level and clock."""
    @property
    def classes(self) -> list[tuple[int, int, int, bool]]:
        """(low, high, samples, unreachable), ascending."""

@final
class LongRunRate:
    """Decode rate of a context band's positions by text bin."""

    def __init__(self) -> None: ...
    def add(self, context: int, bin: int, committed: float, microseconds: float) -> None: ...
    def rate(self, context: int, bin: int) -> float:
        """Tokens per microsecond; 0 = unknown."""

@final
class GainFit:
    """Realised over predicted marginal tokens, a line in context."""

    def __init__(self) -> None: ...
    def observe(self, predicted: float, realised: float, context: float) -> None: ...
    def at(self, context: float) -> float: ...

@final
class HeadOffset:
    """Per-request logit offset of the head-based estimate."""

    def __init__(self) -> None: ...
    def learn(self, gradient: float, squared: float) -> None: ...
    def shift(self, q: float) -> float: ...
    @property
    def value(self) -> float: ...

@final
class GateInput:
    """A round as known before the drafter runs."""

    def __init__(self, tokens: float, time: float, rate: float, optimistic: float = ..., bin: int = ...) -> None: ...

@final
class DraftGate:
    """Whether to run the drafter."""

    def __init__(self) -> None: ...
    def begin_request(self) -> None: ...
    def decide(self, input: GateInput) -> bool: ...
    def drafted(self, input: GateInput, tokens: float, time: float) -> None: ...
    def outcome(self, predicted: float, realised: float) -> None: ...
    def pay(self, tokens: float) -> bool:
        """A probe would cost so many tokens more: whether the credit has them, and then they are paid."""
    @property
    def credit(self) -> float:
        """Tokens that probes may cost; below 0 after a dear one."""
    @property
    def probing(self) -> bool: ...

@final
class SuffixIndex:
    """A request's own text, indexed by suffix."""

    def __init__(self, capacity: int) -> None: ...
    def begin(self, capacity: int) -> None: ...
    def extend(self, tokens: _Int) -> None: ...
    def propose(self, context: _Int) -> tuple[int, int, int]:
        """(token, evidence slot, copy length); slot -1 = nothing to propose."""
    def chain(self, anchor: int, depth: int = ...) -> tuple[_Int, _Int]:
        """(tokens, evidence slots) of the chain from the anchor."""
    def precision(self) -> _Double: ...
    def __len__(self) -> int: ...

@final
class SchedulerConfig:
    block: int
    top_k: int
    max_rows: int
    pinned_rows: int
    gating: bool
    text: bool
    acceptance: bool
    offset: bool
    exploration: bool
    law: bool
    rate: bool
    gains: bool
    margin: bool
    siblings: bool
    def __init__(self) -> None: ...

@final
class Scheduler:
    def __init__(self, config: SchedulerConfig, stop_tokens: _Int) -> None: ...
    def begin_request(self, prompt: _Int, first_token: int, reply_tokens: int) -> None: ...
    def decide(self, max_rows: int) -> tuple[bool, bool, float, float]: ...
    def plan(self) -> TreeRows: ...
    def plan_block(self, tokens: _Int, logits: _Float, confidence: _Float) -> TreeRows: ...
    def observe(
        self, path: _Int, next_token: int, draft_us: float, verify_us: float, commit_us: float, last: bool
    ) -> None: ...
    def end_request(self) -> None: ...
    @staticmethod
    def state_version() -> int: ...  # of the bytes below
    def save(self) -> bytes: ...
    def load(self, bytes: bytes) -> bool: ...
    @property
    def sum_q(self) -> float:
        """S of the last plan's tree: accepted drafts expected of it."""
    @property
    def report(self) -> dict[str, Any]: ...
    @property
    def candidates(self) -> dict[str, Any]: ...
    @property
    def acceptance(self) -> dict[str, Any]: ...
    @property
    def widths(self) -> list[dict[str, Any]]: ...
    def prices_at(self, context: int) -> dict[str, Any]:
        """The cost model at a context, tokens: ``rows`` of each class top, ``us`` (None: not measured), ``samples``,
        ``draft_us`` (None: unknown), ``commit_us`` (without, with the drafter)."""
    @property
    def incumbent(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def precision(self) -> _Double: ...
    @property
    def gains(self) -> tuple[float, float, float, float]: ...
