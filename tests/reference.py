"""What the tiny models compute, from the definition, in float64 numpy: targets over any tree, and the DSpark block.

Slow and plain on purpose: nothing here shares code, layout or caching with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_models import MASK, DrafterSpec, TargetSpec, TinyDrafter, TinyTarget, Weights

F64 = NDArray[np.float64]

# What keeps a comparison free of TF32, to whose 11 bits a GPU rounds the factors of F32 products. Emulated on the texts of
# the tiny models, that moves the gap between the two best logits by 0.011 at most (0.042 where bits are cut off), and a
# router's score by 0.004 (0.011).
TEXT_GAP = 0.045  # between the two best logits, wherever texts are compared
ROUTER_GAP = 0.05  # between the scores of the last expert chosen and of the first that is not


def _rms(x: F64, weight: NDArray[Any], eps: float) -> F64:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _silu(x: F64) -> F64:
    return x / (1.0 + np.exp(-x))


def _softmax(x: F64) -> F64:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _rope(x: F64, positions: NDArray[np.int64], base: float, interleaved: bool) -> F64:
    """Rotate (rows, heads, head_dim). A pair is two neighbours when interleaved, else two entries d/2 apart."""
    d = x.shape[-1]
    angle = positions[:, None, None] * base ** (-np.arange(0, d, 2) / d)
    c, s = np.cos(angle), np.sin(angle)
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
        return out
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def _attend(q: F64, k: F64, v: F64, visible: NDArray[np.bool_]) -> F64:
    """Grouped-query attention of (rows, heads, d) over (cells, kv heads, d); returns (rows, heads * d)."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("rhd,chd->hrc", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(visible[None], scores, -np.inf)
    return np.einsum("hrc,chd->rhd", _softmax(scores), v).reshape(len(q), -1)


def ancestors(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Row i sees row j: j is i or above it."""
    n = len(parents)
    seen = np.eye(n, dtype=bool)
    for i, p in enumerate(parents):
        if p >= 0:
            seen[i] |= seen[p]
    return seen


def depths(parents: Sequence[int]) -> NDArray[np.int64]:
    out = np.zeros(len(parents), np.int64)
    for i, p in enumerate(parents):
        out[i] = 0 if p < 0 else out[p] + 1
    return out


@dataclass(frozen=True)
class Forward:
    logits: F64  # (rows, n_vocab)
    layer_inputs: list[F64]  # per block (rows, n_embd)


def forward(
    target: TinyTarget, tokens: Sequence[int], parents: Sequence[int] | None = None,
    positions: NDArray[np.int64] | None = None,
) -> Forward:  # fmt: skip
    """All rows of a sequence (parents None) or of a tree. A tree over a context names the context's rows too:
    see ``over_context``. ``positions`` replaces the depths, to show what a misplaced row would give."""
    s, w = target.spec, target.weights
    n = len(tokens)
    parents = list(range(-1, n - 1)) if parents is None else list(parents)
    visible = ancestors(parents)
    positions = depths(parents) if positions is None else positions
    x = w["token_embd.weight"][list(tokens)].astype(np.float64)
    inputs: list[F64] = []
    for i in range(s.n_layer):
        inputs.append(x)
        h = _rms(x, w[f"blk.{i}.attn_norm.weight"], s.rms_eps)
        if i in s.conv_layers:
            x = x + _short_conv(s, w, f"blk.{i}.", h, parents)
        else:
            x = x + _attention(s, w, f"blk.{i}.", h, positions, visible)
        h = _rms(x, w[f"blk.{i}.ffn_norm.weight"], s.rms_eps)
        routed = s.n_expert > 0 and i >= s.dense_lead
        x = x + (_experts(s, w, f"blk.{i}.", h) if routed else _ffn(w, f"blk.{i}.", h))
    norm = "token_embd_norm.weight" if s.architecture.startswith("lfm2") else "output_norm.weight"
    head = w["token_embd.weight" if s.tied else "output.weight"]
    return Forward(_rms(x, w[norm], s.rms_eps) @ head.T.astype(np.float64), inputs)


def over_context(context: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """A tree after committed tokens, as one tree: context rows first, the anchor below the last of them."""
    c = len(context)
    return [*context, *tokens], [*range(-1, c - 1), *((c - 1) if p < 0 else c + p for p in parents)]


def greedy(target: TinyTarget, prompt: Sequence[int], n: int) -> list[int]:
    """The next n tokens."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(forward(target, tokens).logits[-1].argmax()))
    return tokens[len(prompt) :]


def assert_decisive(target: TinyTarget, prompt: Sequence[int], reply: Sequence[int]) -> None:
    """A greedy reply that is to be compared with another hangs on no rounding: neither a token nor an expert."""
    logits = forward(target, [*prompt, *reply[:-1]]).logits[len(prompt) - 1 :]
    best = np.sort(logits)[:, -2:]
    gaps = best[:, 1] - best[:, 0]
    at = int(gaps.argmin())
    assert gaps[at] > TEXT_GAP, f"rounding may choose another token {at}: the two best logits are {gaps[at]:.4f} apart"
    np.testing.assert_array_equal(logits.argmax(-1), reply)


def _heads(w: Weights, name: str, h: F64, head_dim: int) -> F64:
    return (h @ w[name + ".weight"].T).reshape(len(h), -1, head_dim)


def _attention(
    s: TargetSpec, w: Weights, p: str, h: F64, positions: NDArray[np.int64], visible: NDArray[np.bool_]
) -> F64:
    q, k, v = (_heads(w, p + name, h, s.head_dim) for name in ("attn_q", "attn_k", "attn_v"))
    if s.qk_norm:
        q, k = _rms(q, w[p + "attn_q_norm.weight"], s.rms_eps), _rms(k, w[p + "attn_k_norm.weight"], s.rms_eps)
    q = _rope(q, positions, s.rope_base, s.interleaved_rope)
    k = _rope(k, positions, s.rope_base, s.interleaved_rope)
    return _attend(q, k, v, visible) @ w[p + "attn_output.weight"].T


def _ffn(w: Weights, p: str, h: F64) -> F64:
    gate, up = h @ w[p + "ffn_gate.weight"].T, h @ w[p + "ffn_up.weight"].T
    return (_silu(gate) * up) @ w[p + "ffn_down.weight"].T


def _experts(s: TargetSpec, w: Weights, p: str, h: F64) -> F64:
    """lfm2moe weighs with sigmoids, and adds a bias for the choice alone."""
    logits = h @ w[p + "ffn_gate_inp.weight"].T
    share = 1.0 / (1.0 + np.exp(-logits)) if s.architecture == "lfm2moe" else _softmax(logits)
    score = share + w[p + "exp_probs_b.bias"] if s.architecture == "lfm2moe" else logits
    ranked = np.sort(score)[:, ::-1]
    gap = float((ranked[:, s.n_expert_used - 1] - ranked[:, s.n_expert_used]).min())
    assert gap > ROUTER_GAP, f"rounding may choose another expert: the scores of two are {gap:.4f} apart"
    out = np.zeros_like(h)
    for r in range(len(h)):
        chosen = np.argsort(-score[r])[: s.n_expert_used]
        total = share[r, chosen].sum()
        for e in chosen:
            gate = _silu(w[p + "ffn_gate_exps.weight"][e] @ h[r])
            y = w[p + "ffn_down_exps.weight"][e] @ (gate * (w[p + "ffn_up_exps.weight"][e] @ h[r]))
            out[r] += share[r, e] / total * y
    return out


def _short_conv(s: TargetSpec, w: Weights, p: str, h: F64, parents: Sequence[int]) -> F64:
    """LFM2's gated short convolution; the window runs up the row's own path."""
    b, c, x = np.split(h @ w[p + "shortconv.in_proj.weight"].T, 3, axis=1)
    bx, kernel = b * x, w[p + "shortconv.conv.weight"]
    out = np.zeros_like(bx)
    for r in range(len(h)):
        row = r
        for tap in range(s.conv_window - 1, -1, -1):  # the last tap is the row itself
            if row < 0:
                break
            out[r] += kernel[:, tap] * bx[row]
            row = parents[row]
    return (c * out) @ w[p + "shortconv.out_proj.weight"].T


# -------------------------------------------------------------------------------------------------------- DSpark block


@dataclass(frozen=True)
class Block:
    ids: NDArray[np.int64]  # (n, K) target ids, best first; -1 where the draft vocabulary has no more
    values: F64  # (n, K) Markov-biased logits
    confidence: F64  # (n,)
    all_values: F64  # (n, draft vocabulary)


def draft_block(
    drafter: TinyDrafter, committed: Sequence[int], anchor: int, n_draft: int, top_k: int = 8, *,
    taps: Sequence[int] | None = None, window: int | None = None, inputs: list[F64] | None = None,
) -> Block:  # fmt: skip
    """One block after ``committed``. ``taps`` replaces the file's target layers; ``window`` forgets older positions;
    ``inputs`` are the target's layer inputs after ``committed`` where they are known already."""
    s, t, w = drafter.spec, drafter.target, drafter.weights
    c = len(committed)
    inputs = forward(t, committed).layer_inputs if inputs is None else inputs
    features = np.concatenate([inputs[i] for i in (taps or s.taps)], -1)
    fused = _rms(features @ w["fc.weight"].T, w["enc.output_norm.weight"], s.rms_eps)
    first = 0 if s.sample_from_anchor else 1
    rows = n_draft + first
    embedding = w.get("token_embd.weight", t.weights["token_embd.weight"])
    x = embedding[[anchor, *[MASK] * (rows - 1)]].astype(np.float64)
    before, here = np.arange(c), c + np.arange(rows)
    oldest = 0 if window is None else max(0, c - window)
    visible = np.concatenate([np.tile(before >= oldest, (rows, 1)), np.ones((rows, rows), bool)], 1)
    base = t.spec.rope_base
    for i in range(s.n_layer):
        p = f"blk.{i}."
        k_ctx, v_ctx = _key(s, w, p, fused, before, base), _heads(w, p + "attn_v", fused, s.head_dim)
        h = _rms(x, w[p + "attn_norm.weight"], s.rms_eps)
        q = _rms(_heads(w, p + "attn_q", h, s.head_dim), w[p + "attn_q_norm.weight"], s.rms_eps)
        q = _rope(q, here, base, False)
        k = np.concatenate([k_ctx, _key(s, w, p, h, here, base)])
        v = np.concatenate([v_ctx, _heads(w, p + "attn_v", h, s.head_dim)])
        x = x + _attend(q, k, v, visible) @ w[p + "attn_output.weight"].T
        x = x + _ffn(w, p, _rms(x, w[p + "ffn_norm.weight"], s.rms_eps))
    hidden = _rms(x, w["output_norm.weight"], s.rms_eps)[first:]
    shared = t.weights["token_embd.weight" if t.spec.tied else "output.weight"]
    logits = hidden @ w.get("output.weight", shared).T
    return _markov_chain(drafter, w, hidden, logits, anchor, top_k)


def _key(s: DrafterSpec, w: Weights, p: str, h: F64, positions: NDArray[np.int64], base: float) -> F64:
    k = _rms(_heads(w, p + "attn_k", h, s.head_dim), w[p + "attn_k_norm.weight"], s.rms_eps)
    return _rope(k, positions, base, False)


def _markov_chain(drafter: TinyDrafter, w: Weights, hidden: F64, logits: F64, anchor: int, top_k: int) -> Block:
    n, d2t = len(hidden), drafter.d2t
    ids, values = np.full((n, top_k), -1, np.int64), np.full((n, top_k), -np.inf)
    confidence, everything = np.zeros(n), np.zeros_like(logits)
    previous = anchor
    for i in range(n):
        code = w["markov_w1.weight"][previous].astype(np.float64)
        row = logits[i] + w["markov_w2.weight"] @ code
        best = np.argsort(-row, kind="stable")[:top_k]
        ids[i, : len(best)], values[i, : len(best)] = d2t[best], row[best]
        everything[i] = row
        if drafter.spec.confidence:
            z = w["conf_proj.weight"][0] @ np.concatenate([hidden[i], code]) + w["conf_proj.bias"][0]
            confidence[i] = 1.0 / (1.0 + np.exp(-z))
        else:
            confidence[i] = _softmax(row)[best[0]]
        previous = int(d2t[best[0]])
    return Block(ids, values, confidence, everything)
