// Attention over a chunk of the cache, and what merges chunks, over the lanes of the `simd_*.h` included before.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/kernel_rows.h"
#include "kernels/kernels.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

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

constexpr int kTogether = kRegisters > 16 ? 4 : 2; // queries whose weights are worked out together

inline int32_t slots_of(const Attend & t, int32_t query) {
    return t.slots != nullptr ? t.n_slots[query] : t.slot_end - t.slot_begin;
}

// The scores of a query by position, where its slots do not lie as its positions do: those of the common ones are
// copied together. Up to 15 numbers behind them are written too.
inline void in_order(const Attend & t, int32_t query, const float * by_slot, float * out) {
    const int32_t * const slots = t.slots[query];
    const int32_t count = t.n_slots[query];
    if (t.common > 0) {
        const float * from = by_slot + (slots[0] - t.slot_begin);
        for (int32_t i = 0; i < t.common; i += kWide) {
            store(out + i, load_wide(from + i));
        }
    }
    for (int32_t i = t.common; i < count; ++i) {
        out[i] = by_slot[slots[i] - t.slot_begin];
    }
}

// Scores of NQ queries to weights; these are summed in 16 lanes over ascending positions, the lanes pairwise. Several
// queries at once, because one alone waits for its own maximum and sum.
template <int NQ> inline void softmax(const Attend & t, int32_t query) {
    const float * scores[NQ];
    float * p[NQ];
    int32_t count[NQ];
    int32_t longest = 0;
    for (int n = 0; n < NQ; ++n) {
        count[n] = slots_of(t, query + n);
        longest = std::max(longest, count[n]);
    }
    const int32_t padded = (longest + kLanes - 1) / kLanes * kLanes;
    for (int n = 0; n < NQ; ++n) {
        float * by_slot = t.scratch + static_cast<int64_t>(query + n) * kQueryScratch;
        p[n] = by_slot + kTile;
        scores[n] = by_slot;
        if (t.slots != nullptr) {
            in_order(t, query + n, by_slot, p[n]);
            const float last = count[n] > 0 ? p[n][count[n] - 1] : 0.0F;
            std::fill(p[n] + count[n], p[n] + padded, last); // repeats do not move the maximum
            scores[n] = p[n];
        }
    }
    Lanes top[NQ];
    each<NQ>([&](auto n) { top[n] = lanes_of(-INFINITY); });
    for (int32_t i = 0; i < padded; i += kLanes) {
        each<NQ>([&](auto n) {
            each<kLanes / kWide>([&](auto j) { top[n].v[j] = max(top[n].v[j], load_wide(scores[n] + i + kWide * j)); });
        });
    }
    float largest[NQ];
    each<NQ>([&](auto n) { largest[n] = max_of(top[n].fold([](F8 a, F8 b) { return max(a, b); })); });
    for (int32_t i = 0; i < padded; i += kWide) {
        each<NQ>([&](auto n) { store(p[n] + i, exp_wide(sub(load_wide(scores[n] + i), set1_wide(largest[n])))); });
    }
    for (int n = 0; n < NQ; ++n) {
        std::fill(p[n] + count[n], p[n] + padded, 0.0F);
    }
    Lanes total[NQ];
    each<NQ>([&](auto n) { total[n] = lanes_of(0.0F); });
    for (int32_t i = 0; i < padded; i += kLanes) {
        each<NQ>([&](auto n) {
            each<kLanes / kWide>([&](auto j) { total[n].v[j] = add(total[n].v[j], load_wide(p[n] + i + kWide * j)); });
        });
    }
    each<NQ>([&](auto n) {
        float * out = t.out[query + n];
        out[0] = count[n] > 0 ? largest[n] : -INFINITY;
        out[1] = sum(total[n].fold([](F8 a, F8 b) { return add(a, b); }));
    });
}

// N at a time, of the rest N - 1, ...
template <int N> inline void softmax_from(const Attend & t, int32_t query) {
    for (; query + N <= t.n_queries; query += N) {
        softmax<N>(t, query);
    }
    if constexpr (N > 1) {
        softmax_from<N - 1>(t, query);
    }
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
        common =
            static_cast<int32_t>(std::mismatch(slots + t.common, slots + most, t.slots[0] + t.common).first - slots);
    }
    return common;
}

template <Cache C> void attend_cache(const Attend & t) {
    for (int32_t query = 0; query < t.n_queries; ++query) { // side by side: all at constant distances from one address
        float * to = t.scratch + static_cast<int64_t>(query) * kQueryScratch + kTile + kChunk;
        for (int32_t i = 0; i < t.head_dim; i += kWide) {
            store(to + i, load_wide(t.q[query] + i));
        }
    }
    by_queries(0, t.n_queries, [&](auto n, int32_t query) { scores_from<C, n>(t, t.slot_begin, query); });
    softmax_from<kTogether>(t, 0);
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

} // namespace adaspark::kernels::ADASPARK_SIMD
