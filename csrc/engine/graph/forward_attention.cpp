// Attention: chunks of 128 positions, each worked out alone for all rows and heads that share its keys, then merged in
// order. A chunk is cut by position and not by slot, so a row sums in the same order in a chain, in a tree and alone.
#include "engine/graph/forward.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace adaspark::graph {

void Forward::attention(const BlockWeights & w, int32_t thread) {
    norm(x_.data(), w.attn_norm, 0, rows_, w.wq.quantized() || w.wk.quantized() || w.wv.quantized(), thread);
    workers_.barrier();
    project(w, thread);
    workers_.barrier();
    rotate_and_store(w, thread, false);
    workers_.barrier();
    attend(w, thread); // ends with a barrier; its output is in h_, quantised where wo needs it
    gemm(w.wo, a_, share(w.wo.panels(), thread), x_.data(), spec_.n_embd, nullptr, true);
}

// Queries, keys and values as one list of panels, so that every thread gets the same number.
void Forward::project(const BlockWeights & w, int32_t thread) {
    const int64_t ldo = spec_.q_width() + 2 * spec_.kv_width();
    const int32_t nq = w.wq.panels();
    const int32_t nk = w.wk.panels();
    const Share mine = share(nq + 2 * nk, thread);
    gemm(w.wq, a_, mine, qkv_.data(), ldo, w.bq, false);
    gemm(w.wk, a_, {mine.begin - nq, mine.end - nq}, qkv_.data() + spec_.q_width(), ldo, w.bk, false);
    gemm(w.wv, a_, {mine.begin - nq - nk, mine.end - nq - nk}, qkv_.data() + spec_.q_width() + spec_.kv_width(), ldo,
         w.bv, false);
}

void Forward::rotate(const float * x, const float * norm, int32_t row, float scale, float * out) const {
    const int32_t dim = spec_.head_dim;
    const float * turn = turn_.data() + static_cast<std::ptrdiff_t>(row) * dim;
    float normed[512];
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

void Forward::rotate_and_store(const BlockWeights & w, int32_t thread, bool keys_only) {
    const int32_t dim = spec_.head_dim;
    const int32_t ldq = spec_.q_width() + 2 * spec_.kv_width();
    const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
    const int32_t queries = keys_only ? 0 : spec_.n_head;
    const Share mine = share(queries + 2 * spec_.n_head_kv, thread); // whole heads
    for (int32_t item = mine.begin; item < mine.end; ++item) {
        for (int32_t r = 0; r < rows_; ++r) {
            const int32_t slot = in_->committed + r;
            const float * row = qkv_.data() + static_cast<std::ptrdiff_t>(r) * ldq;
            if (item < queries) {
                rotate(row + item * dim, w.q_norm, r, scale,
                       query_.data() + static_cast<std::ptrdiff_t>(r) * spec_.q_width() + item * dim);
            } else if (const int32_t head = item - queries; head < spec_.n_head_kv) {
                float key[512];
                rotate(row + spec_.q_width() + head * dim, w.k_norm, r, 1.0F, key);
                kernels_.store_key(key, dim, cache_.type(), cache_.keys(w.state, head), slot);
            } else {
                const int32_t at = head - spec_.n_head_kv;
                kernels_.store_value(row + spec_.q_width() + spec_.kv_width() + at * dim, dim, cache_.type(),
                                     cache_.values(w.state, at), slot);
            }
        }
    }
}

void Forward::attend_item(int32_t layer, int32_t item, int32_t row_begin, int32_t row_end, Scratch & s) {
    const int32_t head = item % spec_.n_head_kv;
    const int32_t chunk = item / spec_.n_head_kv;
    const int32_t dim = spec_.head_dim;
    const int32_t group = spec_.n_head / spec_.n_head_kv; // query heads that share this key head
    const int32_t queries = (row_end - row_begin) * group;
    const int32_t first_tail = in_->committed / kernels::kChunk;
    const bool full = chunk < first_tail; // wholly committed: every row sees all of it
    const std::int64_t stride = dim + 8;
    s.attend.resize(std::max(s.attend.size(), static_cast<std::size_t>(queries * (kernels::kTile + kernels::kChunk))));
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
            float * out =
                partials_.data() +
                ((static_cast<std::int64_t>(r - row_begin) * spec_.n_head + q_head) * chunks_ + chunk) * stride;
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
    if (const int32_t next = item + workers_.size(); next < spec_.n_head_kv * chunks_) {
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
    }
    t.q = s.q.data();
    t.n_queries = static_cast<int32_t>(n);
    t.out = s.out.data();
    t.scratch = s.attend.data();
    kernels_.attend(t);
}

void Forward::attend(const BlockWeights & w, int32_t thread) {
    const int32_t dim = spec_.head_dim;
    const int32_t threads = workers_.size();
    const int32_t unit = std::lcm(dim, kernels::kBlock) / dim; // heads that fill whole blocks of int8 activations
    const std::int64_t stride = dim + 8;
    for (int32_t begin = 0; begin < rows_; begin += kAttendRows) {
        const int32_t end = std::min(rows_, begin + kAttendRows);
        for (int32_t item = thread; item < spec_.n_head_kv * chunks_; item += threads) {
            attend_item(w.state, item, begin, end, scratch_[static_cast<std::size_t>(thread)]);
        }
        workers_.barrier();
        const int32_t units = spec_.n_head / unit;
        const Share mine = share((end - begin) * units, thread);
        for (int32_t i = mine.begin; i < mine.end; ++i) {
            const int32_t r = begin + i / units;
            const int32_t first = i % units * unit;
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
