#include "engine/graph/forward.h"

#include "engine/topk.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace adaspark::graph {

Forward::Forward(const ModelSpec & spec, const Weights & weights, Workers & workers, KvCache & cache,
                 ConvWindows * windows)
    : spec_(spec), weights_(weights), workers_(workers), cache_(cache), windows_(windows),
      kernels_(kernels::kernels_best()) {
    const auto rows = static_cast<std::size_t>(kMaxRows);
    const auto n_embd = static_cast<std::size_t>(spec.n_embd);
    const auto q_width = static_cast<std::size_t>(spec.q_width());
    const auto used = static_cast<std::size_t>(spec.n_expert_used);
    const std::size_t width_h = std::max(n_embd, q_width);
    const auto fc = static_cast<std::size_t>(weights.draft.fc ? weights.draft.fc.k : 0);
    const std::size_t inner = std::max({static_cast<std::size_t>(spec.n_ff), spec.n_conv > 0 ? n_embd : 0,
                                        used * static_cast<std::size_t>(spec.n_ff_expert)});
    x_.resize(rows * n_embd);
    h_.resize(rows * width_h);
    qkv_.resize(rows * (q_width + 2 * static_cast<std::size_t>(spec.kv_width())));
    query_.resize(rows * q_width);
    act_.resize(rows * inner);
    turn_.resize(rows * static_cast<std::size_t>(spec.head_dim));
    tail_slots_.resize(rows * kTailSlots);
    tail_count_.resize(rows);
    taps_.resize(static_cast<std::size_t>(spec.n_layer));
    scratch_.resize(static_cast<std::size_t>(workers.size()));
    a_ = normed_rows_.open(h_.data(), rows, std::max(width_h, fc));
    inner_ = inner_rows_.open(act_.data(), rows, inner);
    if (spec.n_expert > 0) {
        router_.resize(rows * static_cast<std::size_t>(kernels::panels(spec.n_expert) * kernels::kColumns));
        experts_.resize(rows * used);
        shares_.resize(rows * used);
        expert_out_.resize(rows * used * n_embd);
    }
    for (Scratch & s : scratch_) {
        s.gate.resize(rows * kernels::kBlock);
        s.up.resize(rows * kernels::kBlock);
        s.c.resize(rows * kernels::kBlock);
        if (spec.n_expert > 0) {
            s.groups.expert.reserve(std::min(rows * used, static_cast<std::size_t>(spec.n_expert)));
            s.groups.begin.reserve(s.groups.expert.capacity() + 1);
            s.groups.row.resize(rows * used);
            s.groups.pair.resize(rows * used);
            s.groups.count.resize(static_cast<std::size_t>(spec.n_expert));
            s.rows.resize(rows * n_embd);
            s.experts.resize(used);
            s.gathered = s.int8_rows.open(s.rows.data(), rows, n_embd);
        }
    }
}

kernels::Activations Forward::Int8Rows::open(float * x, std::size_t rows, std::size_t width) {
    const std::size_t blocks = rows * width / kernels::kBlock;
    q.resize((blocks + 1) * kernels::kCodes);
    d.resize(blocks);
    dsum.resize(blocks);
    minus8.resize(blocks);
    minus8_half.resize(2 * blocks);
    return {x, kernels::first_code(q.data()), d.data(), dsum.data(), minus8.data(), minus8_half.data(), 0};
}

void Forward::set_rows(int32_t rows) {
    rows_ = rows;
    a_.rows = rows;
    inner_.rows = rows;
}

// A thread's part of n things.
Forward::Share Forward::share(int32_t n, int32_t thread) const {
    const int32_t threads = workers_.size();
    return {static_cast<int32_t>(int64_t{n} * thread / threads),
            static_cast<int32_t>(int64_t{n} * (thread + 1) / threads)};
}

void Forward::gemm(const Matrix & m, const kernels::Activations & a, Share panels, float * out, int64_t ldo,
                   const float * bias, bool add) const {
    const int32_t begin = std::clamp(panels.begin, 0, m.panels());
    const int32_t end = std::clamp(panels.end, 0, m.panels());
    if (begin >= end) {
        return;
    }
    kernels_.gemm({m.format, m.data, m.k, begin, end, a, rows_, out + static_cast<int64_t>(begin) * kernels::kColumns,
                   ldo, bias, add});
}

void Forward::embed(const Matrix & embedding, std::span<const int32_t> tokens) {
    for (std::size_t r = 0; r < tokens.size(); ++r) {
        kernels::unpack_column(embedding.format, embedding.k, embedding.data, tokens[r],
                               x_.data() + r * static_cast<std::size_t>(spec_.n_embd));
    }
}

// What does not depend on the block: angles, and each row's slots in order of position.
void Forward::prepare(const Rows & rows) {
    in_ = &rows;
    set_rows(rows.count);
    const int32_t half = spec_.head_dim / 2;
    const float step = std::pow(spec_.rope_base, -2.0F / static_cast<float>(spec_.head_dim));
    const int32_t tail = rows.committed / kernels::kChunk * kernels::kChunk;
    int32_t longest = 0;
    for (int32_t r = 0; r < rows.count; ++r) {
        float * turn = turn_.data() + static_cast<std::ptrdiff_t>(r) * spec_.head_dim;
        float theta = static_cast<float>(rows.position[r]);
        for (int32_t i = 0; i < half; ++i, theta *= step) { // as ggml: the angle is a running product
            const float factor = weights_.rope_factors != nullptr ? weights_.rope_factors[i] : 1.0F;
            turn[2 * i] = std::cos(spec_.rope_scale * theta / factor);
            turn[2 * i + 1] = std::sin(spec_.rope_scale * theta / factor);
        }
        int32_t * slots = tail_slots_.data() + static_cast<std::ptrdiff_t>(r) * kTailSlots;
        int32_t n = 0;
        for (int32_t s = tail; s < rows.committed; ++s) {
            slots[n++] = s;
        }
        for (uint64_t bits = rows.visible[r]; bits != 0; bits &= bits - 1) {
            slots[n++] = rows.committed + std::countr_zero(bits);
        }
        tail_count_[static_cast<std::size_t>(r)] = n;
        longest = std::max(longest, n);
    }
    chunks_ = tail / kernels::kChunk + (longest + kernels::kChunk - 1) / kernels::kChunk;
    const auto group = static_cast<std::size_t>(std::min(rows.count, kAttendRows) * spec_.n_head);
    const std::size_t needed = group * static_cast<std::size_t>(chunks_) * static_cast<std::size_t>(spec_.head_dim + 8);
    if (partials_.size() < needed) {
        partials_.resize(needed);
    }
}

void Forward::run(const Rows & rows, std::span<const int32_t> taps) {
    prepare(rows);
    const std::size_t row = static_cast<std::size_t>(spec_.n_embd);
    for (const int32_t layer : taps) {
        taps_[static_cast<std::size_t>(layer)].resize(kMaxRows * row);
    }
    workers_.run([&](int32_t thread) {
        for (int32_t layer = 0; layer < spec_.n_layer; ++layer) {
            if (std::find(taps.begin(), taps.end(), layer) != taps.end()) {
                const Share mine = share(rows_, thread);
                const std::size_t first = static_cast<std::size_t>(mine.begin) * row;
                std::copy_n(x_.data() + first, static_cast<std::size_t>(mine.end - mine.begin) * row,
                            taps_[static_cast<std::size_t>(layer)].data() + first);
            }
            block(weights_.blocks[static_cast<std::size_t>(layer)], thread);
        }
    });
}

void Forward::block(const BlockWeights & w, int32_t thread) {
    if (w.conv != nullptr) {
        short_convolution(w, thread);
    } else {
        attention(w, thread);
    }
    workers_.barrier();
    norm(x_.data(), w.ffn_norm, 0, rows_, w.gate.quantized() || w.up.quantized() || w.router.quantized(), thread);
    workers_.barrier();
    if (w.router) {
        routed(w, thread);
    } else {
        feed_forward(w, thread);
    }
    workers_.barrier();
}

// h = norm(x) for this thread's rows, as int8 too when a product wants that. Row 0 of h is row `first` of x.
void Forward::norm(const float * x, const float * weight, int32_t first, int32_t rows, bool quantize, int32_t thread) {
    const int32_t n = spec_.n_embd;
    const Share mine = share(rows, thread);
    for (int32_t r = mine.begin; r < mine.end; ++r) {
        float * h = h_.data() + static_cast<std::ptrdiff_t>(r) * n;
        kernels_.rms_norm(x + static_cast<std::ptrdiff_t>(first + r) * n, weight, n, spec_.eps, h);
        if (quantize) {
            kernels_.quantize(h, 0, n, r, a_);
        }
    }
}

// Gate and up of 32 columns, their product, and its int8 form: one thread makes a whole block of the inner rows.
void Forward::inner_unit(const Matrix & gate, const Matrix & up, const kernels::Activations & in, int32_t rows,
                         int32_t unit, bool quantize, const kernels::Activations & out, int32_t width,
                         Scratch & s) const {
    const int32_t panel = unit * kUnit;
    kernels_.gemm({gate.format, gate.data, gate.k, panel, panel + kUnit, in, rows, s.gate.data(), kernels::kBlock,
                   nullptr, false});
    kernels_.gemm(
        {up.format, up.data, up.k, panel, panel + kUnit, in, rows, s.up.data(), kernels::kBlock, nullptr, false});
    for (int32_t r = 0; r < rows; ++r) {
        float * row = out.x + static_cast<std::ptrdiff_t>(r) * width + unit * kernels::kBlock;
        kernels_.silu_mul(s.gate.data() + r * kernels::kBlock, s.up.data() + r * kernels::kBlock, kernels::kBlock, row);
        if (quantize) {
            kernels_.quantize(row, unit * kernels::kBlock, kernels::kBlock, r, out);
        }
    }
}

void Forward::feed_forward(const BlockWeights & w, int32_t thread) {
    const Share mine = share(spec_.n_ff / kernels::kBlock, thread);
    for (int32_t unit = mine.begin; unit < mine.end; ++unit) {
        inner_unit(w.gate, w.up, a_, rows_, unit, w.down.quantized(), inner_, spec_.n_ff,
                   scratch_[static_cast<std::size_t>(thread)]);
    }
    workers_.barrier();
    gemm(w.down, inner_, share(w.down.panels(), thread), x_.data(), spec_.n_embd, nullptr, true);
}

// ---- what stands around the blocks ---------------------------------------------------------------------------------

void Forward::inject(const Rows & rows, const float * g) {
    prepare(rows);
    workers_.run([&](int32_t thread) {
        const Share mine = share(rows_, thread);
        for (int32_t r = mine.begin; r < mine.end; ++r) {
            const float * row = g + static_cast<std::ptrdiff_t>(r) * spec_.n_embd;
            std::copy_n(row, spec_.n_embd, h_.data() + static_cast<std::ptrdiff_t>(r) * spec_.n_embd);
            kernels_.quantize(row, 0, spec_.n_embd, r, a_);
        }
        workers_.barrier();
        const int64_t ldo = spec_.q_width() + 2 * spec_.kv_width();
        for (int32_t layer = 0; layer < spec_.n_layer; ++layer) {
            const BlockWeights & w = weights_.blocks[static_cast<std::size_t>(layer)];
            const int32_t nk = w.wk.panels();
            const Share panels = share(2 * nk, thread);
            gemm(w.wk, a_, panels, qkv_.data() + spec_.q_width(), ldo, nullptr, false);
            gemm(w.wv, a_, {panels.begin - nk, panels.end - nk}, qkv_.data() + spec_.q_width() + spec_.kv_width(), ldo,
                 nullptr, false);
            workers_.barrier();
            rotate_and_store(w, thread, true);
            workers_.barrier();
        }
    });
}

void Forward::head(const Matrix & output, int32_t first, int32_t count, bool picks) {
    n_head_columns_ = output.n;
    ld_logits_ = static_cast<int64_t>(output.panels()) * kernels::kColumns;
    const std::size_t needed = static_cast<std::size_t>(ld_logits_) * static_cast<std::size_t>(count);
    if (logits_.size() < needed) {
        logits_.resize(needed);
    }
    set_rows(count);
    workers_.run([&](int32_t thread) {
        norm(x_.data(), weights_.output_norm, first, count, output.quantized(), thread);
        workers_.barrier();
        const Share panels = share(output.panels(), thread);
        gemm(output, a_, panels, logits_.data(), ld_logits_, nullptr, false);
        if (!picks) {
            return;
        }
        const int32_t begin = std::min(panels.begin * kernels::kColumns, output.n);
        const int32_t end = std::min(panels.end * kernels::kColumns, output.n);
        for (int32_t r = 0; r < count && begin < end; ++r) { // while they are in this thread's cache
            const auto mine = static_cast<std::size_t>(begin);
            const int32_t best = argmax(logits(r).subspan(mine, static_cast<std::size_t>(end - begin)));
            scratch_[static_cast<std::size_t>(thread)].best[static_cast<std::size_t>(r)] = best < 0 ? -1 : best + begin;
        }
    });
}

int32_t Forward::pick(int32_t i) {
    const std::span<const float> row = logits(i);
    int32_t best = -1;
    for (int32_t thread = 0; thread < workers_.size();
         ++thread) { // their columns ascend: a tie stays with the lower one
        const Share panels = share((n_head_columns_ + kernels::kColumns - 1) / kernels::kColumns, thread);
        if (panels.begin >= panels.end) {
            continue;
        }
        const int32_t id = scratch_[static_cast<std::size_t>(thread)].best[static_cast<std::size_t>(i)];
        if (id < 0) {
            return -1;
        }
        if (best < 0 || row[static_cast<std::size_t>(id)] > row[static_cast<std::size_t>(best)]) {
            best = id;
        }
    }
    return best;
}

std::span<float> Forward::logits(int32_t i) {
    return {logits_.data() + i * ld_logits_, static_cast<std::size_t>(n_head_columns_)};
}

void Forward::multiply(const Matrix & m, const float * in, int32_t rows, float * out) {
    set_rows(rows);
    workers_.run([&](int32_t thread) {
        const Share mine = share(rows, thread);
        for (int32_t r = mine.begin; r < mine.end && m.quantized(); ++r) {
            kernels_.quantize(in + static_cast<std::ptrdiff_t>(r) * m.k, 0, m.k, r, a_);
        }
        workers_.barrier();
        kernels::Activations a = a_;
        a.x = const_cast<float *>(in); // read only by products
        gemm(m, a, share(m.panels(), thread), out, static_cast<int64_t>(m.panels()) * kernels::kColumns, nullptr,
             false);
    });
}

void Forward::norm_rows(float * x, int32_t rows, int32_t n, const float * weight) {
    for (int32_t r = 0; r < rows; ++r) {
        float * row = x + static_cast<std::ptrdiff_t>(r) * n;
        kernels_.rms_norm(row, weight, n, spec_.eps, row);
    }
}

} // namespace adaspark::graph
