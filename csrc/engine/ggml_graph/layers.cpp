#include "engine/ggml_graph/layers.h"

#include <cmath>

namespace adaspark::ggml_graph {

ggml_tensor * Layers::norm(ggml_tensor * x, ggml_tensor * weight) const {
    return ggml_mul(ctx_, ggml_rms_norm(ctx_, x, spec_.eps), weight);
}

ggml_tensor * Layers::project(ggml_tensor * w, ggml_tensor * bias, ggml_tensor * x) const {
    ggml_tensor * out = ggml_mul_mat(ctx_, w, x);
    return bias != nullptr ? ggml_add(ctx_, out, bias) : out;
}

// Columns of a matrix, or entries of a vector; null of null.
ggml_tensor * Layers::columns(ggml_tensor * w, int64_t first, int64_t count) const {
    if (w == nullptr) {
        return nullptr;
    }
    return w->ne[1] == 1 ? ggml_view_1d(ctx_, w, count, static_cast<std::size_t>(first) * w->nb[0])
                         : ggml_view_2d(ctx_, w, w->ne[0], count, w->nb[1], static_cast<std::size_t>(first) * w->nb[1]);
}

// `count` heads of every row from column `first` on.
ggml_tensor * Layers::heads(ggml_tensor * projected, int64_t first, int32_t count) const {
    const std::size_t head = static_cast<std::size_t>(spec_.head_dim) * sizeof(float);
    return ggml_view_3d(ctx_, projected, spec_.head_dim, count, projected->ne[1], head, projected->nb[1],
                        static_cast<std::size_t>(first) * sizeof(float));
}

Layers::Projected Layers::projected(ggml_tensor * x, const BlockTensors & b, bool queries) const {
    const int64_t q = spec_.q_width();
    const int64_t kv = spec_.kv_width();
    Projected out = {};
    int64_t at = queries ? q : 0; // where keys begin
    if (queries || b.joined > 1) {
        const int64_t width = at + (b.joined - 1) * kv;
        ggml_tensor * all =
            queries ? project(b.wqkv, b.bqkv, x) : project(columns(b.wqkv, q, width), columns(b.bqkv, q, width), x);
        out.q = queries ? heads(all, 0, spec_.n_head) : nullptr;
        out.k = b.joined > 1 ? heads(all, at, spec_.n_head_kv) : nullptr;
        out.v = b.joined > 2 ? heads(all, at + kv, spec_.n_head_kv) : nullptr;
    }
    out.k = out.k != nullptr ? out.k : heads(project(b.wk, b.bk, x), 0, spec_.n_head_kv);
    out.v = out.v != nullptr ? out.v : heads(project(b.wv, b.bv, x), 0, spec_.n_head_kv);
    return out;
}

// Normed where the model does, turned by position.
ggml_tensor * Layers::rotate(ggml_tensor * heads, ggml_tensor * norm_weight) const {
    if (norm_weight != nullptr) {
        heads = norm(heads, norm_weight);
    }
    const int mode = spec_.rope_interleaved ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
    return ggml_rope_ext(ctx_, heads, rows_.positions(), model_.rope_factors, spec_.head_dim, mode, spec_.n_ctx_train,
                         spec_.rope_base, spec_.rope_scale, 0.0F, 1.0F, 32.0F, 1.0F);
}

// [head dim][heads][rows], whose heads lie side by side.
void Layers::store_rows(ggml_tensor * plane, ggml_tensor * rows) const {
    ggml_tensor * flat = ggml_view_2d(ctx_, rows, spec_.kv_width(), rows_.width(), rows->nb[2], 0);
    p_.add(ggml_set_rows(ctx_, plane, flat, rows_.slots()));
}

void Layers::store(const Projected & p, const BlockTensors & b, int32_t state) const {
    store_rows(cache_.keys(ctx_, state), rotate(p.k, b.k_norm));
    store_rows(cache_.values(ctx_, state), p.v);
}

void Layers::store(ggml_tensor * g, int32_t layer) const {
    const BlockTensors & b = model_.blocks[static_cast<std::size_t>(layer)];
    store(projected(g, b, false), b, spec_.blocks[static_cast<std::size_t>(layer)].state);
}

ggml_tensor * Layers::attention(ggml_tensor * q, int32_t state) const {
    const float scale = 1.0F / std::sqrt(static_cast<float>(spec_.head_dim));
    q = ggml_permute(ctx_, q, 0, 2, 1, 3);
    ggml_tensor * k = cache_.key_heads(ctx_, state, rows_.window());
    ggml_tensor * v = cache_.value_heads(ctx_, state, rows_.window());
    if (flash_) {
        ggml_tensor * out = ggml_flash_attn_ext(ctx_, q, k, v, rows_.mask(), scale, 0.0F, 0.0F);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        return ggml_reshape_2d(ctx_, out, spec_.q_width(), rows_.width());
    }
    ggml_tensor * scores = ggml_mul_mat(ctx_, k, q);
    ggml_prec_set_acc(scores, GGML_PREC_F32);
    scores = ggml_soft_max_ext(ctx_, scores, rows_.mask(), scale, 0.0F);
    ggml_tensor * out = ggml_mul_mat(ctx_, ggml_cont(ctx_, ggml_transpose(ctx_, v)), scores);
    return ggml_cont_2d(ctx_, ggml_permute(ctx_, out, 0, 2, 1, 3), spec_.q_width(), rows_.width());
}

// A row's window is gathered along its own path: rows of a tree stand in no order that a stock convolution knows.
ggml_tensor * Layers::short_convolution(ggml_tensor * x, const BlockTensors & b, int32_t state) const {
    const int64_t n = spec_.n_embd;
    const int64_t rows = x->ne[1];
    ggml_tensor * all = ggml_mul_mat(ctx_, b.conv_in, x);
    const auto part = [&](int64_t i) {
        return ggml_view_2d(ctx_, all, n, rows, all->nb[1], static_cast<std::size_t>(i * n) * sizeof(float));
    };
    ggml_tensor * inputs = ggml_mul(ctx_, part(0), part(2));
    ggml_tensor * written = ggml_set_rows(ctx_, conv_->inputs(ctx_, state), inputs, conv_rows_->slots());
    ggml_tensor * taps = ggml_get_rows(ctx_, written, conv_rows_->reads());
    taps = ggml_mul(ctx_, ggml_reshape_3d(ctx_, taps, n, conv_->taps(), rows), b.conv); // [n_embd][taps][rows]
    std::vector<ggml_tensor *> parts(static_cast<std::size_t>(conv_->taps()));
    for (std::size_t t = 0; t < parts.size(); ++t) {
        parts[t] = ggml_view_2d(ctx_, taps, n, rows, taps->nb[2], t * taps->nb[1]);
        p_.add(parts[t]); // first: sums that stand side by side are one kernel on CUDA
    }
    ggml_tensor * sum = parts[0];
    for (std::size_t t = 1; t < parts.size(); ++t) {
        sum = ggml_add(ctx_, sum, parts[t]);
    }
    return ggml_mul(ctx_, sum, part(1));
}

ggml_tensor * Layers::feed_forward(ggml_tensor * x, const BlockTensors & b) const {
    if (b.gate_up != nullptr && rows_.width() > 1) {
        return ggml_mul_mat(ctx_, b.down, ggml_swiglu(ctx_, ggml_mul_mat(ctx_, b.gate_up, x)));
    }
    // One row: CUDA makes one kernel of both products and what follows, if they stand side by side.
    ggml_tensor * gate_weights = b.gate_up != nullptr ? columns(b.gate_up, 0, spec_.n_ff) : b.gate;
    ggml_tensor * up_weights = b.gate_up != nullptr ? columns(b.gate_up, spec_.n_ff, spec_.n_ff) : b.up;
    p_.add(gate_weights);
    p_.add(up_weights);
    p_.add(x);
    ggml_tensor * gate = ggml_mul_mat(ctx_, gate_weights, x);
    ggml_tensor * up = ggml_mul_mat(ctx_, up_weights, x);
    return ggml_mul_mat(ctx_, b.down, ggml_swiglu_split(ctx_, gate, up));
}

ggml_tensor * Layers::routed(ggml_tensor * x, const BlockTensors & b) const {
    const int64_t rows = x->ne[1];
    const int64_t used = spec_.n_expert_used;
    ggml_tensor * shares = ggml_mul_mat(ctx_, b.router, x); // [experts][rows]
    shares = spec_.router_sigmoid ? ggml_sigmoid(ctx_, shares) : ggml_soft_max(ctx_, shares);
    ggml_tensor * score = b.router_bias != nullptr ? ggml_add(ctx_, shares, b.router_bias) : shares;
    ggml_tensor * picked = ggml_argsort_top_k(ctx_, score, spec_.n_expert_used);
    ggml_tensor * weights =
        ggml_get_rows(ctx_, ggml_reshape_3d(ctx_, shares, 1, spec_.n_expert, rows), picked); // [1][used][rows]
    weights = ggml_reshape_2d(ctx_, weights, used, rows);
    constexpr float kLeast = 6.103515625e-5F; // as llama.cpp: the smallest normal F16
    weights = ggml_div(ctx_, weights, ggml_clamp(ctx_, ggml_sum_rows(ctx_, weights), kLeast, INFINITY));
    weights = ggml_reshape_3d(ctx_, weights, 1, used, rows);
    p_.add(weights); // together: CUDA makes one kernel of the choice

    ggml_tensor * in = ggml_reshape_3d(ctx_, x, spec_.n_embd, 1, rows);
    ggml_tensor * up = ggml_mul_mat_id(ctx_, b.up, in, picked); // [n_ff][used][rows]
    ggml_tensor * gate = ggml_mul_mat_id(ctx_, b.gate, in, picked);
    ggml_tensor * out = ggml_mul_mat_id(ctx_, b.down, ggml_swiglu_split(ctx_, gate, up), picked);
    out = ggml_mul(ctx_, out, weights); // [n_embd][used][rows]
    std::vector<ggml_tensor *> parts(static_cast<std::size_t>(used));
    for (std::size_t e = 0; e < parts.size(); ++e) {
        parts[e] = ggml_view_2d(ctx_, out, spec_.n_embd, rows, out->nb[2], e * out->nb[1]);
        p_.add(parts[e]);
    }
    ggml_tensor * sum = parts[0];
    for (std::size_t e = 1; e < parts.size(); ++e) {
        sum = ggml_add(ctx_, sum, parts[e]);
        p_.add(sum);
    }
    return used > 1 ? sum : ggml_cont(ctx_, sum);
}

ggml_tensor * Layers::block(ggml_tensor * x, int32_t layer) const {
    const BlockTensors & b = model_.blocks[static_cast<std::size_t>(layer)];
    ggml_tensor * in = norm(x, b.attn_norm);
    const int32_t state = spec_.blocks[static_cast<std::size_t>(layer)].state;
    if (b.conv != nullptr) {
        x = ggml_add(ctx_, ggml_mul_mat(ctx_, b.conv_out, short_convolution(in, b, state)), x);
    } else {
        const Projected p = projected(in, b, true);
        ggml_tensor * q = rotate(p.q, b.q_norm);
        p_.add(q);
        store(p, b, state);
        x = ggml_add(ctx_, ggml_mul_mat(ctx_, b.wo, attention(q, state)), x);
    }
    in = norm(x, b.ffn_norm);
    return ggml_add(ctx_, b.router != nullptr ? routed(in, b) : feed_forward(in, b), x);
}

} // namespace adaspark::ggml_graph
