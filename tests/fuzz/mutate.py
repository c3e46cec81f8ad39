"""GGUF files taken apart, damaged and put together again.

A file is kept as its parts, so that a change stays where it was made: offsets and the sizes of the data follow from the
tensors' descriptions, unless it is these that are damaged. What is written need not be a valid file.
"""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

import gguf
from gguf import GGUFValueType as Kv

_FORMATS = {
    Kv.UINT8: "B", Kv.INT8: "b", Kv.UINT16: "H", Kv.INT16: "h", Kv.UINT32: "I", Kv.INT32: "i", Kv.FLOAT32: "f",
    Kv.BOOL: "?", Kv.UINT64: "Q", Kv.INT64: "q", Kv.FLOAT64: "d",
}  # fmt: skip
_FLOATS = (Kv.FLOAT32, Kv.FLOAT64)
_INTEGERS = tuple(kind for kind in _FORMATS if kind not in (*_FLOATS, Kv.BOOL))
_LARGEST = 8 << 20  # bytes of tensor data written: a description that asks for more is of a file cut short


@dataclass
class Value:
    """A metadata value; an array's element type is ``element``. Texts are bytes: they need not be UTF-8."""

    kind: Kv
    value: Any
    element: Kv | None = None


@dataclass
class Tensor:
    name: bytes
    shape: list[int]
    type: int
    data: bytes
    shift: int = 0  # added to its offset


@dataclass
class File:
    keys: list[tuple[bytes, Value]]
    tensors: list[Tensor]
    version: int = 3
    more_keys: int = 0  # that the header counts and the file lacks
    more_tensors: int = 0
    tail: list[tuple[str, int, int]] = field(default_factory=list)  # changes of the bytes written

    @property
    def architecture(self) -> bytes:
        return next((v.value for k, v in self.keys if k == b"general.architecture" and v.kind == Kv.STRING), b"llama")

    @property
    def alignment(self) -> int:
        found = next((v.value for k, v in self.keys if k == b"general.alignment"), 32)
        return found if isinstance(found, int) and 0 < found <= 1 << 20 else 32

    def bytes(self) -> bytes:
        out = [b"GGUF", struct.pack("<I", self.version)]
        out += [_pack(Kv.UINT64, len(self.tensors) + self.more_tensors)]
        out += [_pack(Kv.UINT64, len(self.keys) + self.more_keys)]
        for name, value in self.keys:
            out += [_text(name), struct.pack("<I", value.kind), _value(value)]
        offset, data = 0, []
        for t in self.tensors:
            block, size = block_of(t.type)
            count = 1
            for n in t.shape:
                count *= max(n, 0)
            need = count // block * size
            out += [_text(t.name), struct.pack("<I", len(t.shape)), *(_pack(Kv.INT64, n) for n in t.shape)]
            out += [struct.pack("<I", t.type & 0xFFFFFFFF), _pack(Kv.UINT64, offset + t.shift)]
            pad = -need % self.alignment
            if offset + need <= _LARGEST:
                repeats = need // len(t.data) + 1 if t.data else 1
                data.append((t.data or bytes(need)) * repeats if len(t.data) != need else t.data)
                data[-1] = data[-1][:need] + bytes(pad)
            offset += need + pad
        head = b"".join(out)
        head += bytes(-len(head) % self.alignment)
        whole = bytearray(head + b"".join(data))
        for what, a, b in self.tail:
            if what == "cut":
                del whole[a % (len(whole) + 1) :]
            elif whole:  # a byte of the head or, "data", of all
                whole[a % (len(head) if what == "head" else len(whole)) % len(whole)] = b
        return bytes(whole)


def block_of(kind: int) -> tuple[int, int]:
    """Weights and bytes of a block of a ggml type."""
    try:
        return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        return 1, 4


def _pack(kind: Kv, value: Any) -> bytes:
    if kind in _FLOATS:
        try:
            return struct.pack("<" + _FORMATS[kind], float(value))
        except (OverflowError, ValueError, TypeError):
            return struct.pack("<" + _FORMATS[kind], float("inf"))
    if kind == Kv.BOOL:
        return bytes([int(bool(value))])
    size = struct.calcsize(_FORMATS[kind])
    try:
        number = int(value)
    except (OverflowError, ValueError, TypeError):
        number = 0
    return (number & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _text(value: bytes) -> bytes:
    return _pack(Kv.UINT64, len(value)) + value


def _scalar(kind: Kv, value: Any) -> bytes:
    if kind == Kv.STRING:
        return _text(value if isinstance(value, bytes) else str(value).encode())
    return _pack(kind, value) if kind in _FORMATS else b""


def _value(v: Value) -> bytes:
    if v.kind != Kv.ARRAY:
        return _scalar(v.kind, v.value)
    element = Kv.UINT8 if v.element is None else v.element
    return struct.pack("<I", element) + _pack(Kv.UINT64, len(v.value)) + b"".join(_scalar(element, x) for x in v.value)


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, kind: Kv) -> Any:
        form = "<" + _FORMATS[kind]
        self.at += struct.calcsize(form)
        return struct.unpack_from(form, self.data, self.at - struct.calcsize(form))[0]

    def text(self) -> bytes:
        size = self.number(Kv.UINT64)
        self.at += size
        return self.data[self.at - size : self.at]

    def scalar(self, kind: Kv) -> Any:
        return self.text() if kind == Kv.STRING else self.number(kind)


def parse(data: bytes) -> File:
    """The parts of a valid file."""
    c = _Cursor(data)
    c.at = 8
    n_tensors, n_keys = c.number(Kv.UINT64), c.number(Kv.UINT64)
    keys: list[tuple[bytes, Value]] = []
    for _ in range(n_keys):
        name, kind = c.text(), Kv(c.number(Kv.UINT32))
        if kind == Kv.ARRAY:
            element = Kv(c.number(Kv.UINT32))
            keys.append((name, Value(kind, [c.scalar(element) for _ in range(c.number(Kv.UINT64))], element)))
        else:
            keys.append((name, Value(kind, c.scalar(kind))))
    described = []
    for _ in range(n_tensors):
        name = c.text()
        shape = [c.number(Kv.INT64) for _ in range(c.number(Kv.UINT32))]
        described.append((name, shape, c.number(Kv.UINT32), c.number(Kv.UINT64)))
    file = File(keys, [])
    start = c.at + -c.at % file.alignment
    for name, shape, kind, offset in described:
        block, size = block_of(kind)
        count = 1
        for n in shape:
            count *= n
        file.tensors.append(Tensor(name, shape, kind, data[start + offset : start + offset + count // block * size]))
    return file


def differences(before: File, after: File) -> list[str]:
    """What was changed, for people."""
    old, new = dict(before.keys), dict(after.keys)
    out = [f"key {k!r}: gone" for k in old if k not in new]
    out += [f"key {k!r}: {v}" for k, v in new.items() if old.get(k) != v]
    if len(new) != len(after.keys):
        out.append("a key twice")
    was = {t.name: t for t in before.tensors}
    out += [f"tensor {name!r}: gone" for name in was if name not in {t.name for t in after.tensors}]
    for t in after.tensors:
        o = was.get(t.name, Tensor(b"", [], 0, b""))
        if (o.shape, o.type, o.shift) != (t.shape, t.type, t.shift):
            out.append(f"tensor {t.name!r}: {o.shape} of type {o.type} -> {t.shape} of type {t.type}, shift {t.shift}")
        elif o.data != t.data:
            out.append(f"tensor {t.name!r}: other data, {t.data[:16].hex()}...")
    out += [f"{what} {a} {b}" for what, a, b in after.tail]
    header = (after.version, after.more_keys, after.more_tensors)
    return [text[:300] for text in out] + ([f"header {header}"] if header != (3, 0, 0) else [])


# ------------------------------------------------------------------------------------------------------------- changes

_NUMBERS = (
    0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 96, 127, 128, 255, 256, 257, 319, 320, 321, 511, 512, 513,
    1000, 1025, 4096, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 62) + 1,
    (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1, -2, -32, -(1 << 31), -(1 << 63),
)  # fmt: skip
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e-5, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"), 1e4)
_TEXTS = (
    b"", b" ", b"a", b"\xff\xfe\x80", b"a\0b", b"\xc3", b"x" * 300, b"y" * 100_000, b"%s%n%d", b"none", b"linear", b"yarn",
    b"longrope", b"default", b"silu", b"gelu", b"{% for", b"{{ 1 / 0 }}", b"{{ messages[99].x.y }}", b"{% raw %}",
    b"{{ raise_exception('no') }}", b"{{ bos_token }}{{ messages[0]['content'] }}", b"{{ messages }}", b"\n", b"</s>",
    b"<|end|>", b"<|return|>", b"<|call|>", b"phi-3", b"../../x", b"\xef\xbf\xbd", b"[1, 2]",
)  # fmt: skip
_TOKENIZERS = (b"gpt2", b"llama", b"bert", b"t5", b"rwkv", b"plamo2", b"gemma4", b"none", b"no_vocab", b"test",
               b"hybriddna", b"whitespace")  # fmt: skip
_PRES = (
    b"default", b"llama-bpe", b"smollm", b"qwen2", b"qwen35", b"lfm2", b"gpt-2", b"gpt-4o", b"deepseek-v3", b"kimi-k2",
    b"tekken", b"chatglm-bpe", b"falcon", b"bloom", b"viking", b"superbpe", b"jina-v2-code", b"gemma4", b"whitespace",
)  # fmt: skip
_ARCHITECTURES = (
    b"llama", b"qwen2", b"qwen3", b"qwen3moe", b"lfm2", b"lfm2moe", b"dflash", b"eagle3", b"clip", b"bert", b"t5", b"gpt2",
    b"mamba", b"mamba2", b"rwkv6", b"rwkv7", b"gemma", b"gemma2", b"gemma3", b"gemma3n", b"phi3", b"falcon", b"deepseek2",
    b"qwen3next", b"qwen35", b"qwen2moe", b"qwen2vl", b"jamba", b"granitehybrid", b"gpt-oss", b"llama4", b"minicpm",
    b"minicpm3", b"glm4", b"olmo2", b"mistral3", b"smollm3", b"stablelm", b"starcoder2", b"cohere2", b"exaone4", b"bitnet",
    b"deci", b"wavtokenizer-dec", b"kimi-linear", b"nemotron_h", b"falcon-h1", b"plamo2", b"apertus", b"llada", b"dream",
    b"hunyuan-dense", b"seed_oss", b"grovemoe", b"step35", b"mimo2", b"(unknown)",
)  # fmt: skip

# Keys of an architecture that files of another have: reading one may turn on a part of a graph.
_SUFFIXES = tuple(
    b"vocab_size context_length embedding_length embedding_length_out block_count leading_dense_block_count "
    b"feed_forward_length expert_feed_forward_length expert_shared_feed_forward_length use_parallel_residual "
    b"expert_count expert_used_count expert_shared_count expert_group_count expert_group_used_count "
    b"expert_weights_scale expert_weights_norm expert_gating_func moe_every_n_layers nextn_predict_layers "
    b"hidden_activation pooling_type logit_scale attn_logit_softcapping final_logit_softcapping residual_scale "
    b"embedding_scale full_attention_interval attention.head_count attention.head_count_kv attention.max_alibi_bias "
    b"attention.clamp_kqv attention.key_length attention.value_length attention.layer_norm_epsilon "
    b"attention.layer_norm_rms_epsilon attention.causal attention.sliding_window attention.sliding_window_pattern "
    b"attention.scale attention.value_scale attention.output_scale attention.temperature_length "
    b"attention.temperature_scale attention.key_length_swa attention.value_length_swa attention.shared_kv_layers "
    b"attention.recurrent_layers attention.q_lora_rank hyper_connection.count rope.dimension_count "
    b"rope.dimension_count_swa rope.dimension_sections rope.freq_base rope.freq_base_swa rope.scale_linear "
    b"rope.scaling.type rope.scaling.factor rope.scaling.alpha rope.scaling.attn_factor "
    b"rope.scaling.original_context_length rope.scaling.finetuned rope.scaling.yarn_log_multiplier "
    b"rope.scaling.yarn_ext_factor rope.scaling.yarn_attn_factor rope.scaling.yarn_beta_fast "
    b"rope.scaling.yarn_beta_slow ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count "
    b"shortconv.l_cache classifier.output_labels classifier.pooling_type target_layers target_hidden_size block_size "
    b"conv_kernel_size conv_group_size selector_rank selector_top_k sample_from_anchor has_confidence_head "
    b"swiglu_clamp_exp swiglu_clamp_shexp n_deepstack_layers deepstack_mapping decoder_start_token_id".split()
)
_GENERAL = tuple(
    b"general.alignment general.file_type general.type general.quantization_version general.name general.architecture "
    b"split.no split.count split.tensors.count tokenizer.ggml.model tokenizer.ggml.pre tokenizer.ggml.tokens "
    b"tokenizer.ggml.token_type tokenizer.ggml.token_type_count tokenizer.ggml.scores tokenizer.ggml.merges "
    b"tokenizer.ggml.bos_token_id tokenizer.ggml.eos_token_id tokenizer.ggml.eot_token_id tokenizer.ggml.eom_token_id "
    b"tokenizer.ggml.unknown_token_id tokenizer.ggml.seperator_token_id tokenizer.ggml.padding_token_id "
    b"tokenizer.ggml.cls_token_id tokenizer.ggml.mask_token_id tokenizer.ggml.add_bos_token "
    b"tokenizer.ggml.add_eos_token tokenizer.ggml.add_sep_token tokenizer.ggml.add_space_prefix "
    b"tokenizer.ggml.remove_extra_whitespaces tokenizer.ggml.precompiled_charsmap tokenizer.huggingface.json "
    b"tokenizer.chat_template tokenizer.ggml.normalizer.lowercase tokenizer.ggml.fim_pre_token_id "
    b"tokenizer.ggml.fim_pad_token_id tokenizer.ggml.fim_rep_token_id tokenizer.ggml.suppress_tokens".split()
)
_TENSORS = tuple(
    b"token_embd.weight output.weight output_norm.weight output_norm.bias token_embd_norm.weight rope_freqs.weight "
    b"rope_factors_long.weight rope_factors_short.weight blk.0.attn_qkv.weight blk.0.attn_q.bias blk.0.attn_k.bias "
    b"blk.0.attn_v.bias blk.0.attn_qkv.bias blk.0.attn_output.bias blk.0.attn_q_norm.weight blk.0.attn_k_norm.weight "
    b"blk.0.attn_sinks.weight blk.0.ffn_gate_inp.weight blk.0.ffn_gate_exps.weight blk.0.ffn_gate_up_exps.weight "
    b"blk.0.exp_probs_b.bias blk.0.ffn_gate.bias blk.0.ffn_down.bias blk.0.ffn_up.bias blk.0.attn_q.scale "
    b"blk.0.attn_q.input_scale blk.0.ffn_down.scale output.scale fc.scale markov_w2.scale blk.1.attn_norm.weight "
    b"blk.0.shortconv.conv.weight d2t selector_hidden.weight conf_proj.weight conf_proj.bias fc.weight "
    b"enc.output_norm.weight markov_w1.weight markov_w2.weight blk.0.rope_freqs.weight cls.weight".split()
)


class Mutator:
    """Draws changes; one of these for one case."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def mutate(self, original: File) -> File:
        file = copy.deepcopy(original)
        changes = (
            (self.key_number, 30), (self.key_drop, 6), (self.key_retype, 8), (self.key_add, 14), (self.key_array, 8),
            (self.key_text, 6), (self.key_rename, 2), (self.key_swap, 2), (self.architecture, 2), (self.vocabulary, 12),
            (self.special_token, 5), (self.tensor_shape, 10), (self.tensor_type, 6), (self.tensor_drop, 4),
            (self.tensor_rename, 4), (self.tensor_add, 4), (self.tensor_offset, 2), (self.tensor_swap, 2),
            (self.tensor_data, 6), (self.header, 2), (self.truncate, 2), (self.head_bytes, 4), (self.data_bytes, 1),
        )  # fmt: skip
        for _ in range(self.rng.choice((1, 1, 1, 1, 2, 2, 3, 5))):
            self.rng.choices([c for c, _ in changes], [w for _, w in changes])[0](file)
        return file

    # ---- values

    def number(self, near: Any = None) -> int:
        if isinstance(near, (int, float)) and abs(near) < 1 << 64 and self.rng.random() < 0.6:
            n = int(near)
            return self.rng.choice((n - 1, n + 1, n * 2, n // 2, n * n, -n, n + 16, n - 16, n * 3, n << 8, n | 1))
        return self.rng.choice(_NUMBERS)

    def scalar(self, kind: Kv, near: Any = None) -> Any:
        if kind == Kv.STRING:
            return self.rng.choice(_TEXTS)
        if kind == Kv.BOOL:
            return self.rng.random() < 0.5
        if kind in _FLOATS:
            return float(self.number(near)) if self.rng.random() < 0.2 else self.rng.choice(_REALS)
        return self.number(near)

    def value(self, near: Any = None) -> Value:
        kind = self.rng.choice((*_FORMATS, Kv.STRING, Kv.UINT32, Kv.UINT32, Kv.FLOAT32, Kv.ARRAY))
        if kind != Kv.ARRAY:
            return Value(kind, self.scalar(kind, near))
        element = self.rng.choice((*_FORMATS, Kv.STRING, Kv.UINT32, Kv.INT32))
        count = self.rng.choice((0, 1, 2, 3, 4, 5, 8, 16, 64, 512, 513, 2000))
        one = self.scalar(element, near)
        return Value(Kv.ARRAY, [one if count > 16 else self.scalar(element, near) for _ in range(count)], element)

    # ---- keys

    def _key(self, file: File, *kinds: Kv) -> int | None:
        found = [i for i, (_, v) in enumerate(file.keys) if not kinds or v.kind in kinds]
        return self.rng.choice(found) if found else None

    def key_number(self, file: File) -> None:
        if (i := self._key(file, *_FORMATS)) is not None:
            file.keys[i][1].value = self.scalar(file.keys[i][1].kind, file.keys[i][1].value)

    def key_drop(self, file: File) -> None:
        if (i := self._key(file)) is not None:
            del file.keys[i]

    def key_retype(self, file: File) -> None:
        if (i := self._key(file)) is None:
            return
        name, old = file.keys[i]
        if old.kind in _INTEGERS and self.rng.random() < 0.4:  # the same number in another type, or for every block
            kind = self.rng.choice((*_INTEGERS, *_FLOATS))
            blocks = next((v.value for k, v in file.keys if k.endswith(b".block_count")), 2)
            blocks = blocks if isinstance(blocks, int) and 0 < blocks < 600 else 2
            as_array = self.rng.random() < 0.4
            file.keys[i] = (name, Value(Kv.ARRAY, [old.value] * blocks, kind) if as_array else Value(kind, old.value))
        else:
            file.keys[i] = (name, self.value(old.value))

    def key_add(self, file: File) -> None:
        own = file.architecture + b"." + self.rng.choice(_SUFFIXES)
        name = own if self.rng.random() < 0.75 else self.rng.choice(_GENERAL)
        if self.rng.random() < 0.9:
            file.keys = [(k, v) for k, v in file.keys if k != name]
        file.keys.append((name, self.value()))

    def key_array(self, file: File) -> None:
        if (i := self._key(file, Kv.ARRAY)) is None:
            return
        v = file.keys[i][1]
        element = Kv.UINT8 if v.element is None else v.element
        if v.value and self.rng.random() < 0.5:
            at = self.rng.randrange(len(v.value))
            v.value[at] = self.scalar(element, v.value[at])
        elif self.rng.random() < 0.5:
            del v.value[self.rng.choice((0, 1, len(v.value) // 2, max(len(v.value) - 1, 0))) :]
        elif self.rng.random() < 0.5:
            one = self.scalar(element)
            long = isinstance(one, bytes) and len(one) > 1000
            v.value += [one] * self.rng.choice((1, 2, 3) if long else (1, 2, 500, 20_000))
        else:
            v.element = self.rng.choice((*_FORMATS, Kv.STRING))

    def key_text(self, file: File) -> None:
        if (i := self._key(file, Kv.STRING)) is None:
            return
        name, v = file.keys[i]
        known = {b"tokenizer.ggml.model": _TOKENIZERS, b"tokenizer.ggml.pre": _PRES}.get(name, _TEXTS)
        v.value = self.rng.choice(known if self.rng.random() < 0.8 else _TEXTS)

    def key_rename(self, file: File) -> None:
        if (i := self._key(file)) is not None:
            name = self.rng.choice((*_GENERAL, file.architecture + b"." + self.rng.choice(_SUFFIXES), *_TEXTS))
            file.keys[i] = (name, file.keys[i][1])

    def key_swap(self, file: File) -> None:
        i, j = self._key(file), self._key(file)
        if i is not None and j is not None:
            a, b = file.keys[i], file.keys[j]
            file.keys[i], file.keys[j] = (a[0], b[1]), (b[0], a[1])

    def architecture(self, file: File) -> None:
        """Another architecture, its keys with it."""
        old, new = file.architecture + b".", self.rng.choice(_ARCHITECTURES)
        for i, (name, v) in enumerate(file.keys):
            if name == b"general.architecture":
                v.value = new
            elif name.startswith(old):
                file.keys[i] = (new + b"." + name[len(old) :], v)

    # ---- vocabulary

    def _named(self, file: File, name: bytes) -> Value | None:
        return next((v for k, v in file.keys if k == name), None)

    def vocabulary(self, file: File) -> None:
        tokens = self._named(file, b"tokenizer.ggml.tokens")
        if tokens is None or tokens.kind != Kv.ARRAY or not tokens.value:
            return
        words, n = tokens.value, len(tokens.value)
        what = self.rng.randrange(8)
        if what == 0:
            del words[self.rng.choice((0, 1, 2, n // 2, n - 1)) :]
        elif what == 1:
            words += [b"more%d" % i for i in range(self.rng.choice((1, 32, 5000)))]
        elif what == 2:  # duplicates
            for _ in range(self.rng.choice((1, 10, n))):
                words[self.rng.randrange(n)] = self.rng.choice(words)
        elif what == 3:
            for _ in range(self.rng.choice((1, 1, 20, n))):
                words[self.rng.randrange(n)] = self.rng.choice(_TEXTS[:10] + _TEXTS[-10:])
        elif what == 4:
            self.rng.shuffle(words)
        elif what == 5:  # another kind of tokenizer, with the scores most need
            model = self._named(file, b"tokenizer.ggml.model")
            if model is not None:
                model.kind, model.value = Kv.STRING, self.rng.choice(_TOKENIZERS)
            scores = [self.rng.choice(_REALS) if self.rng.random() < 0.1 else -float(i) for i in range(n)]
            file.keys.append((b"tokenizer.ggml.scores", Value(Kv.ARRAY, scores, Kv.FLOAT32)))
            if self.rng.random() < 0.5:
                self._some_words(words, [b"<0x%02X>" % b for b in range(256)])
        elif what == 6:
            kinds = self._named(file, b"tokenizer.ggml.token_type")
            if kinds is not None and kinds.kind == Kv.ARRAY:
                kinds.value = [self.rng.choice((0, 1, 2, 3, 4, 5, 6, 7, -1, 1 << 30)) for _ in kinds.value]
        else:
            merges = self._named(file, b"tokenizer.ggml.merges")
            if merges is not None and merges.kind == Kv.ARRAY:
                for _ in range(self.rng.choice((1, 5, 50))):
                    if merges.value:
                        merges.value[self.rng.randrange(len(merges.value))] = self.rng.choice(_TEXTS)

    def _some_words(self, words: list[Any], new: list[bytes]) -> None:
        start = self.rng.randrange(len(words))
        words[start : start + len(new)] = new[: len(words) - start]

    def special_token(self, file: File) -> None:
        name = self.rng.choice([k for k in _GENERAL if k.endswith(b"_token_id") or b".add_" in k])
        near = self._named(file, name)
        file.keys = [(k, v) for k, v in file.keys if k != name]
        kind = Kv.BOOL if b".add_" in name else self.rng.choice((Kv.UINT32, Kv.UINT32, Kv.INT32, Kv.UINT64))
        file.keys.append((name, Value(kind, self.scalar(kind, None if near is None else near.value))))

    # ---- tensors

    def _tensor(self, file: File) -> Tensor:
        return self.rng.choice(file.tensors) if file.tensors else Tensor(b"", [1], 0, b"")

    def tensor_shape(self, file: File) -> None:
        t = self._tensor(file)
        what = self.rng.randrange(5)
        if what == 0 and t.shape:
            t.shape.reverse()
        elif what == 1:
            t.shape.append(self.rng.choice((0, 1, 1, 2, 3)))
        elif what == 2 and t.shape:
            t.shape.pop()
        elif t.shape:
            i = self.rng.randrange(len(t.shape))
            t.shape[i] = self.number(t.shape[i])

    def tensor_type(self, file: File) -> None:
        kinds = [int(k) for k in gguf.GGMLQuantizationType]
        some = [self._tensor(file)] if self.rng.random() < 0.7 else [t for t in file.tensors if len(t.shape) > 1]
        kind = self.rng.choice(kinds) if self.rng.random() < 0.9 else self.rng.choice((4, 5, 36, 45, 99, 1 << 31))
        for t in some:
            t.type = kind

    def tensor_drop(self, file: File) -> None:
        if file.tensors:
            file.tensors.remove(self._tensor(file))
        if self.rng.random() < 0.05:
            file.tensors.clear()

    def tensor_rename(self, file: File) -> None:
        self._tensor(file).name = self.rng.choice((*_TENSORS, *_TEXTS[:8]))

    def tensor_add(self, file: File) -> None:
        t = copy.deepcopy(self._tensor(file))
        t.name = self.rng.choice(_TENSORS)
        if self.rng.random() < 0.7:
            file.tensors = [x for x in file.tensors if x.name != t.name]
        if self.rng.random() < 0.4:
            t.shape = [self.number(t.shape[0] if t.shape else 1) % 4096]
        file.tensors.insert(self.rng.randrange(len(file.tensors) + 1), t)

    def tensor_offset(self, file: File) -> None:
        self._tensor(file).shift = self.rng.choice((1, 32, -32, 1 << 20, (1 << 63) - 1, -1, 1 << 62))

    def tensor_swap(self, file: File) -> None:
        a, b = self._tensor(file), self._tensor(file)
        a.name, b.name = b.name, a.name

    def tensor_data(self, file: File) -> None:
        some = [self._tensor(file)] if self.rng.random() < 0.7 else file.tensors
        for t in some:
            pattern = self.rng.choice((b"\xff", b"\x7f", b"\0", b"\0\0\x80\x7f", b"\0\x7c", b"", b"\x80", b"\1"))
            if pattern:
                t.data = (pattern * (len(t.data) // len(pattern) + 1))[: len(t.data)]
            else:
                t.data = self.rng.randbytes(len(t.data))

    # ---- the bytes themselves

    def header(self, file: File) -> None:
        what = self.rng.randrange(3)
        if what == 0:
            file.version = self.rng.choice((0, 1, 2, 4, 3 << 24, (1 << 32) - 1))
        elif what == 1:
            file.more_keys = self.rng.choice((1, -1, 1 << 40, (1 << 63) - 100, -1000))
        else:
            file.more_tensors = self.rng.choice((1, -1, 1 << 40, (1 << 63) - 100, -1000))

    def truncate(self, file: File) -> None:
        file.tail.append(("cut", self.rng.choice((0, 3, 4, 8, 20, 24, self.rng.randrange(1 << 30))), 0))

    def head_bytes(self, file: File) -> None:
        for _ in range(self.rng.choice((1, 1, 4, 32))):
            file.tail.append(
                ("head", self.rng.randrange(1 << 30), self.rng.choice((0, 255, 128, self.rng.randrange(256))))
            )

    def data_bytes(self, file: File) -> None:
        for _ in range(self.rng.choice((1, 64))):
            file.tail.append(("data", self.rng.randrange(1 << 30), self.rng.randrange(256)))
