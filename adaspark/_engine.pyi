"""The engine: GGUF target, DSpark drafter, tree verify and decode session on llama.cpp.

Everything here raises subclasses of :class:`AdaSparkError`. Objects are not thread-safe: one thread at a time may use a
``Target`` and what is built on it; ``Session.cancel`` alone may be called from any thread.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict, final, type_check_only

import numpy as np
from numpy.typing import NDArray

llama_version: str
"""Version text of the llama.cpp the engine was built with."""

class AdaSparkError(Exception):
    """Base of every error of the package. The message names the thing and the remedy."""

class ModelError(AdaSparkError):
    """A target file that is missing, damaged, of the wrong kind or architecture."""

class DrafterError(ModelError):
    """A drafter file that lacks a key, disagrees with the target or asks for what the engine cannot run."""

class ContextFullError(AdaSparkError):
    """A prompt that does not fit the context."""

class OutOfMemoryError(AdaSparkError):
    """Weights, cache or compute buffers that do not fit the memory."""

class BackendError(AdaSparkError):
    """llama.cpp or ggml failed in the middle of work; the engine object cannot be used any further."""

@type_check_only
class DeviceInfo(TypedDict):
    name: str
    description: str
    type: str  # "cpu" | "gpu" | "igpu" | "accel"
    memory_free: int  # bytes
    memory_total: int  # bytes

@type_check_only
class BackendInfo(TypedDict):
    llama_version: str
    system_info: str  # ggml's own line of CPU features
    devices: list[DeviceInfo]
    gpu_offload: bool

def backend_info() -> BackendInfo: ...
def set_log_callback(callback: Callable[[int, str], None] | None) -> None:
    """Receive llama.cpp's and ggml's log lines as (level, text); levels are those of ``logging`` (10, 20, 30, 40)."""

@type_check_only
class GgufSummary(TypedDict):
    path: str
    file_size: int  # bytes
    architecture: str
    name: str
    n_tensors: int
    metadata: dict[str, str | int | float | bool | list[Any]]  # arrays longer than 64 entries are left out
    chat_template: str | None

def read_gguf(path: str) -> GgufSummary:
    """Metadata of a GGUF file, read without loading weights. Raises ModelError (missing, truncated, not GGUF)."""

def quantize(source: str, destination: str, file_type: str, token_embedding_type: str | None, n_threads: int) -> None:
    """Requantise a GGUF with llama.cpp's quantiser. ``file_type``: "Q4_0", "Q8_0", ...; writes ``destination`` whole or not at all."""

def drafter_refusal(path: str, options: TargetOptions) -> str:
    """Why the kernels a target is first tried on cannot run this drafter, "" when they can.

    ModelError on a file that is no GGUF.
    """

@final
class TargetOptions:
    """How to load and run the target. Every field may be set after construction and before ``Target``."""

    def __init__(self) -> None: ...
    n_ctx: int  # tokens; 0 = the model's training context
    n_batch: int  # tokens a prefill call takes at most (512)
    n_threads: int  # 0 = physical cores
    n_threads_batch: int  # 0 = n_threads
    n_gpu_layers: int  # layers on the GPU; -1 = all
    flash_attention: str  # "auto" | "on" | "off"
    cache_type_k: str  # "f16" | "f32" | "bf16" | "q8_0" | "q4_0" | ...
    cache_type_v: str
    use_mmap: bool
    max_rows: int  # widest verify, rows (1..64)
    # "auto" | "own" | "ggml" | "llama": what runs the forwards; "auto" = "own", on a GPU "ggml", where they know model and
    # options
    kernels: str

@type_check_only
class DeviceTimes(TypedDict):
    """Microseconds inside a device's calls so far: copies asked for, graphs started, waiting for it."""

    copy_us: float
    submit_us: float
    wait_us: float

@final
class Target:
    """A GGUF model with its context (KV cache).

    ``progress`` receives the loaded share in [0, 1]; returning False stops the load (ModelError).
    """

    def __init__(self, path: str, options: TargetOptions, progress: Callable[[float], bool] | None = None) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def max_rows(self) -> int: ...
    @property
    def kernels(self) -> str: ...  # what runs: "own/<instruction set>", "ggml/<device>" or "llama"
    @property
    def kernels_reason(self) -> str: ...  # why "auto" took llama.cpp; "" where it did not
    @property
    def supports_tree(self) -> bool: ...  # False for recurrent / hybrid targets on llama.cpp: chains only
    @property
    def max_chain(self) -> int: ...  # drafts a chain may hold; 0 where nothing can be rolled back: plain decoding only
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos_token(self) -> int: ...  # -1 when the model has none
    @property
    def eos_token(self) -> int: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def n_past(self) -> int:
        """Tokens in the KV cache (the committed length)."""
    @property
    def n_kv_cells(self) -> int:
        """KV cells in use; equals ``n_past`` between rounds."""
    @property
    def closed(self) -> bool: ...
    def close(self) -> None:
        """Free the model and its context. Using the object afterwards raises BackendError."""
    def clear(self) -> None:
        """Forget every token."""
    def tokenize(self, text: str, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids of ``text``. ``parse_special``: control tokens written in the text become tokens."""
    def token_bytes(self, token: int, special: bool = False) -> bytes:
        """The bytes a token stands for; control tokens give b"" unless ``special``."""
    def token_text(self, token: int) -> str:
        """The vocabulary entry itself (for templates: bos_token, eos_token)."""
    def is_eog(self, token: int) -> bool: ...
    def prefill(
        self, tokens: Sequence[int] | NDArray[np.int32], progress: Callable[[int, int], bool] | None = None
    ) -> NDArray[np.float32]:
        """Append committed tokens; the logits (n_vocab,) after the last one. ContextFullError when they do not fit.

        Empty when ``progress`` (tokens done, tokens in all) returned False; what was decoded by then stays committed.
        """
    def device_times(self) -> DeviceTimes | None:
        """Of the target and its drafter, on a graph of ggml's operations; None elsewhere."""
    def replay_us(self, n: int) -> float:
        """Microseconds of one run of the last forward's graph, of ``n`` started one behind the other without waiting.

        What the device itself takes; nan where there is no such graph.
        """
    def verify(
        self,
        tokens: Sequence[int] | NDArray[np.int32],
        parents: Sequence[int] | NDArray[np.int32],
        logits: bool = False,
        picks: bool = True,
    ) -> tuple[NDArray[np.int32], NDArray[np.float32] | None]:
        """One forward over a tree of rows laid out depth-first.

        ``tokens`` (n,), ``parents`` (n,): parents[0] == -1 (the anchor), parents[i] < i. Returns each row's argmax (n,),
        empty when not asked for, and, when asked, its logits (n, n_vocab). Must be followed by ``commit``. ValueError on
        a malformed tree.
        """
    def commit(self, path: Sequence[int] | NDArray[np.int32]) -> None:
        """Keep the rows of ``path`` (row indices from the anchor 0 down one branch), drop the rest."""
    def rollback(self, n_past: int) -> None:
        """Drop committed tokens from position ``n_past`` on."""

@final
class DrafterOptions:
    def __init__(self) -> None: ...
    n_ctx: int  # tokens the drafter remembers; 0 = the target's context. A smaller one slides
    n_threads: int  # 0 = the target's; beside one on llama.cpp at most as many
    n_gpu_layers: int  # -1 = all
    # "auto" | "own" | "llama": what runs the forwards. "own": our graph on the CPU, of a target there or on llama.cpp;
    # "llama": of a target there; "auto": what the target runs on, but "own" wherever it can be. DrafterError when what was
    # asked for cannot be, ValueError on another name
    kernels: str

@final
class Drafter:
    """A DSpark block drafter bound to its target. Every metadata key it uses is checked before weights load."""

    def __init__(
        self,
        path: str,
        target: Target,
        options: DrafterOptions,
        progress: Callable[[float], bool] | None = None,
    ) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def kernels(self) -> str: ...  # what runs: "own/<instruction set>", "ggml/<device>" or "llama"
    @property
    def block_size(self) -> int: ...  # rows of the trained block
    @property
    def n_draft(
        self,
    ) -> int: ...  # positions a full block proposes (B): block_size, or one less when the anchor slot proposes nothing
    @property
    def top_k(self) -> int: ...  # candidates a position keeps (K = 8)
    @property
    def sample_from_anchor(self) -> bool: ...
    @property
    def has_confidence(self) -> bool: ...
    @property
    def target_layers(self) -> list[int]: ...  # 0-based target blocks whose input is tapped
    @property
    def mask_token(self) -> int: ...
    @property
    def warnings(self) -> list[str]: ...  # e.g. a layout key that was absent and its documented default
    @property
    def n_past(self) -> int:
        """Positions injected so far."""
    def close(self) -> None: ...
    def draft(
        self, anchor: int, n_draft: int, enough: float = 0.0
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
        """One block after the committed tokens: ids (n, K), Markov-biased values (n, K) descending, confidence (n,).

        Our own graph stops early, after two positions at least, where the confidences so far multiply to less than
        ``enough``.

        Ids below 0 fill the columns a reduced vocabulary cannot. Without a confidence head the confidence is the
        pick's softmax share over the whole draft vocabulary.
        """

@final
class Request:
    """One request. Defaults: greedy, plain, as many tokens as the context holds."""

    def __init__(self) -> None: ...
    n_predict: int  # tokens; -1 = until the context ends
    temperature: float  # 0 = argmax
    top_k: int  # 0 = off
    top_p: float  # 1 = off, 0 = the likeliest alone
    min_p: float  # 0 = off
    seed: int
    stop: list[str]
    ignore_eos: bool
    arm: str  # "plain" | "chain" | "tree" | "adaspark"
    arm_n: int  # drafts of a chain, rows of a tree (anchor included), pinned rows of adaspark (0 = learned)
    text: bool  # the arm adaspark: candidates from the request's own text ...
    acceptance: bool  # ... the fitted acceptance model ...
    gating: bool  # ... rounds without the drafter; each can be switched off alone
    draft_only: bool  # the arm plain: the drafter runs in every round, for a full trace; nothing of it is verified

@type_check_only
class RoundReport(TypedDict):
    """One verify round (what a trace would hold)."""

    tokens: list[int]  # tokens this round added to the reply
    rows: int
    drafted: int  # candidates verified: rows - 1
    accepted: int  # drafted tokens accepted
    draft_us: float
    verify_us: float
    commit_us: float

@type_check_only
class DepthCounts(TypedDict):
    drafted_by_depth: list[int]  # depth 1 first
    accepted_by_depth: list[int]

@type_check_only
class SourceCounts(TypedDict):
    drafter: DepthCounts  # drafts that the drafter alone proposed ...
    text: DepthCounts  # ... the request's own text alone ...
    agreed: DepthCounts  # ... or both, the same token

@type_check_only
class Statistics(TypedDict):
    arm: str
    prompt_tokens: int
    reused_tokens: int  # of the prompt, already in the cache
    completion_tokens: int
    rounds: int  # verify calls; the first token comes from the prefill
    rows: int  # verified rows, anchors included: rounds + drafted
    drafted: int
    accepted: int
    drafted_by_depth: list[int]  # depth 1 first
    accepted_by_depth: list[int]
    sources: SourceCounts
    width_rounds: dict[int, int]  # verified rows -> rounds
    rounds_plain: int  # the arm adaspark: its rounds by kind ...
    rounds_text: int
    rounds_draft: int
    expected_accepted: float  # ... S of the verified trees: drafts expected to be accepted, the last round left out ...
    realised_accepted: int  # ... drafts accepted in those rounds ...
    fitted_loss: float  # ... log loss of the fitted acceptance model over the labelled parents, nats ...
    head_loss: float  # ... of the head-based estimate, on the same labels ...
    labelled: int  # ... how many ...
    priced_rounds: int  # ... rounds but the first whose width was priced and filled ...
    price_error: float | None  # ... and their median |price / time - 1| of the verify
    prefill_us: float
    draft_us: float
    plan_us: float
    verify_us: float
    walk_us: float
    commit_us: float
    inject_us: float
    decode_us: float  # from the first token to the last

_Proposer: TypeAlias = Callable[[NDArray[np.int32]], tuple[Sequence[int], Sequence[int]]]

@final
class Session:
    """A decode session: prompt in, tokens out, one round at a time."""

    def __init__(self, target: Target, drafter: Drafter | None = None) -> None: ...
    def begin(
        self,
        prompt: Sequence[int] | NDArray[np.int32],
        request: Request,
        progress: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Start a request: prefill and the first token. Reuses the KV of the longest common prefix with the last request."""
    def step(self) -> str:
        """Run one round (or deliver what is pending); the text it adds: valid UTF-8, stop strings never shown."""
    def cancel(self) -> None:
        """Ask the session to stop before its next round (any thread). finish_reason becomes "cancel"."""
    @property
    def finished(self) -> bool: ...
    @property
    def finish_reason(self) -> str | None:
        """ "stop" (end of generation or stop string) | "length" | "cancel" | None while running."""
    @property
    def token_ids(self) -> list[int]:
        """Ids of the reply so far, without the end-of-generation token."""
    @property
    def committed(self) -> int:
        """Prompt plus reply tokens."""
    @property
    def last_round(self) -> RoundReport | None: ...
    @property
    def warnings(self) -> list[str]:
        """One line each: a chain cut short for a recurrent target, a drafter whose proposals are never accepted."""
    @property
    def statistics(self) -> Statistics: ...
    def set_trace(self, on: bool) -> None:
        """Record the rounds of the requests that follow."""
    def trace(self) -> bytes:
        """The records of the request's rounds so far (docs/traces.md)."""
    def learned(self, request: Request) -> bytes | None:
        """What the arm of such a request has learned, as versioned bytes; None when it has not run in this session."""
    def restore(self, request: Request, state: bytes) -> bool:
        """Take up where ``state`` left off, bit for bit. False, with nothing changed, when it is damaged, of another version
        or of another drafter's shape."""
    def set_proposer(self, proposer: _Proposer | None) -> None:
        """Test hook: ``proposer(committed ids)`` returns the candidate tokens and parents (-1 = the anchor) of each
        round's tree in place of the drafter's."""
