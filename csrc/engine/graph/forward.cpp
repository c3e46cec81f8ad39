#include "engine/graph/forward.h"

#include "engine/topk.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace adaspark::graph {

namespace {

// Numbers a thread norms again that another has normed too, rather than wait for them: about what meeting and fetching
// the rows from the other's cache takes.
constexpr int32_t kNormAgain = 16384;

constexpr int32_t kNotANumber = -1; // instead of a column: one of those compared is none
constexpr int32_t kNone = -2;       // none were compared

// Of two columns of a row the one with the larger logit, the lower one on ties; not a number where either is.
int32_t better(std::span<const float> row, int32_t a, int32_t b) {
    if (std::min(a, b) < 0) {
        return a == kNone ? b : b == kNone ? a : kNotANumber;
    }
    const float x = row[static_cast<std::size_t>(a)];
    const float y = row[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b) ? a : b;
}

} // namespace

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
    if (workers.size() > 1) {
        own_rows_ = std::min(kMaxRows, kNormAgain / (spec.n_embd * (workers.size() - 1)));
    }
    for (Scratch & s : scratch_) {
        const std::size_t own = static_cast<std::size_t>(own_rows_) * n_embd;
        s.normed.resize(own);
        s.own = s.normed_int8.open(s.normed.data(), static_cast<std::size_t>(own_rows_), n_embd);
        s.gate.resize(rows * kernels::kBlock * kUnitsAtOnce);
        s.up.resize(s.gate.size());
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
    for (Scratch & s : scratch_) {
        s.own.rows = rows;
    }
}

// A thread's part of n things.
Forward::Share Forward::share(int32_t n, int32_t thread) const {
    const int32_t threads = workers_.size();
    return {static_cast<int32_t>(int64_t{n} * thread / threads),
            static_cast<int32_t>(int64_t{n} * (thread + 1) / threads)};
}

// How many of n things a thread takes at a time, at least.
int32_t Forward::piece(int32_t n) const { return std::max(1, n / (kPieces * workers_.size())); }

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

void Forward::product(const Matrix & m, const kernels::Activations & a, float * out, int64_t ldo, bool add,
                      int32_t thread) {
    workers_.spread(m.panels(), thread, piece(m.panels()),
                    [&](int32_t begin, int32_t end) { gemm(m, a, {begin, end}, out, ldo, nullptr, add); });
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
    const std::size_t needed =
        group * static_cast<std::size_t>(chunks_) * static_cast<std::size_t>(spec_.head_dim + kernels::kPartial);
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
    if (w.router) {
        routed(w, thread);
    } else {
        feed_forward(w, thread);
    }
    workers_.barrier();
}

// Row `row` of `out`, as int8 too when a product wants that.
void Forward::norm_row(const float * x, const float * weight, bool quantize, int32_t row,
                       const kernels::Activations & out) const {
    float * h = out.x + static_cast<std::ptrdiff_t>(row) * spec_.n_embd;
    kernels_.rms_norm(x, weight, spec_.n_embd, spec_.eps, h);
    if (quantize) {
        kernels_.quantize(h, 0, spec_.n_embd, row, out);
    }
}

// h = norm(x) for this thread's rows. Row 0 of h is row `first` of x.
void Forward::norm(const float * x, const float * weight, int32_t first, int32_t rows, bool quantize, int32_t thread) {
    const Share mine = share(rows, thread);
    for (int32_t r = mine.begin; r < mine.end; ++r) {
        norm_row(x + static_cast<std::ptrdiff_t>(first + r) * spec_.n_embd, weight, quantize, r, a_);
    }
}

// The block's input, normed, where this thread can read it: few rows each thread norms for itself, of more it norms its
// share and waits for the rest.
const kernels::Activations & Forward::normed(const float * weight, bool quantize, int32_t thread) {
    if (rows_ > own_rows_) {
        norm(x_.data(), weight, 0, rows_, quantize, thread);
        workers_.barrier();
        return a_;
    }
    const Scratch & s = scratch_[static_cast<std::size_t>(thread)];
    for (int32_t r = 0; r < rows_; ++r) {
        norm_row(x_.data() + static_cast<std::ptrdiff_t>(r) * spec_.n_embd, weight, quantize, r, s.own);
    }
    return s.own;
}

// Gate and up of units [begin, end) of 32 columns, their product, and its int8 form: one thread makes whole blocks of
// the inner rows.
void Forward::inner_units(const Matrix & gate, const Matrix & up, const kernels::Activations & in, int32_t rows,
                          int32_t begin, int32_t end, bool quantize, const kernels::Activations & out, int32_t width,
                          Scratch & s) const {
    for (int32_t unit = begin, next; unit < end; unit = next) {
        next = std::min(end, unit + kUnitsAtOnce);
        const int32_t columns = (next - unit) * kernels::kBlock;
        const int32_t first = unit * kernels::kBlock;
        kernels_.gemm({gate.format, gate.data, gate.k, unit * kUnit, next * kUnit, in, rows, s.gate.data(), columns,
                       nullptr, false});
        kernels_.gemm(
            {up.format, up.data, up.k, unit * kUnit, next * kUnit, in, rows, s.up.data(), columns, nullptr, false});
        for (int32_t r = 0; r < rows; ++r) {
            float * row = out.x + static_cast<std::ptrdiff_t>(r) * width + first;
            kernels_.silu_mul(s.gate.data() + r * columns, s.up.data() + r * columns, columns, row);
            if (quantize) {
                kernels_.quantize(row, first, columns, r, out);
            }
        }
    }
}

void Forward::feed_forward(const BlockWeights & w, int32_t thread) {
    const kernels::Activations & in = normed(w.ffn_norm, w.gate.quantized() || w.up.quantized(), thread);
    const int32_t units = spec_.n_ff / kernels::kBlock;
    workers_.spread(units, thread, piece(units), [&](int32_t begin, int32_t end) {
        inner_units(w.gate, w.up, in, rows_, begin, end, w.down.quantized(), inner_, spec_.n_ff,
                    scratch_[static_cast<std::size_t>(thread)]);
    });
    workers_.barrier();
    product(w.down, inner_, x_.data(), spec_.n_embd, true, thread);
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
        for (int32_t layer = 0; layer < spec_.n_layer; ++layer) {
            project(weights_.blocks[static_cast<std::size_t>(layer)], a_, true, thread);
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
        int32_t * best = scratch_[static_cast<std::size_t>(thread)].best;
        std::fill_n(best, count, kNone);
        workers_.barrier();
        workers_.spread(output.panels(), thread, piece(output.panels()), [&](int32_t from, int32_t to) {
            gemm(output, a_, {from, to}, logits_.data(), ld_logits_, nullptr, false);
            const int32_t begin = std::min(from * kernels::kColumns, output.n);
            const int32_t end = std::min(to * kernels::kColumns, output.n);
            for (int32_t r = 0; r < count && picks && begin < end; ++r) { // while they are in this thread's cache
                const std::span<const float> row = logits(r);
                const int32_t id =
                    argmax(row.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
                best[r] = better(row, best[r], id < 0 ? kNotANumber : id + begin);
            }
        });
    });
}

int32_t Forward::pick(int32_t i) {
    int32_t best = kNone;
    for (const Scratch & s : scratch_) {
        best = better(logits(i), best, s.best[i]);
    }
    return std::max(best, kNotANumber);
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
        product(m, a, out, static_cast<int64_t>(m.panels()) * kernels::kColumns, false, thread);
    });
}

void Forward::norm_rows(float * x, int32_t rows, int32_t n, const float * weight) {
    for (int32_t r = 0; r < rows; ++r) {
        float * row = x + static_cast<std::ptrdiff_t>(r) * n;
        kernels_.rms_norm(row, weight, n, spec_.eps, row);
    }
}

} // namespace adaspark::graph
