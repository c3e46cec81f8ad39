// Attention: chunks of 128 positions, each worked out alone for all rows and heads that share its keys, then merged in
// order. A chunk is cut by position and not by slot, so a row sums in the same order in a chain, in a tree and alone.
#include "engine/graph/forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace adaspark::graph {

void Forward::attention(const BlockWeights & w, int32_t thread) {
    const bool quantized = w.wq.quantized() || w.wk.quantized() || w.wv.quantized();
    project(w, normed(w.attn_norm, quantized, thread), false, thread);
    workers_.barrier();
    attend(w, thread); // ends with a barrier; its output is in h_, quantised where wo needs it
    product(w.wo, a_, x_.data(), spec_.n_embd, true, thread);
}

void Forward::rotate(const float * x, const float * norm, int32_t row, float scale, float * out) const {
    const int32_t dim = spec_.head_dim;
    const float * turn = turn_.data() + static_cast<std::ptrdiff_t>(row) * dim;
    float normed[kernels::kHeadDim];
    if (norm != nullptr) {
        kernels_.rms_norm(x, norm, dim, spec_.eps, normed);
        x = normed;
    }
    const int32_t half = dim / 2;
    for (int32_t i = 0; i < half; ++i) {
        const int32_t a = spec_.rope_interleaved ? 2 * i : i;
        const int32_t b = spec_.rope_interleaved ? 2 * i + 1 : i + half;
        const float u = x[a];
        const float v = x[b];
        out[a] = (u * turn[2 * i] - v * turn[2 * i + 1]) * scale;
        out[b] = (u * turn[2 * i + 1] + v * turn[2 * i]) * scale;
    }
}

// Queries, keys and values of all heads, whole heads to a thread.
void Forward::project(const BlockWeights & w, const kernels::Activations & in, bool keys_only, int32_t thread) {
    const int32_t first = keys_only ? spec_.n_head : 0;
    const int32_t heads = spec_.n_head + 2 * spec_.n_head_kv - first;
    workers_.spread(heads, thread, piece(heads), [&](int32_t begin, int32_t end) {
        for (int32_t item = first + begin; item < first + end; ++item) {
            project_head(w, in, item);
        }
    });
}

// Heads of queries, then of keys, then of values: all rows of one multiplied, then turned and scaled or stored.
void Forward::project_head(const BlockWeights & w, const kernels::Activations & in, int32_t item) {
    const int32_t dim = spec_.head_dim;
    const int32_t panels = dim / kernels::kColumns;
    const int32_t ldo = spec_.q_width() + 2 * spec_.kv_width();
    const int32_t key = item - spec_.n_head;
    const int32_t value = key - spec_.n_head_kv;
    const auto multiply = [&](const Matrix & m, const float * bias, int32_t head, int32_t first) {
        gemm(m, in, {head * panels, (head + 1) * panels}, qkv_.data() + first, ldo, bias, false);
        return qkv_.data() + first + head * dim;
    };
    if (key < 0) {
        const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
        const float * rows = multiply(w.wq, w.bq, item, 0);
        for (int32_t r = 0; r < rows_; ++r) {
            rotate(rows + static_cast<std::ptrdiff_t>(r) * ldo, w.q_norm, r, scale,
                   query_.data() + static_cast<std::ptrdiff_t>(r) * spec_.q_width() + item * dim);
        }
    } else if (value < 0) {
        const float * rows = multiply(w.wk, w.bk, key, spec_.q_width());
        for (int32_t r = 0; r < rows_; ++r) {
            float turned[kernels::kHeadDim];
            rotate(rows + static_cast<std::ptrdiff_t>(r) * ldo, w.k_norm, r, 1.0F, turned);
            kernels_.store_key(turned, dim, cache_.type(), cache_.keys(w.state, key), in_->committed + r);
        }
    } else {
        const float * rows = multiply(w.wv, w.bv, value, spec_.q_width() + spec_.kv_width());
        for (int32_t r = 0; r < rows_; ++r) {
            kernels_.store_value(rows + static_cast<std::ptrdiff_t>(r) * ldo, dim, cache_.type(),
                                 cache_.values(w.state, value), in_->committed + r);
        }
    }
}

// One chunk of one key head for rows [row_begin, row_end); partial results lie by row from `first` on. `ahead`: fetch
// what comes next, the next head's chunk.
void Forward::attend_rows(int32_t layer, int32_t head, int32_t chunk, int32_t first, int32_t row_begin, int32_t row_end,
                          bool ahead, Scratch & s) {
    const int32_t dim = spec_.head_dim;
    const int32_t group = spec_.n_head / spec_.n_head_kv; // query heads that share this key head
    const int32_t queries = (row_end - row_begin) * group;
    const int32_t first_tail = in_->committed / kernels::kChunk;
    const bool full = chunk < first_tail; // wholly committed: every row sees all of it
    const std::int64_t stride = dim + kernels::kPartial;
    s.attend.resize(std::max(s.attend.size(), static_cast<std::size_t>(queries * kernels::kQueryScratch)));
    s.q.resize(static_cast<std::size_t>(queries));
    s.out.resize(s.q.size());
    s.slots.resize(s.q.size());
    s.n_slots.resize(s.q.size());
    std::size_t n = 0;
    for (int32_t r = row_begin; r < row_end; ++r) {
        const int32_t from = (chunk - first_tail) * kernels::kChunk;
        const int32_t count =
            full ? 0 : std::clamp(tail_count_[static_cast<std::size_t>(r)] - from, 0, kernels::kChunk);
        for (int32_t g = 0; g < group; ++g) {
            const int32_t q_head = head * group + g;
            float * out = partials_.data() +
                          ((static_cast<std::int64_t>(r - first) * spec_.n_head + q_head) * chunks_ + chunk) * stride;
            if (!full && count == 0) {
                out[1] = 0.0F; // this row ends before the chunk
                continue;
            }
            s.q[n] = query_.data() + static_cast<std::ptrdiff_t>(r) * spec_.q_width() + q_head * dim;
            s.out[n] = out;
            s.slots[n] = tail_slots_.data() + static_cast<std::ptrdiff_t>(r) * kTailSlots + (full ? 0 : from);
            s.n_slots[n] = count;
            ++n;
        }
    }
    if (n == 0) {
        return;
    }
    kernels::Attend t;
    t.cache = cache_.type();
    t.k = cache_.keys(layer, head);
    t.v = cache_.values(layer, head);
    t.head_dim = dim;
    if (const int32_t next = chunk * spec_.n_head_kv + head + 1; ahead && next < spec_.n_head_kv * chunks_) {
        t.next = cache_.key_slot(layer, next % spec_.n_head_kv, next / spec_.n_head_kv * kernels::kChunk);
    }
    if (full) {
        t.slot_begin = chunk * kernels::kChunk;
        t.slot_end = t.slot_begin + kernels::kChunk;
    } else {
        // A tree's rows of this chunk may lie anywhere behind the committed slots.
        t.slot_begin = std::min(chunk * kernels::kChunk, in_->committed) / kernels::kSlots * kernels::kSlots;
        t.slot_end = (in_->committed + rows_ + kernels::kSlots - 1) / kernels::kSlots * kernels::kSlots;
        t.slots = s.slots.data();
        t.n_slots = s.n_slots.data();
        t.common = std::clamp(in_->committed - chunk * kernels::kChunk, 0, kernels::kChunk);
    }
    t.q = s.q.data();
    t.n_queries = static_cast<int32_t>(n);
    t.out = s.out.data();
    t.scratch = s.attend.data();
    kernels_.attend(t);
}

void Forward::attend(const BlockWeights & w, int32_t thread) {
    const int32_t dim = spec_.head_dim;
    const int32_t heads = spec_.n_head_kv;
    const int32_t unit = std::lcm(dim, kernels::kBlock) / dim; // heads that fill whole blocks of int8 activations
    const int32_t group = spec_.n_head / heads;
    const int32_t together =
        std::min(kAttendRows, std::lcm(group, kernels::kQueries) / group); // rows, for full kernels
    const std::int64_t stride = dim + kernels::kPartial;
    for (int32_t begin = 0; begin < rows_; begin += kAttendRows) {
        const int32_t end = std::min(rows_, begin + kAttendRows);
        const int32_t groups = (end - begin + together - 1) / together;
        const int32_t items = chunks_ * heads * groups;
        workers_.spread(items, thread, piece(items), [&](int32_t from, int32_t to) {
            for (int32_t item = from; item < to; ++item) {
                const int32_t row = begin + item % groups * together;
                const int32_t at = item / groups;
                attend_rows(w.state, at % heads, at / heads, begin, row, std::min(end, row + together),
                            item % groups == 0, scratch_[static_cast<std::size_t>(thread)]);
            }
        });
        workers_.barrier();
        // By heads and then by rows: rows of one head share the lines of the int8 form.
        const int32_t units = spec_.n_head / unit;
        const int32_t rows = end - begin;
        const Share mine = share(rows * units, thread);
        for (int32_t i = mine.begin; i < mine.end; ++i) {
            const int32_t r = begin + i % rows;
            const int32_t first = i / rows * unit;
            float * out = h_.data() + static_cast<std::ptrdiff_t>(r) * spec_.q_width() + first * dim;
            for (int32_t q_head = first; q_head < first + unit; ++q_head) {
                const float * part = partials_.data() +
                                     (static_cast<std::int64_t>(r - begin) * spec_.n_head + q_head) * chunks_ * stride;
                kernels_.merge(part, stride, chunks_, dim, out + (q_head - first) * dim);
            }
            if (w.wo.quantized()) {
                kernels_.quantize(out, first * dim, unit * dim, r, a_);
            }
        }
        workers_.barrier();
    }
}

} // namespace adaspark::graph
