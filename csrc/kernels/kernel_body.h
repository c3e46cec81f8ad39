// The kernels, written once over the 8 lanes of the `simd_*.h` included before this file.
#pragma once

#include <cmath>

#include "kernels/kernels.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

// ---- matrix products -----------------------------------------------------------------------------------------------

// Rows multiplied together: what the registers hold. One panel at a time: the weights then are one stream from memory,
// which is what a product of few rows waits for (two panels at once took twice as long for one row).
constexpr int32_t kRows = 8;
constexpr int32_t kPanels = 1;

// PB panels (`stride` bytes apart) times RB rows; acc[PB * r + p]. Each output is one chain of fused multiply-adds over
// ascending inputs (F32 activations) or ascending blocks of 32 (int8 activations).
template <Format F, int RB, int PB>
ADASPARK_INLINE void panel_rows(const Gemm & g, const uint8_t * w, std::size_t stride, int32_t row,
                                F8 (&acc)[RB * PB]) {
    each<RB * PB>([&](auto i) { acc[i] = zero(); });
    if constexpr (!is_quantized(F)) {
        const float * x[RB];
        each<RB>([&](auto r) { x[r] = g.a.x + static_cast<int64_t>(row + r) * g.k; });
        for (int32_t i = 0; i < g.k; ++i) {
            F8 values[PB];
            each<PB>([&](auto p) {
                if constexpr (F == Format::f32) {
                    values[p] = load(reinterpret_cast<const float *>(w + p * stride) + 8 * i);
                } else if constexpr (F == Format::f16) {
                    values[p] = load_half(w + p * stride + 16 * i);
                } else {
                    values[p] = load_bf16(w + p * stride + 16 * i);
                }
            });
            each<RB>([&](auto r) {
                const F8 input = set1(x[r][i]);
                each<PB>([&](auto p) { acc[PB * r + p] = fma(values[p], input, acc[PB * r + p]); });
            });
        }
    } else {
        constexpr int kCodes = F == Format::q4_1 ? 32 : 16;              // bytes of scales before the codes
        constexpr int kBytes = kCodes + (F == Format::q8_0 ? 256 : 128); // a block of 8 columns
        const int32_t blocks = g.k / kBlock;
        for (int32_t b = 0; b < blocks; ++b) {
            const int64_t at = static_cast<int64_t>(b) * g.a.rows + row;
            I8 s[RB * PB];
            if constexpr (F == Format::q8_0) {
                dot_q8<RB, PB>(w + kCodes, stride, g.a.q + at * kBlock, s);
            } else {
                dot_q4<RB, PB>(w + kCodes, stride, g.a.q + at * kBlock, s);
            }
            each<PB>([&](auto p) {
                const F8 d = load_half(w + p * stride);
                each<RB>([&](auto r) {
                    constexpr int kAt = PB * r + p;
                    if constexpr (F == Format::q4_0) {
                        s[kAt] = sub1(s[kAt], g.a.sum8[at + r]);
                    }
                    acc[kAt] = fma(to_float(s[kAt]), mul(d, set1(g.a.d[at + r])), acc[kAt]);
                    if constexpr (F == Format::q4_1) {
                        acc[kAt] = fma(load_half(w + p * stride + 16), set1(g.a.dsum[at + r]), acc[kAt]);
                    }
                });
            });
            w += kBytes;
        }
    }
}

template <Format F, int RB, int PB>
void panel_store(const Gemm & g, const uint8_t * w, std::size_t stride, int32_t panel, int32_t row) {
    F8 acc[RB * PB];
    panel_rows<F, RB, PB>(g, w, stride, row, acc);
    each<RB>([&](auto r) {
        each<PB>([&](auto p) {
            float * out = g.out + (row + r) * g.ldo + static_cast<int64_t>(panel + p - g.panel_begin) * kColumns;
            F8 y = acc[PB * r + p];
            if (g.bias != nullptr) {
                y = add(y, load(g.bias + static_cast<int64_t>(panel + p) * kColumns));
            }
            store(out, g.add ? add(load(out), y) : y);
        });
    });
}

template <Format F, int PB> void panel_all_rows(const Gemm & g, std::size_t stride, int32_t panel) {
    const uint8_t * w = g.w + static_cast<std::size_t>(panel) * stride;
    const int32_t groups = (g.rows + kRows - 1) / kRows;
    for (int32_t i = 0, row = 0; i < groups; ++i) {
        const int32_t n = (g.rows - row + groups - i - 1) / (groups - i); // groups of about equal size
        switch (n) {
        case 1:
            panel_store<F, 1, PB>(g, w, stride, panel, row);
            break;
        case 2:
            panel_store<F, 2, PB>(g, w, stride, panel, row);
            break;
        case 3:
            panel_store<F, 3, PB>(g, w, stride, panel, row);
            break;
        case 4:
            panel_store<F, 4, PB>(g, w, stride, panel, row);
            break;
        case 5:
            panel_store<F, 5, PB>(g, w, stride, panel, row);
            break;
        case 6:
            panel_store<F, 6, PB>(g, w, stride, panel, row);
            break;
        case 7:
            panel_store<F, 7, PB>(g, w, stride, panel, row);
            break;
        default:
            panel_store<F, 8, PB>(g, w, stride, panel, row);
            break;
        }
        row += n;
    }
}

template <Format F> void gemm_format(const Gemm & g) {
    const std::size_t stride = panel_bytes(F, g.k);
    for (int32_t p = g.panel_begin; p < g.panel_end; ++p) {
        panel_all_rows<F, kPanels>(g, stride, p);
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
    }
}

// ---- rows ----------------------------------------------------------------------------------------------------------

void rms_norm(const float * x, const float * weight, int32_t n, float eps, float * out) {
    F8 acc[4] = {zero(), zero(), zero(), zero()};
    for (int32_t i = 0; i < n; i += 8) {
        const F8 v = load(x + i);
        acc[i / 8 % 4] = fma(v, v, acc[i / 8 % 4]);
    }
    const float mean = sum(add(add(acc[0], acc[1]), add(acc[2], acc[3]))) / static_cast<float>(n);
    const F8 scale = set1(1.0F / std::sqrt(mean + eps));
    for (int32_t i = 0; i < n; i += 8) {
        store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
    }
}

void quantize(const float * x, int32_t first, int32_t n, int32_t row, const Activations & a) {
    for (int32_t i = 0; i < n; i += kBlock) {
        const F8 v[4] = {load(x + i), load(x + i + 8), load(x + i + 16), load(x + i + 24)};
        const F8 all = add(add(v[0], v[1]), add(v[2], v[3]));
        const float largest = max_of(max(max(abs(v[0]), abs(v[1])), max(abs(v[2]), abs(v[3]))));
        const float d = any_nan(all) ? NAN : largest / 127.0F; // a NaN must not vanish in the codes
        const F8 inverse = set1(largest > 0.0F ? 127.0F / largest : 0.0F);
        const I8 codes[4] = {round(mul(v[0], inverse)), round(mul(v[1], inverse)), round(mul(v[2], inverse)),
                             round(mul(v[3], inverse))};
        const int64_t at = static_cast<int64_t>((first + i) / kBlock) * a.rows + row;
        const int32_t total = store_int8(a.q + at * kBlock, codes);
        a.d[at] = d;
        a.sum8[at] = 8 * total;
        a.dsum[at] = d * static_cast<float>(total);
    }
}

// e^x for x clamped to [-87.3, 88]; a NaN stays one. Relative error below 2e-7.
inline F8 exp8(F8 x) {
    x = max(set1(-87.3F), min(set1(88.0F), x));
    const I8 n = round(mul(x, set1(1.44269504F)));
    const F8 f = to_float(n);
    F8 r = fma(f, set1(-0.693359375F), x);
    r = fma(f, set1(2.12194440e-4F), r);
    F8 p = set1(1.9875691500e-4F);
    constexpr float kPolynomial[] = {1.3981999507e-3F, 8.3334519073e-3F, 4.1665795894e-2F, 1.6666665459e-1F,
                                     5.0000001201e-1F};
    for (const float c : kPolynomial) {
        p = fma(p, r, set1(c));
    }
    return mul(add(fma(mul(p, r), r, r), set1(1.0F)), pow2(n));
}

void silu_mul(const float * gate, const float * up, int32_t n, float * out) {
    for (int32_t i = 0; i < n; i += 8) {
        const F8 g = load(gate + i);
        store(out + i, mul(div(g, add(set1(1.0F), exp8(sub(zero(), g)))), load(up + i)));
    }
}

// ---- attention -----------------------------------------------------------------------------------------------------

constexpr int32_t kScores = kTile + kChunk; // floats of scratch a query has: scores by slot, then by position

template <bool H> inline F8 load_cache(const void * base, int64_t at) {
    if constexpr (H) {
        return load_half(static_cast<const uint16_t *>(base) + at);
    } else {
        return load(static_cast<const float *>(base) + at);
    }
}

// Scores of NQ queries for GB groups of 8 slots.
template <bool H, int NQ, int GB> inline void scores(const Attend & t, int32_t slot, int32_t query) {
    F8 acc[NQ * GB];
    each<NQ * GB>([&](auto i) { acc[i] = zero(); });
    const float * q[NQ];
    each<NQ>([&](auto n) { q[n] = t.q[query + n]; });
    const int64_t group = static_cast<int64_t>(t.head_dim) * 8;
    const int64_t base = slot / 8 * group;
    for (int32_t i = 0; i < t.head_dim; ++i) {
        F8 key[GB];
        each<GB>([&](auto j) { key[j] = load_cache<H>(t.k, base + j * group + 8 * i); });
        each<NQ>([&](auto n) {
            const F8 weight = set1(q[n][i]);
            each<GB>([&](auto j) { acc[n * GB + j] = fma(key[j], weight, acc[n * GB + j]); });
        });
    }
    each<NQ>([&](auto n) {
        float * out = t.scratch + static_cast<int64_t>(query + n) * kScores + (slot - t.slot_begin);
        each<GB>([&](auto j) { store(out + 8 * j, acc[n * GB + j]); });
    });
}

template <bool H, int NQ> inline void scores_all(const Attend & t, int32_t query) {
    int32_t slot = t.slot_begin;
    for (; slot + 16 <= t.slot_end; slot += 16) {
        scores<H, NQ, 2>(t, slot, query);
    }
    if (slot < t.slot_end) {
        scores<H, NQ, 1>(t, slot, query);
    }
}

// Values of NQ queries that see the same slots, weighted and summed in the order of positions.
template <bool H, int NQ, int DB>
inline void values(const Attend & t, const int32_t * slots, int32_t count, int32_t dim, int32_t query) {
    F8 acc[NQ * DB];
    each<NQ * DB>([&](auto i) { acc[i] = zero(); });
    const float * p[NQ];
    each<NQ>([&](auto n) { p[n] = t.scratch + static_cast<int64_t>(query + n) * kScores + kTile; });
    for (int32_t i = 0; i < count; ++i) {
        const int64_t slot = slots != nullptr ? slots[i] : t.slot_begin + i;
        F8 v[DB];
        each<DB>([&](auto j) { v[j] = load_cache<H>(t.v, slot * t.head_dim + dim + 8 * j); });
        each<NQ>([&](auto n) {
            const F8 weight = set1(p[n][i]);
            each<DB>([&](auto j) { acc[n * DB + j] = fma(v[j], weight, acc[n * DB + j]); });
        });
    }
    each<NQ>([&](auto n) { each<DB>([&](auto j) { store(t.out[query + n] + 8 + dim + 8 * j, acc[n * DB + j]); }); });
}

template <bool H, int NQ>
inline void values_all(const Attend & t, const int32_t * slots, int32_t count, int32_t query) {
    int32_t dim = 0;
    for (; dim + 16 <= t.head_dim; dim += 16) {
        values<H, NQ, 2>(t, slots, count, dim, query);
    }
    if (dim < t.head_dim) {
        values<H, NQ, 1>(t, slots, count, dim, query);
    }
}

inline int32_t slots_of(const Attend & t, int32_t query) {
    return t.slots != nullptr ? t.n_slots[query] : t.slot_end - t.slot_begin;
}

inline void softmax_query(const Attend & t, int32_t query) {
    const float * by_slot = t.scratch + static_cast<int64_t>(query) * kScores;
    float * p = t.scratch + static_cast<int64_t>(query) * kScores + kTile;
    const int32_t count = slots_of(t, query);
    const int32_t padded = (count + 7) / 8 * 8;
    for (int32_t i = 0; i < padded; ++i) {
        const int32_t at = i < count ? i : count - 1; // padding repeats the last score: it does not move the maximum
        p[i] = by_slot[t.slots != nullptr ? t.slots[query][at] - t.slot_begin : at];
    }
    F8 top = set1(-INFINITY);
    for (int32_t i = 0; i < padded; i += 8) {
        top = max(top, load(p + i));
    }
    const float largest = max_of(top);
    for (int32_t i = 0; i < padded; i += 8) {
        store(p + i, exp8(sub(load(p + i), set1(largest))));
    }
    for (int32_t i = count; i < padded; ++i) {
        p[i] = 0.0F;
    }
    F8 total = zero();
    for (int32_t i = 0; i < padded; i += 8) {
        total = add(total, load(p + i));
    }
    t.out[query][0] = count > 0 ? largest : -INFINITY;
    t.out[query][1] = sum(total);
}

template <bool H> void attend_cache(const Attend & t) {
    int32_t query = 0;
    for (; query + 6 <= t.n_queries; query += 6) {
        scores_all<H, 6>(t, query);
    }
    for (; query + 3 <= t.n_queries; query += 3) {
        scores_all<H, 3>(t, query);
    }
    for (; query < t.n_queries; ++query) {
        scores_all<H, 1>(t, query);
    }
    for (query = 0; query < t.n_queries; ++query) {
        softmax_query(t, query);
    }
    for (query = 0; query < t.n_queries;) {
        const int32_t * slots = t.slots != nullptr ? t.slots[query] : nullptr;
        const int32_t count = slots_of(t, query);
        int32_t same = 1;
        while (query + same < t.n_queries && same < 6 && (t.slots == nullptr || t.slots[query + same] == slots)) {
            ++same;
        }
        if (same >= 6) {
            values_all<H, 6>(t, slots, count, query);
            query += 6;
        } else if (same >= 3) {
            values_all<H, 3>(t, slots, count, query);
            query += 3;
        } else {
            values_all<H, 1>(t, slots, count, query);
            ++query;
        }
    }
}

void attend(const Attend & t) { t.half ? attend_cache<true>(t) : attend_cache<false>(t); }

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
        const F8 weight = exp8(set1(part[0] - largest));
        float w[8];
        store(w, weight);
        total = total + w[0] * part[1];
        for (int32_t j = 0; j < head_dim; j += 8) {
            store(out + j, fma(load(part + 8 + j), weight, load(out + j)));
        }
    }
    const F8 inverse = set1(1.0F / total);
    for (int32_t j = 0; j < head_dim; j += 8) {
        store(out + j, mul(load(out + j), inverse));
    }
}

// ---- cache ---------------------------------------------------------------------------------------------------------

void store_value(const float * x, int32_t n, bool half, void * head_values, int32_t slot) {
    const int64_t at = static_cast<int64_t>(slot) * n;
    for (int32_t i = 0; i < n; i += 8) {
        if (half) {
            store_half(static_cast<uint16_t *>(head_values) + at + i, load(x + i));
        } else {
            store(static_cast<float *>(head_values) + at + i, load(x + i));
        }
    }
}

void store_key(const float * x, int32_t n, bool half, void * keys, int32_t slot) {
    const int64_t at = static_cast<int64_t>(slot / 8) * n * 8 + slot % 8;
    for (int32_t i = 0; i < n; i += 8) {
        uint16_t h[8];
        if (half) {
            store_half(h, load(x + i));
        }
        for (int32_t j = 0; j < 8; ++j) {
            if (half) {
                static_cast<uint16_t *>(keys)[at + static_cast<int64_t>(i + j) * 8] = h[j];
            } else {
                static_cast<float *>(keys)[at + static_cast<int64_t>(i + j) * 8] = x[i + j];
            }
        }
    }
}

constexpr Kernels table(const char * name) {
    return {name, gemm, rms_norm, quantize, silu_mul, attend, merge, store_key, store_value};
}

} // namespace adaspark::kernels::ADASPARK_SIMD
