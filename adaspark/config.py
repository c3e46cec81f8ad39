"""Options of the engine and of a request: typed, frozen, checked when made.

A field that is ``None`` keeps the engine's own default. Wrong values raise OptionError, a ``ValueError``, naming the option.
"""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

from adaspark.errors import OptionError

log = logging.getLogger("adaspark")

DEFAULT_ARM: Final = "adaspark"
"""The arm of a request that names none: it learns what pays, plain decoding included."""

DEFAULT_CONTEXT: Final = 4096
"""Context, in tokens, where none is asked for (less when the model was trained on less)."""

MAX_ROWS: Final = 64
"""Rows of the widest verify."""

MAX_BLOCK: Final = 32
"""Positions of the longest drafter block (``csrc/core/kernels.h``)."""

MAX_THREADS: Final = 512
"""Threads of a pool, as in ggml."""

MAX_CONTEXT: Final = 2**30
"""Tokens of the longest context (``csrc/engine/graph/spec.h``)."""

MAX_INT: Final = 2**31 - 1
MAX_SEED: Final = 2**32 - 1
MAX_FLOAT: Final = 3.4e38

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
FLASH_ATTENTION: Final = ("auto", "on", "off")
KERNELS: Final = ("auto", "own", "ggml", "llama")

ArmKind = Literal["plain", "chain", "tree", "adaspark"]

MECHANISMS: Final = ("text", "acceptance", "gating")
"""What the arm ``adaspark`` can do without, each alone: ``adaspark:no-text`` and so on."""

_ARM = re.compile(r"plain|cost|(?:chain|tree):(\d{1,10})|adaspark(?::(\d{1,10}))?((?::no-(?:text|acceptance|gating))*)")


@dataclass(frozen=True, slots=True)
class Arm:
    """How a request is decoded.

    ``plain``; ``chain:N`` (N drafts) and ``tree:N`` (N rows, the anchor included), ordered by the drafter's own
    estimates; ``adaspark`` learns the kind and the width of every round; ``adaspark:N`` learns, at a pinned width of N
    rows. ``:no-text`` (candidates from the request's own text), ``:no-acceptance`` (the fitted acceptance model) and
    ``:no-gating`` (rounds without the drafter) switch one mechanism off. ``cost`` is ``adaspark:no-text:no-acceptance``.
    """

    kind: ArmKind = "plain"
    n: int = 0
    text: bool = True
    acceptance: bool = True
    gating: bool = True

    @classmethod
    def parse(cls, text: str) -> Arm:
        """The arm a text names. ``chain:0`` and trees of less than two rows draft nothing, so they are ``plain``."""
        match = _ARM.fullmatch(text.strip().lower())
        if match is None:
            msg = (
                f"unknown arm {text!r}: give adaspark, adaspark:N (N rows), plain, chain:N (N drafts), tree:N (N rows, at "
                f"most {MAX_ROWS}) or cost; adaspark may end in :no-text, :no-acceptance, :no-gating"
            )
            raise OptionError(msg)
        kind = match[0].partition(":")[0]
        n = int(match[1] or match[2] or 0)
        if kind == "chain":
            return cls("chain", n) if n > 0 else cls()
        if n > MAX_ROWS:
            msg = f"arm {text!r} asks for {n} rows: a verify takes at most {MAX_ROWS}"
            raise OptionError(msg)
        if kind == "cost":
            return cls("adaspark", text=False, acceptance=False)
        if kind == "tree":
            return cls("tree", n) if n > 1 else cls()
        if kind == "plain" or (match[2] is not None and n < 2):
            return cls()
        off = match[3].split(":no-")
        return cls(
            "adaspark", n, text="text" not in off, acceptance="acceptance" not in off, gating="gating" not in off
        )

    def __str__(self) -> str:
        off = [name for name in MECHANISMS if not getattr(self, name)]
        if self.n == 0 and off == ["text", "acceptance"]:
            return "cost"
        return self.kind + (f":{self.n}" if self.n > 0 else "") + "".join(f":no-{name}" for name in off)

    @property
    def text_alone(self) -> bool:
        """Whether it has something to propose without a drafter."""
        return self.kind == "adaspark" and self.text

    @property
    def rows(self) -> int:
        """Rows of its widest verify."""
        return {"plain": 1, "chain": self.n + 1, "tree": self.n, "adaspark": self.n or MAX_ROWS}[self.kind]

    def clamp(self, n_draft: int, max_rows: int) -> Arm:
        """This arm within what the drafter proposes and a verify takes; one warning when it had to shrink."""
        limit = min(n_draft, max_rows - 1) if self.kind == "chain" else max_rows
        if self.kind == "plain" or self.n <= limit:
            return self
        fitted = replace(self, n=limit) if limit > 0 else Arm()
        log.warning("arm %s is more than the drafter and the verify take; running %s", self, fitted)
        return fitted


class EngineParams(TypedDict, total=False):
    """The keywords of :class:`EngineOptions`."""

    n_ctx: int | None
    n_batch: int | None
    n_threads: int | None
    n_threads_batch: int | None
    n_gpu_layers: int | None
    flash_attention: str | None
    cache_type_k: str | None
    cache_type_v: str | None
    use_mmap: bool | None
    max_rows: int | None
    kernels: str | None
    n_ctx_draft: int | None
    n_threads_draft: int | None
    n_gpu_layers_draft: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How to load the target and the drafter."""

    n_ctx: int | None = None  # tokens; 0 = the model's training context; None = at most DEFAULT_CONTEXT
    n_batch: int | None = None  # tokens a prefill call takes at most
    n_threads: int | None = None  # 0 = physical cores
    n_threads_batch: int | None = None  # 0 = n_threads
    n_gpu_layers: int | None = None  # layers on the GPU; -1 = all
    flash_attention: str | None = None  # one of FLASH_ATTENTION
    cache_type_k: str | None = None  # one of CACHE_TYPES
    cache_type_v: str | None = None  # one of CACHE_TYPES
    use_mmap: bool | None = None
    max_rows: int | None = None  # widest verify, rows
    kernels: str | None = None  # one of KERNELS: what runs the forwards
    n_ctx_draft: int | None = None  # tokens the drafter remembers; 0 = n_ctx
    n_threads_draft: int | None = None  # 0 = n_threads
    n_gpu_layers_draft: int | None = None  # -1 = all

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_ctx_draft"):
            _check_range(name, getattr(self, name), 0, MAX_CONTEXT)
        for name in ("n_threads", "n_threads_batch", "n_threads_draft"):
            _check_range(name, getattr(self, name), 0, MAX_THREADS)
        for name in ("n_gpu_layers", "n_gpu_layers_draft"):
            _check_range(name, getattr(self, name), -1)
        _check_range("n_batch", self.n_batch, 1)
        _check_range("max_rows", self.max_rows, 1, MAX_ROWS)
        _check_choice("flash_attention", self.flash_attention, FLASH_ATTENTION)
        _check_choice("kernels", self.kernels, KERNELS)
        _check_choice("cache_type_k", self.cache_type_k, CACHE_TYPES)
        _check_choice("cache_type_v", self.cache_type_v, CACHE_TYPES)


class RequestParams(TypedDict, total=False):
    """The keywords of :class:`GenerateOptions` that do not concern the prompt."""

    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str]
    ignore_eos: bool
    arm: str | None
    full_trace: bool


class GenerateParams(RequestParams, total=False):
    """The keywords of :class:`GenerateOptions`."""

    raw: bool
    system: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateOptions:
    """One request."""

    n_predict: int = -1  # tokens; -1 = until the context ends
    temperature: float = 0.0  # 0 = argmax
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off, 0 = the likeliest alone
    min_p: float = 0.0  # 0 = off
    seed: int | None = None  # None = a new one each request
    stop: str | Sequence[str] = ()  # strings that end the reply; never part of it
    ignore_eos: bool = False
    arm: str | None = None  # None = the engine's
    full_trace: bool = False  # decode plainly and have the drafter propose at every position, for the trace
    raw: bool = False  # no chat template: the text is the prompt, control tokens written in it count
    system: str | None = None  # system message of a text prompt

    def __post_init__(self) -> None:
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if not all(stops):
            msg = "stop strings must be non-empty text"
            raise OptionError(msg)
        for text in stops:
            check_text("stop", text)
        if self.system is not None:
            check_text("system", self.system)
        object.__setattr__(self, "stop", stops)
        _check_range("n_predict", self.n_predict, -1)
        _check_range("top_k", self.top_k, 0)
        _check_range("seed", self.seed, 0, MAX_SEED)
        for name, high in (("temperature", MAX_FLOAT), ("top_p", 1.0), ("min_p", 1.0)):
            value = getattr(self, name)
            if not 0 <= value <= high:
                raise OptionError(f"{name} is {value}: give a number of at least 0" + (" and at most 1" * (high == 1)))
        if self.arm is not None and Arm.parse(self.arm).kind != "plain" and self.full_trace:
            msg = f"a full trace is made by plain decoding, not by the arm {self.arm}"
            raise OptionError(msg)
        if self.raw and self.system is not None:
            msg = "a raw prompt has no system message: write it into the prompt, or drop raw"
            raise OptionError(msg)


def check_text(name: str, text: Any) -> None:
    """OptionError unless this is text that has a UTF-8 form. Python keeps foreign bytes of a command line as surrogates."""
    if not isinstance(text, str):
        msg = f"{name} is {text!r}: give text"
        raise OptionError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{name} is not UTF-8 text (character {error.start + 1} is {text[error.start]!a}): write it in UTF-8"
        raise OptionError(msg) from None


def file_path(name: str | os.PathLike[str], what: str) -> Path:
    """A file's name as a path; OptionError where it is empty, which as a path is the working folder."""
    if not os.fspath(name):
        msg = f"the name of the {what} file is empty: give a file, or leave the option out"
        raise OptionError(msg)
    return Path(name)


def _check_range(name: str, value: Any, low: int, high: int = MAX_INT) -> None:
    if value is None:
        return
    try:
        number = operator.index(value)
    except TypeError:
        msg = f"{name} is {value!r}: give a whole number"
        raise OptionError(msg) from None
    if not low <= number <= high:
        msg = f"{name} is {value}: give at least {low} and at most {high}"
        raise OptionError(msg)


def _check_choice(name: str, value: str | None, choices: Sequence[str]) -> None:
    if value is not None and value not in choices:
        msg = f"{name} is {value!r}: give one of {', '.join(choices)}"
        raise OptionError(msg)
