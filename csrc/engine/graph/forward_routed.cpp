// Routed blocks. Rows are grouped by expert, so that an expert's weights are read once for all the rows that use it. A
// row's products, its selection and the order its experts are summed in are its own, whatever the other rows select.
#include "engine/graph/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace adaspark::graph {

namespace {

// What a unit of an expert's work costs apart from its rows, in rows: reading the weights.
constexpr int64_t kReading = 4;
constexpr float kLeastTotal = 6.103515625e-5F; // of the selected experts' shares, as llama.cpp: the smallest normal F16

// Part `part` of `parts` of about equal cost of the experts' work, which is `units` units of every group: calls
// f(group, first unit, end).
template <typename Groups, typename F>
void each_of_part(const Groups & groups, int32_t units, int32_t part, int32_t parts, F && f) {
    const auto n = static_cast<int64_t>(groups.expert.size());
    const int64_t all = (n * kReading + groups.begin.back()) * units;
    const int64_t begin = all * part / parts;
    const int64_t end = all * (part + 1) / parts;
    int64_t at = 0; // what the groups before cost
    for (std::size_t i = 0; i < groups.expert.size(); ++i) {
        const int64_t cost = kReading + groups.begin[i + 1] - groups.begin[i];
        const auto unit = [&](int64_t upto) { return std::clamp<int64_t>((upto - at + cost - 1) / cost, 0, units); };
        if (unit(begin) < unit(end)) {
            f(i, static_cast<int32_t>(unit(begin)), static_cast<int32_t>(unit(end)));
        }
        at += cost * units;
    }
}

// Rows first, first + 1, ... of `a`, whose int8 form keeps its layout.
kernels::Activations from_row(const kernels::Activations & a, int32_t first, int32_t k) {
    return {a.x + static_cast<std::ptrdiff_t>(first) * k,
            a.q + static_cast<std::ptrdiff_t>(first) * kernels::kCodes,
            a.d + first,
            a.dsum + first,
            a.minus8 + first,
            a.minus8_half + first,
            a.rows};
}

} // namespace

// The experts of a row, best first (the lower index where two are equal), and their shares.
void Forward::select(const BlockWeights & w, int32_t row) {
    const int32_t n = spec_.n_expert;
    const int32_t used = spec_.n_expert_used;
    float * likely = router_.data() + static_cast<std::ptrdiff_t>(row) * kernels::panels(n) * kernels::kColumns;
    if (spec_.router_sigmoid) {
        std::transform(likely, likely + n, likely, [](float x) { return 1.0F / (1.0F + std::exp(-x)); });
    } else {
        const float largest = *std::max_element(likely, likely + n);
        float total = 0.0F;
        for (int32_t e = 0; e < n; ++e) {
            likely[e] = std::exp(likely[e] - largest);
            total += likely[e];
        }
        std::transform(likely, likely + n, likely, [&](float x) { return x / total; });
    }
    const auto score = [&](int32_t e) { return likely[e] + (w.router_bias != nullptr ? w.router_bias[e] : 0.0F); };
    int32_t * best = experts_.data() + static_cast<std::ptrdiff_t>(row) * used;
    for (int32_t e = 0, held = 0; e < n; ++e) {
        int32_t at = held;
        while (at > 0 && score(e) > score(best[at - 1])) {
            --at;
        }
        if (at < used) {
            held = std::min(held + 1, used);
            std::copy_backward(best + at, best + held - 1, best + held);
            best[at] = e;
        }
    }
    float * shares = shares_.data() + static_cast<std::ptrdiff_t>(row) * used;
    float total = 0.0F;
    for (int32_t j = 0; j < used; ++j) {
        shares[j] = likely[best[j]];
        total += shares[j];
    }
    for (int32_t j = 0; j < used; ++j) {
        shares[j] /= total < kLeastTotal ? kLeastTotal : total;
    }
}

void Forward::group(Groups & g) const {
    const int32_t pairs = rows_ * spec_.n_expert_used;
    std::fill(g.count.begin(), g.count.end(), 0);
    for (int32_t i = 0; i < pairs; ++i) {
        ++g.count[static_cast<std::size_t>(experts_[static_cast<std::size_t>(i)])];
    }
    g.expert.clear();
    g.begin.clear();
    int32_t next = 0;
    for (int32_t e = 0; e < spec_.n_expert; ++e) {
        int32_t & count = g.count[static_cast<std::size_t>(e)];
        if (count > 0) {
            g.expert.push_back(e);
            g.begin.push_back(next);
            next += count;
            count = next - count; // from here on: where the expert's next pair goes
        }
    }
    g.begin.push_back(next);
    for (int32_t i = 0; i < pairs; ++i) {
        const int32_t pair = g.count[static_cast<std::size_t>(experts_[static_cast<std::size_t>(i)])]++;
        g.row[static_cast<std::size_t>(pair)] = i / spec_.n_expert_used;
        g.pair[static_cast<std::size_t>(i)] = pair;
    }
}

// The normed rows of group `i`: where they lie if they are neighbours, else gathered.
kernels::Activations Forward::rows_of(const Groups & g, std::size_t i, const BlockWeights & w, Scratch & s) const {
    const bool floats = !w.gate.quantized() || !w.up.quantized();
    const bool codes = w.gate.quantized() || w.up.quantized();
    const int32_t * rows = g.row.data() + g.begin[i];
    const int32_t count = g.begin[i + 1] - g.begin[i];
    const int32_t k = spec_.n_embd;
    if (rows[count - 1] - rows[0] == count - 1) {
        return from_row(a_, rows[0], k);
    }
    kernels::Activations out = s.gathered;
    out.rows = count;
    for (int32_t r = 0; r < count && floats; ++r) {
        std::copy_n(a_.x + static_cast<std::ptrdiff_t>(rows[r]) * k, k, out.x + static_cast<std::ptrdiff_t>(r) * k);
    }
    for (int32_t b = 0; b < k / kernels::kBlock && codes; ++b) {
        const std::ptrdiff_t from = static_cast<std::ptrdiff_t>(b) * a_.rows;
        const std::ptrdiff_t to = static_cast<std::ptrdiff_t>(b) * count;
        for (int32_t r = 0; r < count; ++r) {
            std::memcpy(out.q + (to + r) * kernels::kCodes, a_.q + (from + rows[r]) * kernels::kCodes, kernels::kCodes);
            out.d[to + r] = a_.d[from + rows[r]];
            out.dsum[to + r] = a_.dsum[from + rows[r]];
            out.minus8[to + r] = a_.minus8[from + rows[r]];
            out.minus8_half[2 * to + r] = a_.minus8_half[2 * from + rows[r]];
            out.minus8_half[2 * to + count + r] = a_.minus8_half[2 * from + a_.rows + rows[r]];
        }
    }
    return out;
}

// The inner rows of group `i`: its pairs, laid out as rows of their own.
kernels::Activations Forward::inner_of(const Groups & g, std::size_t i) const {
    const std::ptrdiff_t first = g.begin[i];
    const std::ptrdiff_t blocks = first * (spec_.n_ff_expert / kernels::kBlock);
    return {inner_.x + first * spec_.n_ff_expert,
            inner_.q + first * spec_.n_ff_expert / kernels::kBlock * kernels::kCodes,
            inner_.d + blocks,
            inner_.dsum + blocks,
            inner_.minus8 + blocks,
            inner_.minus8_half + 2 * blocks,
            g.begin[i + 1] - g.begin[i]};
}

void Forward::routed(const BlockWeights & w, int32_t thread) {
    const int64_t ld_router = static_cast<int64_t>(w.router.panels()) * kernels::kColumns;
    norm(x_.data(), w.ffn_norm, 0, rows_, w.gate.quantized() || w.up.quantized() || w.router.quantized(), thread);
    workers_.barrier();
    product(w.router, a_, router_.data(), ld_router, false, thread);
    workers_.barrier();
    const Share mine = share(rows_, thread);
    for (int32_t r = mine.begin; r < mine.end; ++r) {
        select(w, r);
    }
    workers_.barrier();

    Scratch & s = scratch_[static_cast<std::size_t>(thread)];
    const Groups & g = s.groups;
    group(s.groups);
    const auto each = [&](int32_t units, auto && f) {
        const int32_t parts = kPieces * workers_.size();
        workers_.spread(parts, thread, 1, [&](int32_t from, int32_t to) {
            for (int32_t part = from; part < to; ++part) {
                each_of_part(g, units, part, parts, f);
            }
        });
    };
    each(spec_.n_ff_expert / kernels::kBlock, [&](std::size_t i, int32_t begin, int32_t end) {
        const Matrix gate = w.gate.part(g.expert[i], spec_.n_expert);
        const Matrix up = w.up.part(g.expert[i], spec_.n_expert);
        const kernels::Activations in = rows_of(g, i, w, s);
        const kernels::Activations out = inner_of(g, i);
        inner_units(gate, up, in, out.rows, begin, end, w.down.quantized(), out, spec_.n_ff_expert, s);
    });
    workers_.barrier();
    each(spec_.n_embd / kernels::kColumns, [&](std::size_t i, int32_t begin, int32_t end) {
        const Matrix down = w.down.part(g.expert[i], spec_.n_expert);
        const kernels::Activations in = inner_of(g, i);
        kernels_.gemm({down.format, down.data, down.k, begin, end, in, in.rows,
                       expert_out_.data() + static_cast<std::ptrdiff_t>(g.begin[i]) * spec_.n_embd +
                           static_cast<std::ptrdiff_t>(begin) * kernels::kColumns,
                       spec_.n_embd, nullptr, false});
    });
    workers_.barrier();
    const int32_t used = spec_.n_expert_used;
    const Share blocks = share(spec_.n_embd / kernels::kBlock, thread);
    const int32_t first = blocks.begin * kernels::kBlock;
    for (int32_t r = 0; r < rows_; ++r) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(r) * used;
        for (int32_t j = 0; j < used; ++j) {
            s.experts[static_cast<std::size_t>(j)] =
                expert_out_.data() +
                static_cast<std::ptrdiff_t>(g.pair[static_cast<std::size_t>(at + j)]) * spec_.n_embd + first;
        }
        kernels_.mix(s.experts.data(), shares_.data() + at, used, blocks.end * kernels::kBlock - first,
                     x_.data() + static_cast<std::ptrdiff_t>(r) * spec_.n_embd + first);
    }
}

} // namespace adaspark::graph
