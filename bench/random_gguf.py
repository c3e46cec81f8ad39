"""Writes GGUF files with the shapes and formats of real models and random weights.

What a verify costs does not depend on the values of the weights, so the cost curves of such a file are those of the real
one, and it is made on the spot: no download. The bytes of a quantised tensor are one random chunk, repeated; its scales
are valid and give numbers around 0 with a deviation of about 0.02, so that nothing overflows. Formats follow llama.cpp's
Q4_K_M: Q4_K, and Q6_K for the head, and for the values and the inner feed-forward product of half of the blocks; Q5_0
and Q8_0 instead where rows are no multiple of 256. ``--format`` takes one format for all. The vocabulary is made up; the
text means nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Ggml
from numpy.typing import NDArray

CHUNK = 1 << 20  # bytes of random blocks, about
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
# F16 fields of a block: byte offset and value. The rest of a block is random in every format. In Q4_K the minimum is 7.5
# steps, half of what 4 bits reach.
SCALES = {
    Ggml.Q4_0: ((0, 4e-3),),
    Ggml.Q5_0: ((0, 2e-3),),
    Ggml.Q8_0: ((0, 2.7e-4),),
    Ggml.Q4_K: ((0, 8e-5), (2, 6e-4)),
    Ggml.Q6_K: ((208, 1.7e-5),),
}
DEVIATION = 0.02
INSTEAD = {Ggml.Q4_K: Ggml.Q5_0, Ggml.Q6_K: Ggml.Q8_0}  # of rows that are no multiple of 256


@dataclass(frozen=True)
class Shape:
    """A model's widths. ``mixed``: Q4_K_M's mixture; else every matrix in ``matrix``."""

    architecture: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int
    rope_base: float
    matrix: Ggml = Ggml.Q4_K
    mixed: bool = True
    tied: bool = False
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_dense: int = 0  # of blocks before the first routed one; `n_ff` is an expert's
    n_dense: int = 0  # such blocks
    attention: tuple[int, ...] | None = None  # blocks with attention; the others have a short convolution
    conv_taps: int = 3

    @property
    def hybrid(self) -> bool:
        return self.attention is not None


# LFM2.5's widths and numbers of blocks are those of its model cards and of LFM2's configurations. Their sums are 2.70 and 8.47
# billion parameters, published 2.69 and 8.3 (the second with a vocabulary of half the size). Which of its blocks have
# attention is a guess, which no cost depends on.
SHAPES = {
    "qwen3-8b": Shape("qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 1e6),
    "qwen3-4b": Shape("qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 1e6, tied=True),
    "qwen3-30b-a3b": Shape("qwen3moe", 48, 2048, 32, 4, 128, 768, 151936, 1e6, n_expert=128, n_expert_used=8),
    "lfm2.5-2.6b": Shape(
        "lfm2", 30, 2048, 32, 8, 64, 10752, 128000, 1e6, tied=True, attention=(2, 6, 9, 13, 17, 21, 24, 27)
    ),
    "lfm2.5-8b-a1b": Shape(
        "lfm2moe",
        24,
        2048,
        32,
        8,
        64,
        1792,
        128000,
        1e6,
        tied=True,
        n_expert=32,
        n_expert_used=4,
        n_ff_dense=7168,
        n_dense=2,
        attention=(2, 6, 10, 14, 18, 21),
    ),
    "qwen2.5-coder-0.5b": Shape("qwen2", 24, 896, 14, 2, 64, 4864, 151936, 1e6, tied=True),
    "smollm2-135m": Shape("llama", 30, 576, 9, 3, 64, 1536, 49152, 1e5, Ggml.Q4_0, mixed=False, tied=True),
}


class RandomBlocks:
    """Rows of random blocks of a format."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._chunks: dict[Ggml, NDArray[np.uint8]] = {}

    def rows(self, kind: Ggml, n_rows: int, width: int) -> NDArray[np.uint8]:
        """(n_rows, bytes of a row)"""
        per_block, size = gguf.GGML_QUANT_SIZES[kind]
        if width % per_block:
            msg = f"{width} numbers are not whole blocks of {kind.name}"
            raise ValueError(msg)
        if kind not in self._chunks and kind == Ggml.F16:
            numbers = self._rng.normal(0, DEVIATION, CHUNK // size).astype(np.float16)
            self._chunks[kind] = numbers.view(np.uint8)
        elif kind not in self._chunks:
            blocks = self._rng.integers(0, 256, (CHUNK // size, size), np.uint8)
            for at, value in SCALES[kind]:
                blocks[:, at : at + 2] = np.full(1, value, np.float16).view(np.uint8)
            self._chunks[kind] = blocks.reshape(-1)
        chunk, needed = self._chunks[kind], n_rows * (width // per_block) * size
        return np.resize(chunk, needed).reshape(n_rows, -1)


def write(path: Path, shape: Shape, n_ctx: int, seed: int) -> None:
    writer = gguf.GGUFWriter(path, shape.architecture, use_temp_file=False)
    _write_keys(writer, shape, n_ctx)
    random = RandomBlocks(seed)
    tensors = list(_tensors(shape))
    for name, kind, dims in tensors:
        _, size = gguf.GGML_QUANT_SIZES[kind]
        per_block = gguf.GGML_QUANT_SIZES[kind][0]
        bytes_ = int(np.prod(dims)) // per_block * size
        # Dimensions go in as numpy has them, and in bytes where the numbers are quantised.
        raw = (*dims[:-1], dims[-1] // per_block * size) if kind != Ggml.F32 else dims
        writer.add_tensor_info(name, raw, np.dtype(np.float32 if kind == Ggml.F32 else np.uint8), bytes_, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, kind, dims in tensors:
        if kind == Ggml.F32:
            rng = np.random.default_rng(seed)
            ones = len(dims) == 1
            data = np.ones(dims, np.float32) if ones else rng.normal(0, DEVIATION, dims).astype(np.float32)
        else:
            data = random.rows(kind, int(np.prod(dims[:-1])), dims[-1])
        writer.write_tensor_data(data)
    writer.close()


def _write_keys(writer: gguf.GGUFWriter, shape: Shape, n_ctx: int) -> None:
    writer.add_name(f"random weights, {shape.architecture}")
    writer.add_context_length(n_ctx)
    writer.add_embedding_length(shape.n_embd)
    writer.add_block_count(shape.n_layer)
    writer.add_feed_forward_length(shape.n_ff_dense or shape.n_ff)
    writer.add_head_count(shape.n_head)
    heads = shape.n_head_kv
    attention = shape.attention
    writer.add_head_count_kv(
        heads if attention is None else [heads if i in attention else 0 for i in range(shape.n_layer)]
    )
    if shape.hybrid:
        writer.add_uint32(f"{shape.architecture}.shortconv.l_cache", shape.conv_taps)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-6)
    if shape.n_expert:
        writer.add_expert_count(shape.n_expert)
        writer.add_expert_used_count(shape.n_expert_used)
        writer.add_expert_feed_forward_length(shape.n_ff)
        if shape.hybrid:
            writer.add_leading_dense_block_count(shape.n_dense)
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    letters = _byte_letters()
    tokens = [*CONTROL, *letters]
    tokens += [f"<|reserved_{i}|>" for i in range(shape.n_vocab - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if t.startswith("<|") else 1 for t in tokens])
    writer.add_token_merges([f"{letters[ord('t')]} {letters[ord('h')]}"])
    writer.add_eos_token_id(2)


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for every byte."""
    kept = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(b) if b in kept else chr(next(spare)) for b in range(256)]


def _tensors(shape: Shape) -> list[tuple[str, Ggml, tuple[int, ...]]]:
    """Names, formats and dimensions, rows first."""
    better = Ggml.Q6_K if shape.mixed else shape.matrix
    d, q, kv = shape.n_embd, shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    out: list[tuple[str, Ggml, tuple[int, ...]]] = [
        # A tied embedding is the head too, and has its format.
        ("token_embd.weight", better if shape.tied else shape.matrix, (shape.n_vocab, d)),
        ("token_embd_norm.weight" if shape.hybrid else "output_norm.weight", Ggml.F32, (d,)),
    ]
    if not shape.tied:
        out.append(("output.weight", better, (shape.n_vocab, d)))
    for layer in range(shape.n_layer):
        p = f"blk.{layer}."
        eighth = shape.n_layer // 8
        more = layer < eighth or layer >= 7 * shape.n_layer // 8 or (layer - eighth) % 3 == 2
        fine = better if more else shape.matrix
        out += [(p + "attn_norm.weight", Ggml.F32, (d,)), (p + "ffn_norm.weight", Ggml.F32, (d,))]
        if shape.attention is not None and layer not in shape.attention:
            out += [
                (p + "shortconv.conv.weight", Ggml.F32, (d, shape.conv_taps)),
                (p + "shortconv.in_proj.weight", shape.matrix, (3 * d, d)),
                (p + "shortconv.out_proj.weight", shape.matrix, (d, d)),
            ]
        else:
            out += [
                (p + "attn_q.weight", shape.matrix, (q, d)),
                (p + "attn_k.weight", shape.matrix, (kv, d)),
                (p + "attn_v.weight", fine, (kv, d)),
                (p + "attn_output.weight", shape.matrix, (d, q)),
            ]
            if shape.architecture == "qwen2":
                out += [(p + f"attn_{part}.bias", Ggml.F32, (q if part == "q" else kv,)) for part in "qkv"]
            elif shape.architecture != "llama":
                out += [(p + f"attn_{part}_norm.weight", Ggml.F32, (shape.head_dim,)) for part in "qk"]
        n_ff = shape.n_ff_dense or shape.n_ff
        if shape.n_expert and layer >= shape.n_dense:
            if shape.hybrid:
                out.append((p + "exp_probs_b.bias", Ggml.F32, (shape.n_expert,)))
            out += [
                (p + "ffn_gate_inp.weight", Ggml.F32, (shape.n_expert, d)),
                (p + "ffn_gate_exps.weight", shape.matrix, (shape.n_expert, shape.n_ff, d)),
                (p + "ffn_up_exps.weight", shape.matrix, (shape.n_expert, shape.n_ff, d)),
                (p + "ffn_down_exps.weight", fine, (shape.n_expert, d, shape.n_ff)),
            ]
        else:
            out += [
                (p + "ffn_gate.weight", shape.matrix, (n_ff, d)),
                (p + "ffn_up.weight", shape.matrix, (n_ff, d)),
                (p + "ffn_down.weight", fine, (d, n_ff)),
            ]
    return [(name, INSTEAD.get(kind, kind) if dims[-1] % 256 else kind, dims) for name, kind, dims in out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("out", type=Path, metavar="GGUF")
    parser.add_argument(
        "--format", choices=["f16", "q4_0", "q5_0", "q8_0", "q4_k", "q6_k"], help="of every matrix instead"
    )
    parser.add_argument("--layers", type=int, help="fewer or more blocks than the model has")
    parser.add_argument(
        "--ctx", type=int, default=16384, help="training context it claims, tokens (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.format is not None:
        shape = dataclasses.replace(shape, matrix=Ggml[args.format.upper()], mixed=False)
    if args.layers is not None:
        shape = dataclasses.replace(shape, n_layer=args.layers)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write(args.out, shape, args.ctx, args.seed)


if __name__ == "__main__":
    main()
