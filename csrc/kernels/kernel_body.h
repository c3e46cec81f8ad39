// The kernels, written once over the 8 lanes of the `simd_*.h` included before this file.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/scales.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

// ---- matrix products -----------------------------------------------------------------------------------------------

constexpr int32_t kRows = 8;             // rows multiplied together: what the registers hold
constexpr int kParts = kColumns / kWide; // turns over a panel; only the first finds it in memory
constexpr int32_t kAhead = 8192;         // bytes: how far ahead weights are asked for, across panels

// One part of a panel times RB rows. Each output is one chain of fused multiply-adds over ascending inputs (F32
// activations) or ascending blocks of 32 (int8 activations: the scaled sums, then the minimum).
template <Format F, int RB>
ADASPARK_INLINE void panel_rows(const Gemm & g, const uint8_t * w, int part, int32_t row, FW (&acc)[RB]) {
    each<RB>([&](auto r) { acc[r] = zero_wide(); });
    if constexpr (!is_quantized(F)) {
        const float * x[RB];
        each<RB>([&](auto r) { x[r] = g.a.x + static_cast<int64_t>(row + r) * g.k; });
        for (int32_t i = 0; i < g.k; ++i) {
            const int64_t at = int64_t{kColumns} * i + kWide * part;
            FW values;
            if constexpr (F == Format::f32) {
                values = load_wide(reinterpret_cast<const float *>(w) + at);
            } else if constexpr (F == Format::f16) {
                values = load_half_wide(w + 2 * at);
            } else {
                values = load_bf16_wide(w + 2 * at);
            }
            each<RB>([&](auto r) { acc[r] = fma(values, set1_wide(x[r][i]), acc[r]); });
        }
    } else {
        Scales<F> scales = {w, part, {}, {}, {}, {}};
        const uint8_t * codes = w + panel_scales(F, g.k);
        for (int32_t b = 0; b < g.k / kBlock; ++b, codes += code_bytes(F)) {
            const int64_t at = static_cast<int64_t>(b) * g.a.rows + row;
            if (part == 0 && row == 0) {
                for (int i = 0; i <= code_bytes(F); i += 64) {
                    ADASPARK_PREFETCH(codes + kAhead + i);
                }
            }
            IW s[kHalves<F> * RB];
            block_dot<F, RB>(codes, part, g.a.codes(b, row), g.a.minus8 + at,
                             g.a.minus8_half + static_cast<int64_t>(b) * 2 * g.a.rows + row, g.a.rows, s);
            scales.next(b);
            each<RB>([&](auto r) {
                const FW d = set1_wide(g.a.d[at + r]);
                each<kHalves<F>>(
                    [&](auto h) { acc[r] = fma(to_float(s[RB * h + r]), mul(scales.scale[h], d), acc[r]); });
                if constexpr (has_minimum(F)) {
                    acc[r] = fma(scales.minimum, set1_wide(g.a.dsum[at + r]), acc[r]);
                }
            });
        }
    }
}

template <Format F, int RB> void panel_store(const Gemm & g, int32_t panel, int32_t row) {
    const uint8_t * w = g.w + static_cast<std::size_t>(panel) * panel_bytes(F, g.k);
    for (int part = 0; part < kParts; ++part) {
        FW acc[RB];
        panel_rows<F, RB>(g, w, part, row, acc);
        const int64_t column = static_cast<int64_t>(panel) * kColumns + kWide * part;
        each<RB>([&](auto r) {
            float * out = g.out + (row + r) * g.ldo + column - static_cast<int64_t>(g.panel_begin) * kColumns;
            FW y = acc[r];
            if (g.bias != nullptr) {
                y = add(y, load_wide(g.bias + column));
            }
            store(out, g.add ? add(load_wide(out), y) : y);
        });
    }
}

// N, N - 1, ... rows, whichever is `n`.
template <Format F, int N> void panel_some_rows(const Gemm & g, int32_t panel, int32_t row, int32_t n) {
    if constexpr (N > 1) {
        if (n < N) {
            return panel_some_rows<F, N - 1>(g, panel, row, n);
        }
    }
    panel_store<F, N>(g, panel, row);
}

template <Format F> void gemm_format(const Gemm & g) {
    const int32_t groups = (g.rows + kRows - 1) / kRows;
    for (int32_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
        for (int32_t i = 0, row = 0; i < groups; ++i) {
            const int32_t n = (g.rows - row + groups - i - 1) / (groups - i); // groups of about equal size
            panel_some_rows<F, kRows>(g, panel, row, n);
            row += n;
        }
    }
}

void gemm(const Gemm & g) {
    switch (g.format) {
    case Format::f32:
        return gemm_format<Format::f32>(g);
    case Format::f16:
        return gemm_format<Format::f16>(g);
    case Format::bf16:
        return gemm_format<Format::bf16>(g);
    case Format::q8_0:
        return gemm_format<Format::q8_0>(g);
    case Format::q4_0:
        return gemm_format<Format::q4_0>(g);
    case Format::q4_1:
        return gemm_format<Format::q4_1>(g);
    case Format::q5_0:
        return gemm_format<Format::q5_0>(g);
    case Format::q5_1:
        return gemm_format<Format::q5_1>(g);
    case Format::q4_k:
        return gemm_format<Format::q4_k>(g);
    case Format::q5_k:
        return gemm_format<Format::q5_k>(g);
    case Format::q6_k:
        return gemm_format<Format::q6_k>(g);
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

// Sums and maxima run in 16 lanes, whatever the width of a vector.
constexpr int kLanes = 16;

struct Lanes {
    FW v[kLanes / kWide];

    template <typename F> F8 fold(F && f) const { // of two halves
        float lanes[kLanes];
        each<kLanes / kWide>([&](auto j) { store(lanes + kWide * j, v[j]); });
        return f(load(lanes), load(lanes + kLanes / 2));
    }
};

inline Lanes lanes_of(float x) {
    Lanes a;
    each<kLanes / kWide>([&](auto j) { a.v[j] = set1_wide(x); });
    return a;
}

void rms_norm(const float * x, const float * weight, int32_t n, float eps, float * out) {
    Lanes acc[2] = {lanes_of(0.0F), lanes_of(0.0F)};
    for (int32_t i = 0; i < n; i += 2 * kLanes) {
        each<2 * kLanes / kWide>([&](auto j) {
            if (constexpr int kAt = kWide * j; i + kAt < n) {
                const FW v = load_wide(x + i + kAt);
                FW & sums = acc[kAt / kLanes].v[kAt % kLanes / kWide];
                sums = fma(v, v, sums);
            }
        });
    }
    const auto both = [](F8 a, F8 b) { return add(a, b); };
    const float mean = sum(add(acc[0].fold(both), acc[1].fold(both))) / static_cast<float>(n);
    const FW scale = set1_wide(1.0F / std::sqrt(mean + eps));
    for (int32_t i = 0; i < n; i += kWide) {
        store(out + i, mul(mul(load_wide(x + i), scale), load_wide(weight + i)));
    }
}

// 32 numbers as int8: their scale. `total`: sums of the codes of the first and of the second 16.
inline float codes_of(const float * x, int8_t * codes, int32_t (&total)[2]) {
    const F8 v[4] = {load(x), load(x + 8), load(x + 16), load(x + 24)};
    const F8 all = add(add(v[0], v[1]), add(v[2], v[3]));
    const float largest = max_of(max(max(abs(v[0]), abs(v[1])), max(abs(v[2]), abs(v[3]))));
    const F8 inverse = set1(largest > 0.0F ? 127.0F / largest : 0.0F);
    const I8 rounded[4] = {round(mul(v[0], inverse)), round(mul(v[1], inverse)), round(mul(v[2], inverse)),
                           round(mul(v[3], inverse))};
    store_int8(codes, rounded, total);
    return any_nan(all) ? NAN : largest / 127.0F; // a NaN must not vanish in the codes
}

void quantize(const float * x, int32_t first, int32_t n, int32_t row, const Activations & a) {
    for (int32_t i = 0; i < n; i += kBlock) {
        const int32_t block = (first + i) / kBlock;
        const int64_t at = static_cast<int64_t>(block) * a.rows + row;
        int32_t total[2];
        const float d = codes_of(x + i, a.codes(block, row), total);
        std::memset(a.q + at * kCodes + (1 - block % 2) * kBlock, 0, kBlock);
        a.d[at] = d;
        a.minus8[at] = -8 * (total[0] + total[1]);
        a.minus8_half[2 * at - row] = -8 * total[0];
        a.minus8_half[2 * at - row + a.rows] = -8 * total[1];
        a.dsum[at] = d * static_cast<float>(total[0] + total[1]);
    }
}

// e^x for x clamped to [-87.3, 88]; a NaN stays one. Relative error below 2e-7.
inline FW exp_wide(FW x) {
    x = max(set1_wide(-87.3F), min(set1_wide(88.0F), x));
    const IW n = round(mul(x, set1_wide(1.44269504F)));
    const FW f = to_float(n);
    FW r = fma(f, set1_wide(-0.693359375F), x);
    r = fma(f, set1_wide(2.12194440e-4F), r);
    FW p = set1_wide(1.9875691500e-4F);
    constexpr float kPolynomial[] = {1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F,
                                     5.0000001201e-1F};
    for (const float c : kPolynomial) {
        p = fma(p, r, set1_wide(c));
    }
    return mul(add(fma(mul(p, r), r, r), set1_wide(1.0F)), pow2(n));
}

void silu_mul(const float * gate, const float * up, int32_t n, float * out) {
    for (int32_t i = 0; i < n; i += kWide) {
        const FW g = load_wide(gate + i);
        store(out + i, mul(div(g, add(set1_wide(1.0F), exp_wide(sub(zero_wide(), g)))), load_wide(up + i)));
    }
}

void mix(const float * const * in, const float * weight, int32_t count, int32_t n, float * out) {
    for (int32_t i = 0; i < n; i += kWide) {
        FW acc = zero_wide();
        for (int32_t j = 0; j < count; ++j) {
            acc = fma(load_wide(in[j] + i), set1_wide(weight[j]), acc);
        }
        store(out + i, add(load_wide(out + i), acc));
    }
}

void short_conv(const float * const * in, const float * weight, int64_t ldw, int32_t taps, const float * c, int32_t n,
                float * out) {
    for (int32_t i = 0; i < n; i += kWide) {
        FW acc = zero_wide();
        for (int32_t t = 0; t < taps; ++t) {
            acc = fma(load_wide(in[t] + i), load_wide(weight + t * ldw + i), acc);
        }
        store(out + i, mul(load_wide(c + i), acc));
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

// Numbers from `p` on; `scale` is that of their block in a q8_0 cache.
template <Cache C> inline FW load_cache(const uint8_t * p, FW scale) {
    if constexpr (C == Cache::f16) {
        return load_half_wide(p);
    } else if constexpr (C == Cache::f32) {
        return load_wide(reinterpret_cast<const float *>(p));
    } else {
        return mul(load_i8_wide(p), scale);
    }
}

// How many vectors NQ queries take at once: enough independent sums to keep the multipliers busy, and no more than fit.
// With one vector a query's weight is an operand in memory and needs no instruction of its own.
constexpr int vectors_at_once(int queries) { return queries > 6 ? 1 : queries > 3 ? kRegisters / 8 : 4; }

// Scores of NQ queries for VB vectors of slots.
template <Cache C, int NQ, int VB> inline void scores(const Attend & t, int32_t slot, int32_t query) {
    constexpr auto kRow = static_cast<int64_t>(number_bytes(C)) * kSlots; // bytes of a dimension in a group
    FW acc[NQ * VB];
    each<NQ * VB>([&](auto i) { acc[i] = zero_wide(); });
    float * scratch = t.scratch + static_cast<int64_t>(query) * kQueryScratch;
    const float * q = scratch + kTile + kChunk;
    const auto group = static_cast<int64_t>(group_bytes(C, t.head_dim));
    const auto front = static_cast<int64_t>(scales_bytes(C, t.head_dim));
    const uint8_t * scales[VB]; // of q8_0
    const uint8_t * keys[VB];
    const char * wanted[VB]; // next: the values of these slots, in the same places of their plane
    each<VB>([&](auto j) {
        const int64_t at = (slot + kWide * j) / kSlots * group;
        const int64_t in = (slot + kWide * j) % kSlots;
        scales[j] = static_cast<const uint8_t *>(t.k) + at + 2 * in;
        keys[j] = static_cast<const uint8_t *>(t.k) + at + front + static_cast<int64_t>(number_bytes(C)) * in;
        wanted[j] = static_cast<const char *>(t.v) + at;
    });
    FW scale[VB];
    each<VB>([&](auto j) { scale[j] = zero_wide(); });
    const int32_t dims = t.head_dim;
    const bool ahead = query == 0;
    for (int32_t i = 0; i < dims; ++i, ++q) {
        FW key[VB];
        each<VB>([&](auto j) {
            if (C == Cache::q8_0 && i % kBlock == 0) {
                scale[j] = load_half_wide(scales[j] + 2 * (i / kBlock * kSlots));
            }
            key[j] = load_cache<C>(keys[j] + i * kRow, scale[j]);
        });
        if (ahead && (C != Cache::q8_0 || i % 2 == 0)) {
            for (const char * value : wanted) { // GCC would drop a lambda of nothing else
                ADASPARK_PREFETCH(value + i * kRow);
            }
        }
        each<NQ>([&](auto n) {
            const FW weight = set1_wide(q[n * kQueryScratch]);
            each<VB>([&](auto j) { acc[n * VB + j] = fma(key[j], weight, acc[n * VB + j]); });
        });
    }
    float * out = scratch + (slot - t.slot_begin);
    each<NQ>([&](auto n) { each<VB>([&](auto j) { store(out + n * kQueryScratch + kWide * j, acc[n * VB + j]); }); });
}

template <Cache C, int NQ, int VB = vectors_at_once(NQ)>
inline void scores_from(const Attend & t, int32_t slot, int32_t query) {
    for (; slot + VB * kWide <= t.slot_end; slot += VB * kWide) {
        scores<C, NQ, VB>(t, slot, query);
    }
    if constexpr (VB > 1) {
        scores_from<C, NQ, VB / 2>(t, slot, query);
    }
}

// The values of some positions of a chunk.
struct Span {
    const int32_t * slots; // of the chunk's positions; null: as the chunk lies
    int32_t begin;         // positions; the sums of those before are there already
    int32_t end;
};

// Values of NQ queries that see the same slots, weighted and summed in the order of positions: VB vectors of
// dimensions.
template <Cache C, int NQ, int VB> inline void values(const Attend & t, const Span & span, int32_t dim, int32_t query) {
    constexpr auto kBytes = static_cast<int64_t>(number_bytes(C));
    FW acc[NQ * VB];
    each<NQ>([&](auto n) {
        const float * before = t.out[query + n] + kPartial + dim;
        each<VB>([&](auto j) { acc[n * VB + j] = span.begin > 0 ? load_wide(before + kWide * j) : zero_wide(); });
    });
    const float * p = t.scratch + static_cast<int64_t>(query) * kQueryScratch + kTile + span.begin;
    const auto group = static_cast<int64_t>(group_bytes(C, t.head_dim));
    const auto front = static_cast<int64_t>(scales_bytes(C, t.head_dim));
    const auto * from = static_cast<const uint8_t *>(t.v);
    const int64_t dims = t.head_dim;
    const int64_t first = t.slot_begin;
    const auto * next = static_cast<const char *>(query == 0 ? t.next : nullptr);
    for (int32_t i = span.begin; i < span.end; ++i, ++p) {
        const int64_t slot = span.slots != nullptr ? span.slots[i] : first + i;
        FW scale = zero_wide();
        FW v[VB];
        if constexpr (C == Cache::q8_0) {
            const uint8_t * at = from + slot / kSlots * group; // its group
            const int64_t number = slot % kSlots * dims + dim; // in it
            each<VB>([&](auto j) {
                if (kWide * j % kBlock == 0) {
                    scale = set1_half_wide(at + 2 * ((number + kWide * j) / kBlock));
                }
                v[j] = load_cache<C>(at + front + kBytes * (number + kWide * j), scale);
            });
        } else { // groups without scales are one row of slots
            each<VB>([&](auto j) { v[j] = load_cache<C>(from + kBytes * (slot * dims + dim + kWide * j), scale); });
        }
        if (next != nullptr) {
            for (int j = 0; j < VB; ++j) {
                ADASPARK_PREFETCH(next + kBytes * (i * dims + dim + kWide * j));
            }
        }
        each<NQ>([&](auto n) {
            const FW weight = set1_wide(p[n * kQueryScratch]);
            each<VB>([&](auto j) { acc[n * VB + j] = fma(v[j], weight, acc[n * VB + j]); });
        });
    }
    each<NQ>([&](auto n) {
        each<VB>([&](auto j) { store(t.out[query + n] + kPartial + dim + kWide * j, acc[n * VB + j]); });
    });
}

template <Cache C, int NQ, int VB = vectors_at_once(NQ)>
inline void values_from(const Attend & t, const Span & span, int32_t dim, int32_t query) {
    for (; dim + VB * kWide <= t.head_dim; dim += VB * kWide) {
        values<C, NQ, VB>(t, span, dim, query);
    }
    if constexpr (VB > 1) {
        values_from<C, NQ, VB / 2>(t, span, dim, query);
    }
}

// Calls f(number of queries, first query) for `count` queries from `query` on, as many at a time as there are kernels
// for.
template <typename F> inline void by_queries(int32_t query, int32_t count, F && f) {
    const auto take = [&](auto n) {
        for (; count >= n; count -= n, query += n) {
            f(n, query);
        }
    };
    if constexpr (kRegisters > kQueries) {
        take(Index<kQueries>{});
    }
    take(Index<12>{});
    take(Index<6>{});
    take(Index<4>{});
    take(Index<3>{});
    take(Index<2>{});
    take(Index<1>{});
}

inline int32_t slots_of(const Attend & t, int32_t query) {
    return t.slots != nullptr ? t.n_slots[query] : t.slot_end - t.slot_begin;
}

// Scores to weights; these are summed in 16 lanes over ascending positions, the lanes pairwise.
inline void softmax_query(const Attend & t, int32_t query) {
    float * scores = t.scratch + static_cast<int64_t>(query) * kQueryScratch; // by slot
    float * p = scores + kTile;
    const int32_t count = slots_of(t, query);
    const int32_t padded = (count + kLanes - 1) / kLanes * kLanes;
    if (t.slots != nullptr) {
        for (int32_t i = 0; i < count; ++i) {
            p[i] = scores[t.slots[query][i] - t.slot_begin];
        }
        std::fill(p + count, p + padded, count > 0 ? p[count - 1] : 0.0F); // repeats do not move the maximum
        scores = p;
    }
    Lanes top = lanes_of(-INFINITY);
    for (int32_t i = 0; i < padded; i += kLanes) {
        each<kLanes / kWide>([&](auto j) { top.v[j] = max(top.v[j], load_wide(scores + i + kWide * j)); });
    }
    const float largest = max_of(top.fold([](F8 a, F8 b) { return max(a, b); }));
    for (int32_t i = 0; i < padded; i += kWide) {
        store(p + i, exp_wide(sub(load_wide(scores + i), set1_wide(largest))));
    }
    std::fill(p + count, p + padded, 0.0F);
    Lanes total = lanes_of(0.0F);
    for (int32_t i = 0; i < padded; i += kLanes) {
        each<kLanes / kWide>([&](auto j) { total.v[j] = add(total.v[j], load_wide(p + i + kWide * j)); });
    }
    t.out[query][0] = count > 0 ? largest : -INFINITY;
    t.out[query][1] = sum(total.fold([](F8 a, F8 b) { return add(a, b); }));
}

// How many positions lie in the same slots for all queries: a tree's rows share the committed ones.
inline int32_t common_positions(const Attend & t) {
    int32_t common = t.n_slots[0];
    for (int32_t query = 1; query < t.n_queries; ++query) {
        const int32_t most = std::min(common, t.n_slots[query]);
        const int32_t * const slots = t.slots[query];
        if (slots == t.slots[query - 1]) {
            continue;
        }
        common = static_cast<int32_t>(std::mismatch(slots, slots + most, t.slots[0]).first - slots);
    }
    return common;
}

template <Cache C> void attend_cache(const Attend & t) {
    for (int32_t query = 0; query < t.n_queries; ++query) { // side by side: all at constant distances from one address
        std::copy_n(t.q[query], t.head_dim, t.scratch + static_cast<int64_t>(query) * kQueryScratch + kTile + kChunk);
    }
    by_queries(0, t.n_queries, [&](auto n, int32_t query) { scores_from<C, n>(t, t.slot_begin, query); });
    for (int32_t query = 0; query < t.n_queries; ++query) {
        softmax_query(t, query);
    }
    const auto weigh = [&](const Span & span, int32_t first, int32_t count) {
        by_queries(first, count, [&](auto n, int32_t query) { values_from<C, n>(t, span, 0, query); });
    };
    if (t.slots == nullptr) {
        return weigh({nullptr, 0, t.slot_end - t.slot_begin}, 0, t.n_queries);
    }
    const int32_t together = common_positions(t);
    if (together > 0) {
        weigh({t.slots[0], 0, together}, 0, t.n_queries);
    }
    for (int32_t first = 0, last = 0; first < t.n_queries; first = last) {
        while (last < t.n_queries && t.slots[last] == t.slots[first]) { // queries that see the same slots
            ++last;
        }
        if (together == 0 || t.n_slots[first] > together) {
            weigh({t.slots[first], together, t.n_slots[first]}, first, last - first);
        }
    }
}

void attend(const Attend & t) {
    switch (t.cache) {
    case Cache::f32:
        return attend_cache<Cache::f32>(t);
    case Cache::f16:
        return attend_cache<Cache::f16>(t);
    case Cache::q8_0:
        return attend_cache<Cache::q8_0>(t);
    }
}

void merge(const float * partials, int64_t stride, int32_t count, int32_t head_dim, float * out) {
    float largest = -INFINITY;
    for (int32_t i = 0; i < count; ++i) {
        const float m = partials[i * stride];
        largest = partials[i * stride + 1] != 0.0F && !(m < largest) ? m : largest;
    }
    float total = 0.0F;
    for (int32_t j = 0; j < head_dim; j += 8) {
        store(out + j, zero());
    }
    for (int32_t i = 0; i < count; ++i) {
        const float * part = partials + i * stride;
        if (part[1] == 0.0F) {
            continue;
        }
        float w[kWide];
        store(w, exp_wide(set1_wide(part[0] - largest)));
        const F8 weight = set1(w[0]);
        total = total + w[0] * part[1];
        for (int32_t j = 0; j < head_dim; j += 8) {
            store(out + j, fma(load(part + kPartial + j), weight, load(out + j)));
        }
    }
    const F8 inverse = set1(1.0F / total);
    for (int32_t j = 0; j < head_dim; j += 8) {
        store(out + j, mul(load(out + j), inverse));
    }
}

// ---- cache ---------------------------------------------------------------------------------------------------------

// Eight numbers, `step` numbers apart.
inline void store_strided(const float * x, Cache cache, uint8_t * out, int32_t step) {
    uint16_t h[8];
    store_half(h, load(x));
    for (int32_t j = 0; j < 8; ++j) {
        if (cache == Cache::f16) {
            std::memcpy(out + static_cast<std::ptrdiff_t>(2 * j) * step, h + j, 2);
        } else {
            std::memcpy(out + static_cast<std::ptrdiff_t>(4 * j) * step, x + j, 4);
        }
    }
}

// n numbers of a slot: `out` [n] is `step` numbers apart, `scales` [n / 32] of q8_0 `scale_step` apart.
inline void store_slot(const float * x, int32_t n, Cache cache, uint8_t * out, int32_t step, uint8_t * scales,
                       int32_t scale_step) {
    if (cache != Cache::q8_0) {
        for (int32_t i = 0; i < n; i += 8) {
            store_strided(x + i, cache, out + static_cast<std::ptrdiff_t>(number_bytes(cache)) * i * step, step);
        }
        return;
    }
    for (int32_t b = 0; b < n / kBlock; ++b) {
        int8_t codes[kBlock];
        int32_t total[2];
        const uint16_t d = float_to_half(codes_of(x + b * kBlock, codes, total));
        std::memcpy(scales + static_cast<std::ptrdiff_t>(2 * b) * scale_step, &d, 2);
        for (int32_t i = 0; i < kBlock; ++i) {
            out[static_cast<std::ptrdiff_t>(b * kBlock + i) * step] = static_cast<uint8_t>(codes[i]);
        }
    }
}

void store_value(const float * x, int32_t n, Cache cache, void * head_values, int32_t slot) {
    uint8_t * group = static_cast<uint8_t *>(head_values) + slot / kSlots * group_bytes(cache, n);
    const int32_t in = slot % kSlots;
    store_slot(x, n, cache, group + scales_bytes(cache, n) + number_bytes(cache) * static_cast<std::size_t>(in * n), 1,
               group + 2 * (in * (n / kBlock)), 1);
}

void store_key(const float * x, int32_t n, Cache cache, void * keys, int32_t slot) {
    uint8_t * group = static_cast<uint8_t *>(keys) + slot / kSlots * group_bytes(cache, n);
    const int32_t in = slot % kSlots;
    store_slot(x, n, cache, group + scales_bytes(cache, n) + number_bytes(cache) * static_cast<std::size_t>(in), kSlots,
               group + 2 * in, kSlots);
}

constexpr Kernels table(const char * name) {
    return {name, gemm, rms_norm, quantize, silu_mul, mix, short_conv, attend, merge, store_key, store_value};
}

} // namespace adaspark::kernels::ADASPARK_SIMD
