// Part of kernels_impl.h: the best-first order.

AS_INLINE int32_t count_at_least(const float * key, int32_t blocks, float threshold) {
    const V8f t = splat8(threshold);
    V8i hits = {};
    for (int32_t b = 0; b < blocks; ++b) {
        hits -= load8(key + 8 * b) >= t;
    }
    return ((hits[0] + hits[4]) + (hits[1] + hits[5])) + ((hits[2] + hits[6]) + (hits[3] + hits[7]));
}

constexpr float kLeastFloat = 1e-45F; // the least positive float

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
AS_INLINE bool rank_distinct(const float * key, int32_t blocks, int32_t positive, int32_t limit, int32_t * index) {
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
        index[rank[i] < limit ? rank[i] : limit] = i;
    }
    return true;
}

static int32_t rank_descending(const float * key, int32_t n, int32_t limit, int32_t * index) noexcept {
    if (n <= 0 || limit <= 0) {
        return 0;
    }
    const int32_t blocks = (n + 7) / 8;
    const int32_t positive = count_at_least(key, blocks, kLeastFloat);
    limit = positive < limit ? positive : limit;
    if (n <= 96) {
        if (!rank_distinct(key, blocks, positive, limit, index)) {
            rank_all(key, blocks, limit, nullptr, index);
        }
        return limit;
    }
    // Many keys: first a threshold that keeps at least `limit` of them and few more. Bisect on the bits of positive
    // floats, which sort as integers.
    float threshold = kLeastFloat;
    int32_t low = 1;           // count(low) >= limit
    int32_t high = 0x3F800001; // just above 1
    for (int32_t step = 0; step < 14 && low + 1 < high; ++step) {
        const int32_t middle = low + (high - low) / 2;
        float t;
        __builtin_memcpy(&t, &middle, sizeof t);
        const int32_t hits = count_at_least(key, blocks, t);
        if (hits >= limit) {
            low = middle;
            if (hits <= limit + 8) {
                break;
            }
        } else {
            high = middle;
        }
    }
    __builtin_memcpy(&threshold, &low, sizeof threshold);
    alignas(32) float kept[336 + 8];
    int32_t origin[336 + 8];
    int32_t m = 0;
    for (int32_t i = 0; i < n; ++i) {
        kept[m] = key[i];
        origin[m] = i;
        m += key[i] >= threshold ? 1 : 0;
    }
    for (int32_t i = m; i < (m + 7) / 8 * 8; ++i) {
        kept[i] = -1.0F;
        origin[i] = 0;
    }
    rank_all(kept, (m + 7) / 8, limit, origin, index);
    return limit;
}
