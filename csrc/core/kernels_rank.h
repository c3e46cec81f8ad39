// Part of kernels_impl.h: the best-first order.

AS_INLINE int32_t count_at_least(const float * key, int32_t blocks, float threshold) {
    const V8f t = splat8(threshold);
    V8i hits = {};
    for (int32_t b = 0; b < blocks; ++b) {
        hits -= load8(key + 8 * b) >= t;
    }
    return ((hits[0] + hits[4]) + (hits[1] + hits[5])) + ((hits[2] + hits[6]) + (hits[3] + hits[7]));
}

// A key's rank is the number of keys before it: larger ones, and equal ones of a lower index. Quadratic, branch-free.
AS_INLINE void rank_all(const float * key, int32_t blocks, int32_t limit, const int32_t * origin, int32_t * index) {
    const V8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int32_t b = 0; b < blocks; ++b) {
        const V8f mine = load8(key + 8 * b);
        V8i even = {};
        V8i odd = {};
        int32_t j = 0;
        for (; j < 8 * b; j += 2) { // an earlier key wins a tie
            even -= splat8(key[j]) >= mine;
            odd -= splat8(key[j + 1]) >= mine;
        }
        for (int32_t local = 0; local < 8; ++local, ++j) {
            const V8f other = splat8(key[j]);
            even -= other > mine;
            odd -= (other == mine) & (lane > local);
        }
        for (; j < 8 * blocks; j += 2) {
            even -= splat8(key[j]) > mine;
            odd -= splat8(key[j + 1]) > mine;
        }
        int32_t rank[8];
        const V8i total = even + odd;
        __builtin_memcpy(rank, &total, sizeof rank);
        for (int32_t l = 0; l < 8; ++l) {
            // Ranks past the limit land, one after the other, on a spare entry.
            const int32_t at = rank[l] < limit ? rank[l] : limit;
            index[at] = origin == nullptr ? 8 * b + l : origin[8 * b + l];
        }
    }
}

// The same where no two positive keys are equal, in one even loop; false, with `index` unusable, where some are.
AS_INLINE bool rank_distinct(const float * key, int32_t blocks, int32_t positive, int32_t limit, const int32_t * origin,
                             int32_t * index) {
    int32_t rank[96];
    V8i sum = {};
    const V8i bound = {positive, positive, positive, positive, positive, positive, positive, positive};
    for (int32_t b = 0; b < blocks; ++b) {
        const V8f mine = load8(key + 8 * b);
        V8i even = {};
        V8i odd = {};
        for (int32_t j = 0; j < 8 * blocks; j += 8) {
            even -= splat8(key[j]) > mine;
            odd -= splat8(key[j + 1]) > mine;
            even -= splat8(key[j + 2]) > mine;
            odd -= splat8(key[j + 3]) > mine;
            even -= splat8(key[j + 4]) > mine;
            odd -= splat8(key[j + 5]) > mine;
            even -= splat8(key[j + 6]) > mine;
            odd -= splat8(key[j + 7]) > mine;
        }
        even += odd;
        sum += even & (even < bound); // zeros have the rank `positive`
        __builtin_memcpy(rank + 8 * b, &even, sizeof even);
    }
    const int32_t total = ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
    if (total != positive * (positive - 1) / 2) {
        return false; // equal keys share the least of their ranks, so the sum falls short
    }
    for (int32_t i = 0; i < 8 * blocks; ++i) {
        index[rank[i] < limit ? rank[i] : limit] = origin == nullptr ? i : origin[i];
    }
    return true;
}

#if defined(AS_KERNELS_AVX) && !defined(AS_KERNELS_AVX512)
// By mask of eight lanes: the lanes in it, a byte each, in order.
struct Packing {
    uint64_t lanes[256];
    constexpr Packing() : lanes{} {
        for (int mask = 0; mask < 256; ++mask) {
            int at = 0;
            for (uint64_t lane = 0; lane < 8; ++lane) {
                if ((mask >> lane & 1) != 0) {
                    lanes[mask] |= lane << (8 * at++);
                }
            }
        }
    }
};
alignas(64) constexpr Packing packing;
#endif

// Keys of at least `threshold`, in their order, and where they were; whole vectors, the rest negative. Branch-free: how
// many of eight are kept is a toss-up.
AS_INLINE int32_t keep(const float * key, int32_t blocks, float threshold, float * kept, int32_t * origin) {
    int32_t m = 0;
#ifdef AS_KERNELS_AVX
    V8i place = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int32_t b = 0; b < blocks; ++b, place += 8) {
        const V8f v = load8(key + 8 * b);
#ifdef AS_KERNELS_AVX512
        const uint8_t mask = static_cast<uint8_t>(__builtin_ia32_cmpps256_mask(v, splat8(threshold), 0x1D, 0xFF)); // >=
        const V8f some = (V8f)__builtin_ia32_compresssf256_mask(v, V8f{}, mask);
        const V8i where = (V8i)__builtin_ia32_compresssi256_mask(place, V8i{}, mask);
#else
        const uint8_t mask = static_cast<uint8_t>(__builtin_ia32_movmskps256((V8f)(v >= splat8(threshold))));
        const V8i from = __builtin_ia32_pmovzxbd256((V16c)V2i{static_cast<int64_t>(packing.lanes[mask]), 0});
        const V8f some = __builtin_ia32_permvarsf256(v, from);
        const V8i where = __builtin_ia32_permvarsi256(place, from);
#endif
        store8(kept + m, some);
        __builtin_memcpy(origin + m, &where, sizeof where);
        m += __builtin_popcount(mask);
    }
#else
    for (int32_t i = 0; i < 8 * blocks; ++i) {
        kept[m] = key[i];
        origin[m] = i;
        m += key[i] >= threshold ? 1 : 0;
    }
#endif
    const V8f none = splat8(-1.0F);
    const V8i nowhere = {};
    store8(kept + m, none);
    __builtin_memcpy(origin + m, &nowhere, sizeof nowhere);
    return m;
}

constexpr int32_t kMostKeys = 336;     // kCandidateSlots
constexpr int32_t kKeysAtOnce = 96;    // ranked at once where no two are equal
constexpr int32_t kManyKeys = 56;      // ranking more costs more than a better threshold
constexpr int32_t kFewExtra = 16;      // keys above the wanted ones that are not worth a better one
constexpr float kLeastFloat = 1e-45F;  // the least positive float
constexpr float kLessOfGuess = 0.125F; // what is tried after a guess that was too high

static int32_t rank_descending(const float * key, int32_t n, int32_t limit, float guess, int32_t * index) noexcept {
    if (n <= 0 || limit <= 0) {
        return 0;
    }
    const int32_t blocks = (n + 7) / 8;
    // A threshold that keeps at least `limit` of the keys and, if the guess was a good one, few more.
    float threshold = guess;
    int32_t left = 0;
    for (int32_t tries = 0; tries < 3; ++tries) {
        left = count_at_least(key, blocks, threshold);
        if (left >= limit) {
            break;
        }
        threshold *= kLessOfGuess;
    }
    if (left < limit) {
        threshold = kLeastFloat;
        left = count_at_least(key, blocks, threshold);
        limit = left < limit ? left : limit;
    }
    // Many keys are left: bisect on the bits of positive floats, which sort as integers.
    if (left > kManyKeys && left > limit + kFewExtra) {
        int32_t low; // count(low) >= limit
        __builtin_memcpy(&low, &threshold, sizeof low);
        int32_t high = 0x3F800001; // just above 1
        for (int32_t step = 0; step < 14 && low + 1 < high; ++step) {
            const int32_t middle = low + (high - low) / 2;
            __builtin_memcpy(&threshold, &middle, sizeof threshold);
            const int32_t hits = count_at_least(key, blocks, threshold);
            if (hits >= limit) {
                low = middle;
                if (hits <= limit + kFewExtra) {
                    break;
                }
            } else {
                high = middle;
            }
        }
        __builtin_memcpy(&threshold, &low, sizeof threshold);
    }
    alignas(32) float kept[kMostKeys + 8];
    int32_t origin[kMostKeys + 8];
    const int32_t m = keep(key, blocks, threshold, kept, origin);
    const int32_t vectors = (m + 7) / 8;
    if (m > kKeysAtOnce || !rank_distinct(kept, vectors, m, limit, origin, index)) {
        rank_all(kept, vectors, limit, origin, index);
    }
    return limit;
}
