"""The engine: a target, its drafter and a decode session behind one object."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import adaspark
from adaspark._native import _engine
from adaspark.arms import ArmPlan, ArmResolver, set_arm
from adaspark.chat import Chat
from adaspark.config import DEFAULT_CONTEXT, EngineOptions, GenerateOptions, file_path
from adaspark.devices import warn_about_gpu
from adaspark.errors import BackendError, OptionError
from adaspark.generation import Generation, build_result
from adaspark.identity import Identity, identity_of
from adaspark.logs import capture_llama_log
from adaspark.memory import Memory, store_path
from adaspark.models import ModelPair, resolve
from adaspark.progress import NoProgress, Progress
from adaspark.store import Work
from adaspark.templates import ChatTemplate, Message, raw_prompt
from adaspark.trace import TraceWriter

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from adaspark._engine import Drafter, Request, Session, Target
    from adaspark.config import EngineParams, GenerateParams, RequestParams
    from adaspark.result import Result

log = logging.getLogger("adaspark")


class Engine:
    """A target and its drafter, loaded and ready.

    ``model`` is a GGUF file; None is the default pair, fetched on first use. ``drafter`` is a DSpark GGUF; "auto" finds
    the default target's own, None is no drafter. ``arm`` is "adaspark" (the default), "plain", "chain:N" or "tree:N".
    ``store`` is the file that keeps what the scheduler learns: "auto" is one in the user's cache folder, None is no file.
    ``trace`` is a file that every request's rounds are appended to (:mod:`adaspark.trace`).
    The other keywords are the fields of :class:`adaspark.config.EngineOptions`.

    Raises ModelError, DrafterError, OutOfMemoryError, or OptionError for a wrong option. One request at a time; threads
    take turns, a round each. Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ModelPair | None = None,
        drafter: str | os.PathLike[str] | None = "auto",
        *,
        arm: str | None = None,
        chat_template: str | None = None,
        store: str | os.PathLike[str] | None = "auto",
        trace: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        **options: Unpack[EngineParams],
    ) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()  # held by whoever runs the models
        self._target: Target | None = None
        self._drafter: Drafter | None = None
        self._session: Session | None = None
        self._current: Generation | None = None
        self._closing = False  # stops the reading of a prompt
        self._told: set[str] = set()  # warnings, each given once
        self._memory = Memory(store_path(store), lambda: self.identity)
        self._tracer: TraceWriter | None = None
        self._progress = progress or NoProgress()
        self.options = EngineOptions(**options)
        self._target_options, self._draft_options = _engine.TargetOptions(), _engine.DrafterOptions()
        self.files = model if isinstance(model, ModelPair) else resolve(model, drafter, progress=self._progress)
        capture_llama_log()
        warn_about_gpu(self.options.n_gpu_layers)
        start = time.perf_counter()
        try:
            self._load()
            self._arms = ArmResolver(self.target, self._drafter, arm)
            owner = "the chat template given" if chat_template else f"{self.files.target}: the model's chat template"
            self._template = ChatTemplate(chat_template or self.target.chat_template, self.target, owner)
            self._tracer = None if trace is None else TraceWriter(file_path(trace, "trace"), self.target, self.identity)
        except BaseException:
            self.close()
            raise
        finally:
            self._progress.clear()
        self.load_ms = (time.perf_counter() - start) * 1e3  # milliseconds, downloads not included

    @property
    def target(self) -> Target:
        """The target. BackendError after ``close``, and in a process forked from the one that made the engine."""
        if self._process != os.getpid():
            msg = (
                "the engine belongs to the process this one was forked from, and so do its threads: make a new one here"
            )
            raise BackendError(msg)
        if self._target is None:
            msg = "the engine is closed: make a new one"
            raise BackendError(msg)
        return self._target

    @property
    def drafter(self) -> Drafter | None:
        return self._drafter

    @property
    def arm(self) -> str:
        """The arm of a request that names none."""
        return str(self._arms.default)

    @property
    def closed(self) -> bool:
        return self._target is None

    def generate(
        self, prompt: str | Sequence[Message] | Sequence[Mapping[str, Any]], **params: Unpack[GenerateParams]
    ) -> Generation:
        """Start a reply: read the prompt and return the iterator of its text.

        A text goes through the model's chat template as the user's message (a model without one continues it); a list
        of messages goes through it as it is; ``raw=True`` takes a text unchanged. The keywords are the fields of
        :class:`adaspark.config.GenerateOptions`. Raises ContextFullError, or OptionError for an empty prompt.
        """
        options = GenerateOptions(**params)
        with self._lock:
            return self._generate(prompt, options)

    def _generate(self, prompt: str | Sequence[Any], options: GenerateOptions) -> Generation:
        target = self.target
        if self._current is not None:
            self._current.close()
            self._current = None
        tokens, stops = self._tokens(prompt, options)
        plan = self._arms.resolve("plain" if options.full_trace else options.arm)
        if options.full_trace and (self._tracer is None or self._drafter is None):
            msg = "a full trace needs a trace file and a drafter"
            raise OptionError(msg)
        request = _request(options, stops)
        set_arm(request, plan.arm)
        request.draft_only = options.full_trace
        session = self._session
        if session is None:
            session = self._session = _engine.Session(target, self._drafter)
            session.set_trace(self._tracer is not None)
        self._memory.before(session, request, str(plan.arm))
        if self._tracer is not None:
            self._tracer.before(session, request, tokens)
        try:
            session.begin(tokens, request, self._on_prefill)
        finally:
            self._progress.clear()
        self._current = Generation(session, self._lock, partial(self._finish, plan, request))
        return self._current

    def chat(self, system: str | None = None, **params: Unpack[RequestParams]) -> Chat:
        """A conversation that remembers its messages; ``params`` hold for each of its replies."""
        return Chat(self, system, **params)

    def tokenize(self, prompt: str | Sequence[Message], **params: Unpack[GenerateParams]) -> list[int]:
        """The token ids ``generate`` would read."""
        return self._tokens(prompt, GenerateOptions(**params))[0]

    def close(self) -> None:
        """Free the models. Using the engine, or a reply that has not ended, afterwards raises BackendError.

        Any thread may call it: it waits for the round at hand. What an unfinished reply has taught is saved; without
        a ``close``, that of finished replies alone.
        """
        self._closing = True
        if (current := self._current) is not None:
            current.cancel()
        with self._lock:
            current, self._current = self._current, None
            try:
                if current is not None and self._process == os.getpid():
                    current.detach()
            finally:
                self._free()

    def _free(self) -> None:
        self._memory.close()
        # The session and the drafter hold on to the target, so they go first.
        self._session = None
        if self._drafter is not None:
            self._drafter.close()
        self._drafter = None
        if self._target is not None:
            self._target.close()
        self._target = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _load(self) -> None:
        path = str(self.files.target)
        options = self._target_options
        names = ("n_batch", "n_threads", "n_threads_batch", "n_gpu_layers", "flash_attention", "cache_type_k")
        for name in (*names, "cache_type_v", "use_mmap", "max_rows", "kernels"):
            _assign(options, name, getattr(self.options, name))
        options.n_ctx = _default_context(path) if self.options.n_ctx is None else self.options.n_ctx
        if (
            self.files.drafter is not None
            and options.kernels == "auto"
            and (refusal := _engine.drafter_refusal(str(self.files.drafter), options))
        ):
            # Only a target on llama.cpp has drafters on other kernels than its own.
            log.info("the drafter needs llama.cpp's kernels: %s", refusal)
            options.kernels = "llama"
        self._target = _engine.Target(path, options, partial(self._on_load, "Loading the model"))
        if self.files.drafter is None:
            return
        draft_options = self._draft_options
        for name in ("n_ctx", "n_threads", "n_gpu_layers"):
            _assign(draft_options, name, getattr(self.options, f"{name}_draft"))
        self._drafter = _engine.Drafter(
            str(self.files.drafter), self._target, draft_options, partial(self._on_load, "Loading the drafter")
        )
        for warning in self._drafter.warnings:
            log.warning("drafter %s: %s", self.files.drafter, warning)

    def _tokens(self, prompt: str | Sequence[Any], options: GenerateOptions) -> tuple[list[int], tuple[str, ...]]:
        """The ids of a prompt and the stop strings its template adds."""
        if isinstance(prompt, str):
            if options.raw:
                return raw_prompt(self.target, prompt), ()
            if self._template.is_fallback and options.system is None:
                return raw_prompt(self.target, prompt, parse_special=False), ()
            prompt = [{"role": "user", "content": prompt}]
        elif options.raw:
            msg = "a raw prompt is one text, not a list of messages"
            raise OptionError(msg)
        system = [] if options.system is None else [{"role": "system", "content": options.system}]
        return self._template.prompt([*system, *prompt]), self._template.stop

    def _finish(self, plan: ArmPlan, request: Request, text: str, session: Session) -> Result:
        statistics = session.statistics
        if self._tracer is not None:
            self._tracer.after(session, request, str(plan.arm))
        self._memory.after(session, request, str(plan.arm), Work(statistics["rounds"], statistics["completion_tokens"]))
        for warning in session.warnings:
            if warning not in self._told:
                self._told.add(warning)
                log.warning("%s", warning)
        return build_result(
            text,
            session,
            model=str(self.files.target),
            drafter=None if self.files.drafter is None else str(self.files.drafter),
            kernels=self.target.kernels,
            arm=str(plan.arm),
            seed=request.seed if request.temperature > 0 else None,
            load_ms=self.load_ms,
            active=plan.active,
            reason=plan.reason,
        )

    @cached_property
    def identity(self) -> Identity:
        """What a learned state of this engine belongs to."""
        return identity_of(self.target, self._drafter, self._target_options, self._draft_options, adaspark.__version__)

    def _on_load(self, label: str, share: float) -> bool:
        return self._progress.show(label, share, 1.0, "share")

    def _on_prefill(self, done: int, total: int) -> bool:
        return self._progress.show("Reading the prompt", done, total, "tokens") and not self._closing


def _assign(options: object, name: str, value: object) -> None:
    if value is not None:
        setattr(options, name, value)


def _default_context(path: str) -> int:
    summary = _engine.read_gguf(path)
    trained = summary["metadata"].get(f"{summary['architecture']}.context_length")
    return min(trained, DEFAULT_CONTEXT) if isinstance(trained, int) and trained > 0 else DEFAULT_CONTEXT


def _request(options: GenerateOptions, stops: tuple[str, ...]) -> Request:
    request = _engine.Request()
    for name in ("n_predict", "temperature", "top_k", "top_p", "min_p", "ignore_eos"):
        setattr(request, name, getattr(options, name))
    request.seed = secrets.randbits(32) if options.seed is None else options.seed
    request.stop = [*options.stop, *stops]
    return request
