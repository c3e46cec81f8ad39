"""Tiny GGUF models written on the fly: targets of four architectures and DSpark drafters that go with them.

A random transformer has flat logits: F32 noise would decide its argmax, and its text would say nothing of the engine.
These models are built around a *successor*: every token t has one token succ(t) that the head prefers after it, and the
layers disturb that preference through attention. So logits are decisive, the text does not collapse (the successors of
the text tokens form one cycle), and how often the context wins is one number (``TargetSpec.context``). A drafter whose
Markov head stores the same successors agrees with the target about as often as the successor wins; one that stores
others is almost always wrong.

Arrays are kept in numpy's order: a tensor of ggml shape [a, b] is an array of shape (b, a).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Ggml
from gguf import GGUFValueType as Kv
from numpy.typing import NDArray

Array = NDArray[Any]
Weights = dict[str, NDArray[np.float32]]

# --------------------------------------------------------------------------------------------------------------- GGUF


@dataclass(frozen=True)
class Raw:
    """A tensor already encoded for its ggml type: ``data`` holds the bytes of each row."""

    data: NDArray[np.uint8]
    type: Ggml


Tensor = Array | Raw


def _kv_type(value: object) -> tuple[Kv, Kv | None]:
    """The GGUF type of a metadata value; numpy scalars keep their width, Python integers become UINT32."""
    if isinstance(value, list):
        element = _kv_type(value[0])[0]
        return Kv.ARRAY, Kv.INT32 if element == Kv.UINT32 else element
    if isinstance(value, bool):
        return Kv.BOOL, None
    if isinstance(value, str):
        return Kv.STRING, None
    if isinstance(value, np.int32) or (isinstance(value, int) and value < 0):
        return Kv.INT32, None
    if isinstance(value, int):
        return Kv.UINT32, None
    if isinstance(value, float):
        return Kv.FLOAT32, None
    msg = f"no GGUF type for {value!r}"
    raise TypeError(msg)


@dataclass(frozen=True)
class Gguf:
    """A model file in memory. ``edit`` makes the changed copies that the error tests write."""

    architecture: str
    keys: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def edit(
        self,
        *,
        drop_keys: Iterable[str] = (),
        set_keys: Mapping[str, Any] | None = None,
        drop_tensors: Iterable[str] = (),
        set_tensors: Mapping[str, Tensor] | None = None,
        architecture: str | None = None,
    ) -> Gguf:
        """A changed copy. Naming something to drop that is not there is an error: such a test would test nothing."""
        keys, tensors = dict(self.keys), dict(self.tensors)
        for name in drop_keys:
            del keys[name]
        for name in drop_tensors:
            del tensors[name]
        keys.update(set_keys or {})
        tensors.update(set_tensors or {})
        return Gguf(architecture or self.architecture, keys, tensors)

    def retype(self, names: Iterable[str], kind: Ggml) -> Gguf:
        """A copy whose tensors of these names are stored as ``kind``."""
        return self.edit(set_tensors={name: encode(_plain(self.tensors[name]), kind) for name in names})

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        for key, value in self.keys.items():
            kind, element = _kv_type(value)
            writer.add_key_value(key, int(value) if isinstance(value, np.int32) else value, kind, element)
        for name, tensor in self.tensors.items():
            if isinstance(tensor, Raw):
                writer.add_tensor(name, tensor.data, raw_dtype=tensor.type)
            else:
                writer.add_tensor(name, np.ascontiguousarray(tensor))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _plain(tensor: Tensor) -> NDArray[np.float32]:
    if isinstance(tensor, Raw):
        msg = "the tensor is encoded already"
        raise TypeError(msg)
    return np.asarray(tensor, np.float32)


def encode(values: NDArray[np.float32], kind: Ggml) -> Tensor:
    """``values`` in a ggml type. gguf-py writes every type used here but Q4_K."""
    if kind == Ggml.F32:
        return values
    if kind == Ggml.F16:
        return values.astype(np.float16)
    if kind == Ggml.Q4_K:
        return Raw(_encode_q4_k(values), kind)
    return Raw(gguf.quants.quantize(values, kind), kind)


def decode(tensor: Tensor) -> NDArray[np.float32]:
    """The values a stored tensor stands for (what the engine computes with)."""
    if isinstance(tensor, Raw):
        return np.asarray(gguf.quants.dequantize(tensor.data, tensor.type), np.float32)
    return np.asarray(tensor, np.float32)


def _encode_q4_k(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Q4_K, the simple way (no search): 8 groups of 32 with a 6-bit scale and a 6-bit minimum each."""
    rows, width = values.shape
    groups = values.reshape(-1, 8, 32).astype(np.float64)
    low = np.minimum(groups.min(-1), 0.0)
    step = (groups.max(-1) - low) / 15.0
    d = (step.max(-1, keepdims=True) / 63.0).astype(np.float16)
    dmin = ((-low).max(-1, keepdims=True) / 63.0).astype(np.float16)
    d64, m64 = np.maximum(d.astype(np.float64), 1e-12), np.maximum(dmin.astype(np.float64), 1e-12)
    sc = np.clip(np.rint(step / d64), 1, 63)
    mn = np.clip(np.rint(-low / m64), 0, 63)
    q = np.clip(np.rint((groups + (m64 * mn)[..., None]) / (d64 * sc)[..., None]), 0, 15).astype(np.uint8)
    s, m = sc.astype(np.uint8), mn.astype(np.uint8)
    scales = np.concatenate(
        [
            (s[:, :4] & 63) | ((s[:, 4:] >> 4) << 6),
            (m[:, :4] & 63) | ((m[:, 4:] >> 4) << 6),
            (s[:, 4:] & 15) | ((m[:, 4:] & 15) << 4),
        ],
        axis=1,
    )
    pairs = q.reshape(-1, 4, 2, 32)  # group 2i in the low nibbles, group 2i + 1 in the high ones
    nibbles = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(-1, 128)
    blocks = np.concatenate([d.view(np.uint8), dmin.view(np.uint8), scales, nibbles], axis=1)
    return blocks.reshape(rows, width // 256 * 144)


# --------------------------------------------------------------------------------------------------------- vocabulary

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "<|pad|>")
END_OF_TEXT, IM_START, IM_END, MASK = 0, 1, 2, 3  # both END_OF_TEXT and IM_END end a generation in llama.cpp
FIRST_BYTE = len(CONTROL_TOKENS)  # the token of byte b is FIRST_BYTE + b

# Merges of pairs, applied in this order; "\xc3\xa9" is é as one token, "\xf0\x9f" the first half of every emoji.
_MERGES = (
    (b" ", b"t"), (b"h", b"e"), (b" ", b"a"), (b"i", b"n"), (b" t", b"he"), (b"e", b"r"), (b"o", b"n"), (b" ", b"s"),
    (b"r", b"e"), (b"a", b"t"), (b"e", b"n"), (b"o", b"r"), (b" ", b"w"), (b" ", b"c"), (b"i", b"s"), (b"i", b"t"),
    (b"o", b"u"), (b"n", b"d"), (b"e", b"s"), (b" ", b"f"), (b" ", b"o"), (b"in", b"g"), (b" a", b"nd"), (b"a", b"l"),
    (b" t", b"o"), (b"a", b"r"), (b" ", b"b"), (b" ", b"in"), (b" o", b"n"), (b"l", b"e"), (b" f", b"or"), (b" c", b"at"),
    (b"u", b"s"), (b"s", b"t"), (b" ", b"re"), (b" w", b"it"), (b"v", b"er"), (b" s", b"t"), (b"e", b"d"), (b"l", b"l"),
    (b"\xf0", b"\x9f"), (b"\xc3", b"\xa9"), (b"\xe4", b"\xb8"),
)  # fmt: skip

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for every byte."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters, spare = {b: chr(b) for b in kept}, 256
    for b in range(256):
        if b not in letters:
            letters[b] = chr(spare)
            spare += 1
    return [letters[b] for b in range(256)]


_LETTERS = _byte_letters()


def _spell(data: bytes) -> str:
    return "".join(_LETTERS[b] for b in data)


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE: every byte is a token, so a multi-byte character can be split over tokens."""

    pieces: tuple[bytes, ...]  # b"" for control tokens
    texts: tuple[str, ...]  # the vocabulary entries as GGUF stores them

    @property
    def size(self) -> int:
        return len(self.texts)

    def decode(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self.pieces[t] for t in tokens)

    def token(self, piece: bytes) -> int:
        return self.pieces.index(piece)

    def keys(self, pre: str) -> dict[str, Any]:
        control = [t for t, piece in enumerate(self.pieces) if not piece]
        return {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": list(self.texts),
            "tokenizer.ggml.token_type": [3 if t in control else 1 for t in range(self.size)],
            "tokenizer.ggml.merges": [f"{_spell(a)} {_spell(b)}" for a, b in _MERGES],
            "tokenizer.ggml.bos_token_id": IM_START,
            "tokenizer.ggml.eos_token_id": IM_END,
            "tokenizer.ggml.add_bos_token": False,
            "tokenizer.chat_template": CHAT_TEMPLATE,
        }


def make_vocabulary(size: int = 320) -> Vocabulary:
    pieces = [b""] * FIRST_BYTE + [bytes([b]) for b in range(256)] + [a + b for a, b in _MERGES]
    texts = [*CONTROL_TOKENS, *(_spell(p) for p in pieces[FIRST_BYTE:])]
    spare = size - len(pieces)
    if spare < 0:
        msg = f"a vocabulary has at least {len(pieces)} tokens"
        raise ValueError(msg)
    return Vocabulary(tuple(pieces + [b""] * spare), tuple(texts + [f"<|reserved_{i}|>" for i in range(spare)]))


VOCABULARY = make_vocabulary()


def text_tokens(vocabulary: Vocabulary) -> list[int]:
    """Tokens whose bytes are printable ASCII: text made of these alone is valid UTF-8 in any order."""
    return [t for t, p in enumerate(vocabulary.pieces) if p and all(32 <= b < 127 for b in p)]


# Characters of 2, 3 and 4 bytes in which no byte occurs twice, so that a successor per token can spell them.
SPLIT_CHARACTERS = "Ж中😀תहλ€ź"


def split_character_cycle(vocabulary: Vocabulary, seed: int) -> list[int]:
    """A cycle of tokens that is valid UTF-8 with its multi-byte characters spelt byte by byte."""
    rng = np.random.default_rng(seed)
    parts: list[list[int]] = [[t] for t in text_tokens(vocabulary)]
    parts += [[FIRST_BYTE + b for b in character.encode()] for character in SPLIT_CHARACTERS]
    cycle = [t for i in rng.permutation(len(parts)) for t in parts[i]]
    if len(set(cycle)) != len(cycle):
        msg = "a token occurs twice in the cycle"
        raise ValueError(msg)
    return cycle


# ------------------------------------------------------------------------------------------------------------- target


@dataclass(frozen=True)
class TargetSpec:
    """Shape and behaviour of a tiny target."""

    architecture: str = "llama"  # "llama" | "qwen3" | "qwen3moe" | "lfm2" | "lfm2moe"
    seed: int = 1
    n_embd: int = 64
    n_layer: int = 4
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    n_expert: int = 0
    n_expert_used: int = 0
    dense_lead: int = 0  # lfm2moe: blocks before the first routed one
    n_ctx_train: int = 2048
    n_vocab: int = 320
    context: float = 0.45  # weight of what the layers add; at 0.15 the successor always wins
    sharpness: float = 1.6  # root mean square of query and key entries; its square is the spread of attention scores
    head: float = 12.0  # logit of a perfectly matched successor
    cycle: tuple[int, ...] = ()  # text tokens in the order they succeed one another; () = printable ASCII, shuffled
    tied: bool = False  # no output tensor: the head is the embedding
    conv_layers: tuple[int, ...] = ()  # lfm2: short convolutions instead of attention
    conv_window: int = 3
    rope_base: float = 10000.0
    rms_eps: float = 1e-5

    @property
    def interleaved_rope(self) -> bool:
        return self.architecture == "llama"

    @property
    def qk_norm(self) -> bool:
        return self.architecture != "llama"


@dataclass(frozen=True)
class TinyTarget:
    spec: TargetSpec
    vocabulary: Vocabulary
    successor: NDArray[np.int64]  # (n_vocab,)
    weights: Weights = field(repr=False)
    file: Gguf = field(repr=False)

    @property
    def text_tokens(self) -> list[int]:
        return sorted(set(self.successor.tolist()))


_PRE = {"llama": "smollm", "qwen3": "qwen2", "qwen3moe": "qwen2", "lfm2": "lfm2", "lfm2moe": "lfm2"}


def _successors(spec: TargetSpec, vocabulary: Vocabulary, rng: np.random.Generator) -> NDArray[np.int64]:
    cycle = np.array(spec.cycle or rng.permutation(text_tokens(vocabulary)), np.int64)
    successor = rng.choice(cycle, vocabulary.size).astype(np.int64)  # tokens outside the cycle lead into it
    successor[cycle] = np.roll(cycle, -1)
    return successor


def _normal(rng: np.random.Generator, *shape: int, std: float) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) * std).astype(np.float32)


def _near_one(rng: np.random.Generator, n: int, scale: float = 1.0) -> NDArray[np.float32]:
    """Norm weights: different in every entry, so that a norm applied twice or not at all shows."""
    return (scale * rng.uniform(0.8, 1.2, n)).astype(np.float32)


def _block(
    rng: np.random.Generator, prefix: str, n_embd: int, n_head: int, n_head_kv: int, head_dim: int, n_ff: int,
    *, sharpness: float, context: float, qk_norm: bool,
) -> Weights:  # fmt: skip
    """One attention block with a gated FFN. Query and key entries have the root mean square ``sharpness``."""
    unit = 1.0 / np.sqrt(n_embd)
    qk = unit if qk_norm else unit * sharpness
    w = {
        "attn_norm.weight": _near_one(rng, n_embd),
        "attn_q.weight": _normal(rng, n_head * head_dim, n_embd, std=qk),
        "attn_k.weight": _normal(rng, n_head_kv * head_dim, n_embd, std=qk),
        "attn_v.weight": _normal(rng, n_head_kv * head_dim, n_embd, std=unit),
        "attn_output.weight": _normal(rng, n_embd, n_head * head_dim, std=2.0 * context / np.sqrt(n_head * head_dim)),
        "ffn_norm.weight": _near_one(rng, n_embd),
        "ffn_gate.weight": _normal(rng, n_ff, n_embd, std=1.5 * unit),
        "ffn_up.weight": _normal(rng, n_ff, n_embd, std=unit),
        "ffn_down.weight": _normal(rng, n_embd, n_ff, std=context / np.sqrt(n_ff)),
    }
    if qk_norm:
        w["attn_q_norm.weight"] = _near_one(rng, head_dim, sharpness)
        w["attn_k_norm.weight"] = _near_one(rng, head_dim, sharpness)
    return {prefix + name: value for name, value in w.items()}


def _routed(rng: np.random.Generator, prefix: str, spec: TargetSpec) -> Weights:
    """A router that reads the token's code (``_codes``) and, less, the rest of the row: what rounding does to a row moves
    the experts' shares a little and never chooses another expert."""
    unit, n = 1.0 / np.sqrt(spec.n_embd), spec.n_expert
    biased = spec.architecture == "lfm2moe"
    router = _normal(rng, n, spec.n_embd, std=(0.08 if biased else 0.45) * unit)
    router[:, :n] = (6.0 if biased else 4.0) * np.eye(n)
    # the second half of the experts is preferred to the first: that alone decides between a code's two middle ones
    bias = np.where(np.arange(n) < n // 2, -0.1, 0.1) * rng.uniform(0.8, 1.2, n)
    return ({prefix + "exp_probs_b.bias": bias.astype(np.float32)} if biased else {}) | {
        prefix + "ffn_gate_inp.weight": router,
        prefix + "ffn_gate_exps.weight": _normal(rng, n, spec.n_ff, spec.n_embd, std=1.5 * unit),
        prefix + "ffn_up_exps.weight": _normal(rng, n, spec.n_ff, spec.n_embd, std=unit),
        prefix + "ffn_down_exps.weight": _normal(rng, n, spec.n_embd, spec.n_ff, std=spec.context / np.sqrt(spec.n_ff)),
    }


def _codes(rng: np.random.Generator, spec: TargetSpec, n_vocab: int) -> NDArray[np.float32]:
    """Which experts each token goes to, one entry an expert: high for the chosen ones, low for the others. With a bias on
    the choice (lfm2moe) the last chosen expert and the first rejected one are both in the middle."""
    n, used = spec.n_expert, spec.n_expert_used
    biased = spec.architecture == "lfm2moe"
    out = -rng.uniform(0.8 if biased else 0.6, 1.2, (n_vocab, n))
    for code in out:
        order = rng.permutation(n)
        if biased:
            middle = [rng.integers(0, n // 2), rng.integers(n // 2, n)]
            order = np.array([e for e in order if e not in middle])
            code[middle] = 0.0
        high = order[: used - biased]
        code[high] = -code[high]
    return out.astype(np.float32)


def _code_channels(spec: TargetSpec, w: Weights, rng: np.random.Generator) -> None:
    """The first channels of a routed model hold the token's code; no block writes there."""
    n = spec.n_expert
    w["token_embd.weight"][:, :n] = _codes(rng, spec, len(w["token_embd.weight"]))
    for name, value in w.items():
        if name.endswith(
            ("attn_output.weight", "shortconv.out_proj.weight", "ffn_down.weight", "ffn_down_exps.weight")
        ):
            value[..., :n, :] = 0.0


def _target_keys(spec: TargetSpec, vocabulary: Vocabulary) -> dict[str, Any]:
    a = spec.architecture
    keys: dict[str, Any] = {
        "general.name": f"tiny {a}",
        f"{a}.block_count": spec.n_layer,
        f"{a}.context_length": spec.n_ctx_train,
        f"{a}.embedding_length": spec.n_embd,
        f"{a}.feed_forward_length": spec.n_ff,
        f"{a}.attention.head_count": spec.n_head,
        f"{a}.attention.head_count_kv": spec.n_head_kv,
        f"{a}.attention.key_length": spec.head_dim,
        f"{a}.attention.value_length": spec.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": spec.rms_eps,
        f"{a}.rope.freq_base": spec.rope_base,
        f"{a}.rope.dimension_count": spec.head_dim,
        f"{a}.vocab_size": vocabulary.size,
    }
    if spec.n_expert:
        keys |= {
            f"{a}.expert_count": spec.n_expert,
            f"{a}.expert_used_count": spec.n_expert_used,
            f"{a}.expert_feed_forward_length": spec.n_ff,
        }
    if a == "lfm2moe":
        keys |= {f"{a}.leading_dense_block_count": spec.dense_lead, f"{a}.expert_gating_func": 2}  # sigmoid
    if a.startswith("lfm2"):
        keys[f"{a}.shortconv.l_cache"] = spec.conv_window
        keys[f"{a}.attention.head_count_kv"] = [
            0 if i in spec.conv_layers else spec.n_head_kv for i in range(spec.n_layer)
        ]
    return keys | vocabulary.keys(_PRE[a])


def make_target(spec: TargetSpec) -> TinyTarget:
    """The model a spec describes; the same spec gives the same bytes."""
    vocabulary = make_vocabulary(spec.n_vocab)
    rng = np.random.default_rng(spec.seed)
    successor = _successors(spec, vocabulary, rng)
    n, d = vocabulary.size, spec.n_embd
    w: Weights = {"token_embd.weight": _normal(rng, n, d, std=1.0)}
    for i in range(spec.n_layer):
        p = f"blk.{i}."
        block = _block(
            rng, p, d, spec.n_head, spec.n_head_kv, spec.head_dim, spec.n_ff,
            sharpness=spec.sharpness, context=spec.context, qk_norm=spec.qk_norm,
        )  # fmt: skip
        if spec.n_expert and i >= spec.dense_lead:
            block = {k: v for k, v in block.items() if not k.startswith(p + "ffn_") or k == p + "ffn_norm.weight"}
            block |= _routed(rng, p, spec)
        if i in spec.conv_layers:
            block = {k: v for k, v in block.items() if ".attn_" not in k or k == p + "attn_norm.weight"}
            block |= {
                p + "shortconv.conv.weight": _normal(rng, d, spec.conv_window, std=1.0),
                p + "shortconv.in_proj.weight": _normal(rng, 3 * d, d, std=1.0 / np.sqrt(d)),
                p + "shortconv.out_proj.weight": _normal(rng, d, d, std=spec.context / np.sqrt(d)),
            }
        w |= block
    if spec.n_expert:
        _code_channels(spec, w, rng)
    w["token_embd_norm.weight" if spec.architecture.startswith("lfm2") else "output_norm.weight"] = _near_one(rng, d)
    if not spec.tied:
        # Row j points at the embeddings of the tokens that j succeeds; tokens nothing leads to keep a logit of 0.
        head = np.zeros((n, d))
        for t in range(n):
            head[successor[t]] += w["token_embd.weight"][t] * (3.0 if t in set(spec.cycle) else 1.0)
        inside = np.zeros(n, bool)
        inside[successor] = True
        head[inside] *= spec.head / np.sqrt(d) / np.linalg.norm(head[inside], axis=1, keepdims=True)
        w["output.weight"] = head.astype(np.float32)
    return TinyTarget(spec, vocabulary, successor, w, Gguf(spec.architecture, _target_keys(spec, vocabulary), w))


def qwen2(llama: Gguf) -> Gguf:
    """A llama file as qwen2: its blocks with biases on queries, keys and values (and the other rotation)."""
    keys = {k.replace("llama.", "qwen2.", 1): v for k, v in llama.keys.items()}
    rng = np.random.default_rng(5)
    biases = {
        name.replace(".weight", ".bias"): rng.normal(0, 0.3, np.asarray(w).shape[0]).astype(np.float32)
        for name, w in llama.tensors.items()
        if name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight"))
    }
    return Gguf("qwen2", keys | {"tokenizer.ggml.pre": "qwen2"}, {**llama.tensors, **biases})


# Seeds with greedy texts that are varied and leave no close choice (session_tools, MAIN_PROMPTS).
DENSE = TargetSpec("llama", seed=131)
QWEN3 = TargetSpec("qwen3", seed=22, head_dim=32, n_head=2, n_head_kv=1)
ROUTED = TargetSpec("qwen3moe", seed=193, n_expert=4, n_expert_used=2, n_ff=64)
HYBRID = TargetSpec("lfm2", seed=388, n_layer=5, conv_layers=(0, 1, 3))
HYBRID_ROUTED = TargetSpec(
    "lfm2moe", seed=180, n_layer=5, conv_layers=(0, 1, 3), n_expert=7, n_expert_used=3, n_ff=64, dense_lead=2
)
TIED = TargetSpec("llama", seed=15, tied=True, context=2.5, n_layer=3)
# The successor always wins: the text is the cycle, and every token of the first lap occurs once.
CYCLE = TargetSpec("llama", seed=16, context=0.12, n_layer=3, cycle=tuple(split_character_cycle(VOCABULARY, 16)))
# Wide enough for K-quants (rows of 256).
WIDE = TargetSpec("llama", seed=17, n_embd=256, n_layer=3, n_head=4, n_head_kv=2, head_dim=64, n_ff=256, context=0.35)
WIDE_ROUTED = dataclasses.replace(WIDE, architecture="qwen3moe", n_expert=9, n_expert_used=3)
WIDE_HYBRID = dataclasses.replace(
    WIDE,
    architecture="lfm2moe",
    n_expert=5,
    n_expert_used=2,
    n_layer=4,
    conv_layers=(1, 2),
    dense_lead=1,
    conv_window=4,
)

# ------------------------------------------------------------------------------------------------------------ drafter


@dataclass(frozen=True)
class DrafterSpec:
    """A DSpark drafter for a tiny target."""

    seed: int = 101
    n_layer: int = 2
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 16
    n_ff: int = 96
    rank: int = 64
    block_size: int = 7
    sample_from_anchor: bool = True
    taps: tuple[int, ...] = (1, 2, 3)
    agree: bool = True  # the Markov head stores the target's successors; otherwise those of an unrelated map
    markov: float = 12.0  # logit the Markov head gives the successor
    confidence: bool = True
    own_head: bool = False
    own_embedding: bool = False
    reduced: int = 0  # tokens of the draft vocabulary (d2t); 0 = the target's
    context: float = 0.5
    sharpness: float = 1.4
    rms_eps: float = 1e-6


@dataclass(frozen=True)
class TinyDrafter:
    spec: DrafterSpec
    target: TinyTarget
    d2t: NDArray[np.int64]  # target ids of the draft vocabulary, ascending
    file: Gguf = field(repr=False)

    @property
    def weights(self) -> Weights:
        """What the file's tensors stand for after quantisation, without d2t."""
        return {name: decode(t) for name, t in self.file.tensors.items() if name != "d2t"}

    @property
    def n_draft(self) -> int:
        return self.spec.block_size - (0 if self.spec.sample_from_anchor else 1)

    def with_file(self, file: Gguf) -> TinyDrafter:
        return dataclasses.replace(self, file=file)


HEAD_TENSORS = ("markov_w1.weight", "markov_w2.weight", "conf_proj.weight")


def make_drafter(target: TinyTarget, spec: DrafterSpec = DrafterSpec()) -> TinyDrafter:
    t, rng = target.spec, np.random.default_rng(spec.seed)
    d, n = t.n_embd, target.vocabulary.size
    d2t = np.arange(n, dtype=np.int64)
    if spec.reduced:
        # most text tokens and an end-of-generation token; some text tokens are left out, so a pick can be impossible
        text = np.array(target.text_tokens)
        d2t = np.sort(np.append(rng.choice(text, min(spec.reduced - 1, len(text)), replace=False), IM_END)).astype(
            np.int64
        )
    w: dict[str, Tensor] = {}
    for i in range(spec.n_layer):
        w |= _block(
            rng, f"blk.{i}.", d, spec.n_head, spec.n_head_kv, spec.head_dim, spec.n_ff,
            sharpness=spec.sharpness, context=spec.context, qk_norm=True,
        )  # fmt: skip
    features = len(spec.taps) * d
    w["fc.weight"] = _normal(rng, d, features, std=1.0 / np.sqrt(features))
    w["enc.output_norm.weight"] = _near_one(rng, d)
    w["output_norm.weight"] = _near_one(rng, d)
    successor = target.successor if spec.agree else rng.permutation(target.text_tokens)[rng.integers(0, 40, n)]
    code = rng.standard_normal((n, spec.rank))
    code /= np.linalg.norm(code, axis=1, keepdims=True)
    back = np.zeros((n, spec.rank))
    np.add.at(back, successor, code * np.where(np.isin(np.arange(n), target.text_tokens), 3.0, 1.0)[:, None])
    length = np.linalg.norm(back, axis=1, keepdims=True)
    back = spec.markov * back / np.maximum(length, 1e-9) + 0.2 * rng.standard_normal((n, spec.rank))
    w["markov_w1.weight"] = code.astype(np.float32)
    w["markov_w2.weight"] = back[d2t].astype(np.float32)
    if spec.confidence:
        w["conf_proj.weight"] = np.concatenate(
            [_normal(rng, 1, d, std=1.0 / np.sqrt(d)), _normal(rng, 1, spec.rank, std=1.0)], axis=1
        )
        w["conf_proj.bias"] = np.array([0.7], np.float32)
    if spec.own_embedding:
        w["token_embd.weight"] = _normal(rng, n, d, std=1.0)
    if spec.own_head or spec.reduced:
        w["output.weight"] = _normal(rng, len(d2t), d, std=1.5 / np.sqrt(d))
    if spec.reduced:
        w["d2t"] = d2t
    tokenizer = {k: v for k, v in target.file.keys.items() if k.startswith("tokenizer.ggml.")}
    keys: dict[str, Any] = {
        "general.name": f"tiny {t.architecture} DSpark",
        "dflash.block_count": spec.n_layer,
        "dflash.context_length": t.n_ctx_train,
        "dflash.embedding_length": d,
        "dflash.feed_forward_length": spec.n_ff,
        "dflash.attention.head_count": spec.n_head,
        "dflash.attention.head_count_kv": spec.n_head_kv,
        "dflash.attention.key_length": spec.head_dim,
        "dflash.attention.value_length": spec.head_dim,
        "dflash.attention.layer_norm_rms_epsilon": spec.rms_eps,
        "dflash.rope.freq_base": t.rope_base,
        "dflash.rope.dimension_count": spec.head_dim,
        "dflash.block_size": spec.block_size,
        "dflash.target_layers": list(spec.taps),
        "dflash.sample_from_anchor": spec.sample_from_anchor,
        "dflash.has_confidence_head": spec.confidence,
        **tokenizer,
        "tokenizer.ggml.mask_token_id": MASK,
    }
    return TinyDrafter(spec, target, d2t, Gguf("dflash", keys, w))


def without_vocabulary(drafter: TinyDrafter) -> Gguf:
    """The drafter with no vocabulary of its own: the mask id stays under ``tokenizer.ggml``."""
    names = [k for k in drafter.file.keys if k.startswith("tokenizer.ggml.") and k != "tokenizer.ggml.mask_token_id"]
    return drafter.file.edit(
        drop_keys=names,
        set_keys={"tokenizer.ggml.model": "none", "dflash.vocab_size": drafter.target.vocabulary.size},
    )


def truncated(path: Path, destination: Path, share: float) -> Path:
    """The first ``share`` of a file's bytes."""
    data = path.read_bytes()
    destination.write_bytes(data[: int(len(data) * share)])
    return destination
