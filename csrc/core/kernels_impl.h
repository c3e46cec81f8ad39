// The bodies of kernels.h, included once per instruction set inside a namespace. GNU vector extensions (GCC, Clang):
// four doubles a vector, split or widened by the compiler to what the machine has. Nothing here may call an inline
// function of the standard library: a copy compiled for AVX2 could be the one the linker keeps for everybody.

typedef double V4d __attribute__((vector_size(32)));
typedef int64_t V4i __attribute__((vector_size(32)));
typedef float V8f __attribute__((vector_size(32)));
typedef int32_t V8i __attribute__((vector_size(32)));

#define AS_INLINE static inline __attribute__((always_inline))

AS_INLINE V4d splat(double x) { return V4d{x, x, x, x}; }
AS_INLINE V4d load(const double * p) {
    V4d v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
AS_INLINE void store(double * p, const V4d & v) { __builtin_memcpy(p, &v, sizeof v); }
AS_INLINE V4d select(const V4i & mask, const V4d & a, const V4d & b) {
    return (V4d)((mask & (V4i)a) | (~mask & (V4i)b));
}
#ifdef AS_KERNELS_AVX
AS_INLINE V4d vmin(const V4d & a, const V4d & b) { return (V4d)__builtin_ia32_minpd256(a, b); }
AS_INLINE V4d vmax(const V4d & a, const V4d & b) { return (V4d)__builtin_ia32_maxpd256(a, b); }
AS_INLINE V4d vsqrt(const V4d & v) { return (V4d)__builtin_ia32_sqrtpd256(v); }
#else
AS_INLINE V4d vmin(const V4d & a, const V4d & b) { return select(a < b, a, b); }
AS_INLINE V4d vmax(const V4d & a, const V4d & b) { return select(a > b, a, b); }
AS_INLINE V4d vsqrt(const V4d & v) {
    return V4d{__builtin_sqrt(v[0]), __builtin_sqrt(v[1]), __builtin_sqrt(v[2]), __builtin_sqrt(v[3])};
}
#endif
AS_INLINE double sum(const V4d & v) { return (v[0] + v[2]) + (v[1] + v[3]); }

AS_INLINE V8f splat8(float x) { return V8f{x, x, x, x, x, x, x, x}; }
AS_INLINE V8f load8(const float * p) {
    V8f v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
AS_INLINE void store8(float * p, const V8f & v) { __builtin_memcpy(p, &v, sizeof v); }
AS_INLINE V8f select8(const V8i & mask, const V8f & a, const V8f & b) {
    return (V8f)((mask & (V8i)a) | (~mask & (V8i)b));
}
#ifdef AS_KERNELS_AVX
AS_INLINE V8f vmin8(const V8f & a, const V8f & b) { return (V8f)__builtin_ia32_minps256(a, b); }
AS_INLINE V8f vmax8(const V8f & a, const V8f & b) { return (V8f)__builtin_ia32_maxps256(a, b); }
#else
AS_INLINE V8f vmin8(const V8f & a, const V8f & b) { return select8(a < b, a, b); }
AS_INLINE V8f vmax8(const V8f & a, const V8f & b) { return select8(a > b, a, b); }
#endif
AS_INLINE float sum8(const V8f & v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

// exp to about 1e-7 relative on [-80, 80], clamped outside: reduction by multiples of ln 2, then degree 6.
AS_INLINE V8f vexp8(const V8f & unclamped) {
    const V8f x = vmin8(vmax8(unclamped, splat8(-80.0F)), splat8(80.0F));
    const V8f magic = splat8(12582912.0F); // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    const V8f shifted = x * splat8(1.44269504F) + magic;
    const V8f k = shifted - magic;
    const V8f r = (x - k * splat8(0.693145752F)) - k * splat8(1.42860677e-6F);
    const V8f r2 = r * r;
    const V8f low = (splat8(1.0F) + r) + r2 * (splat8(0.5F) + r * splat8(1.0F / 6.0F));
    const V8f high = (splat8(1.0F / 24.0F) + r * splat8(1.0F / 120.0F)) + r2 * splat8(1.0F / 720.0F);
    const V8i bits = ((V8i)shifted - (V8i)magic + 127) << 23;
    return (low + (r2 * r2) * high) * (V8f)bits;
}

// ln to about 1e-7 absolute near 1, for positive normal x: mantissa to [sqrt(1/2), sqrt(2)), then atanh series.
AS_INLINE V8f vlog8(const V8f & x) {
    const V8i bits = (V8i)x;
    const V8i exponent = (bits - 0x3F3504F3) >> 23;
    const V8f m = (V8f)(bits - (exponent << 23));
    const V8f magic = splat8(12582912.0F);
    const V8f k = (V8f)(exponent + (V8i)magic) - magic;
    const V8f f = (m - 1.0F) / (m + 1.0F);
    const V8f s = f * f;
    const V8f poly =
        (splat8(2.0F / 3.0F) + s * splat8(2.0F / 5.0F)) + (s * s) * (splat8(2.0F / 7.0F) + s * splat8(2.0F / 9.0F));
    return k * splat8(0.693145752F) + (2.0F * f + (f * s * poly + k * splat8(1.42860677e-6F)));
}

// ln to about 1e-15 absolute near 1, for positive normal x: mantissa to [sqrt(1/2), sqrt(2)), then atanh series.
AS_INLINE V4d vlog(const V4d & x) {
    const V4i bits = (V4i)x;
    const V4i offset = bits - 0x3FE6A09E667F3BCDLL; // distance from sqrt(1/2), so the exponent rounds the way we want
    const V4i exponent = offset >> 52;
    const V4d m = (V4d)(bits - (exponent << 52));
    const V4d magic = splat(6755399441055744.0);
    const V4d k = (V4d)(exponent + (V4i)magic) - magic;
    const V4d f = (m - 1.0) / (m + 1.0);
    const V4d s = f * f;
    const V4d s2 = s * s;
    const V4d a = splat(2.0 / 3.0) + s * splat(2.0 / 5.0);
    const V4d b = splat(2.0 / 7.0) + s * splat(2.0 / 9.0);
    const V4d c = splat(2.0 / 11.0) + s * splat(2.0 / 13.0);
    const V4d d = splat(2.0 / 15.0) + s * splat(2.0 / 17.0);
    const V4d s4 = s2 * s2;
    const V4d poly = (a + s2 * b) + s4 * (c + s2 * d);
    return k * splat(0.693147180369123816490) + (2.0 * f + (f * s * poly + k * splat(1.90821492927058770002e-10)));
}

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

static void block_features(const float * logits, const float * head, int32_t n, BlockFeatures & out) noexcept {
    // Probabilities are clipped to [1e-7, 1 - 1e-7] before any logit.
    constexpr float bound = 16.1180957F; // logit(1 - 1e-7)
    alignas(32) float total[kMaxBlock + 8];
    alignas(32) float given[kMaxBlock + 8];
    const V8i first = {-1, 0, 0, 0, 0, 0, 0, 0};
    for (int32_t i = n; i < (n + 7) / 8 * 8; ++i) {
        total[i] = 1.0F;
        given[i] = 0.5F;
    }
    __builtin_memcpy(given, head, sizeof(float) * static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
        const float * v = logits + kTopK * i;
        const V8f d = load8(v) - splat8(v[0]);
        const V8f e = (V8f)((V8i)vexp8(d) & ~first);
        const float siblings = sum8(e);
        total[i] = siblings;
        store8(out.share[i], select8(first, splat8(1.0F), e) * splat8(1.0F / (1.0F + siblings)));
        store8(out.log_r[i], d);
    }
    for (int32_t i = 0; i < n; i += 8) {
        const V8f lse = vlog8(vmax8(load8(total + i), splat8(1e-30F)));
        store8(total + i, lse);
        store8(&out.logit_share[i], vmin8(vmax8(-lse, splat8(-bound)), splat8(bound)));
        const V8f h0 = load8(given + i);
        const V8f h = select8(h0 >= splat8(1e-7F), h0, splat8(1e-7F)); // NaN reads as 0
        store8(&out.head[i], vmin8(h, splat8(1.0F - 1e-7F)));
        const V8f odds = vmin8(vmax8(h / (1.0F - h), splat8(1.0000001e-7F)), splat8(9999999.0F));
        store8(&out.logit_head[i], vlog8(odds));
    }
    for (int32_t i = 0; i < n; ++i) {
        const V8f log_r = vmin8(vmax8(load8(out.log_r[i]) - splat8(total[i]), splat8(-30.0F)), splat8(0.0F));
        store8(out.log_r[i], (V8f)((V8i)log_r & ~first));
    }
}

static void block_softmax(const BlockFeatures & f, const ScoreTerms & t, const float (*evidence)[kTopK],
                          const float * text_score, int32_t n, float (*p)[kTopK], float * text_p) noexcept {
    float w[kDense];
    for (int32_t i = 0; i < kDense; ++i) {
        w[i] = static_cast<float>(t.weight[i]);
    }
    const V8i first = {-1, 0, 0, 0, 0, 0, 0, 0};
    const V8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const V8i used = lane < t.top_k;
    const float context = static_cast<float>(t.context_term);
    const float depth = static_cast<float>(t.depth_slope);
    const V8f along = (V8f)((V8i)splat8(w[4]) & ~first);
    alignas(32) float text[kMaxBlock + 8];
    for (int32_t i = 0; i < n; i += 8) {
        const V8f s = load8(text_score + i);
        store8(text + i, (V8f)((V8i)vexp8(s) & (s > splat8(-1e29F))));
    }
    float shared = context;
    for (int32_t i = 0; i < n; ++i, shared += depth) {
        const float pick = shared + w[0] + w[1] * f.logit_head[i] + w[2] * f.logit_share[i];
        const float sibling = shared + w[3] + w[5] * f.logit_head[i] + w[6] * f.logit_share[i];
        const V8f s = select8(first, splat8(pick), splat8(sibling)) + along * load8(f.log_r[i]) + load8(evidence[i]);
        const V8f e = (V8f)((V8i)vexp8(s) & used);
        const float inverse = 1.0F / (1.0F + (sum8(e) + text[i]));
        store8(p[i], e * splat8(inverse));
        text_p[i] = text[i] * inverse;
    }
}

static void sigmoid(float * x, int32_t n) noexcept {
    for (int32_t i = 0; i < n; i += 8) {
        store8(x + i, 1.0F / (1.0F + vexp8(-load8(x + i))));
    }
}

static void log_lanes(double * x, int32_t n) noexcept {
    for (int32_t i = 0; i < n; i += 4) {
        store(x + i, vlog(load(x + i)));
    }
}

static void price_widths(WidthLanes & lanes, const double * phi, double clock, int32_t n) noexcept {
    for (int32_t i = 0; i < n; i += 4) {
        V4d law = load(lanes.weight[0] + i); // phi[0] is 1
        for (int32_t j = 1; j < kBasis; ++j) {
            law += phi[j] * load(lanes.weight[j] + i);
        }
        law = vmin(vmax(law, load(lanes.low + i)), load(lanes.high + i));
        store(lanes.price + i, law * load(lanes.scale + i) * clock);
    }
}

static void ftrl_step(FtrlLanes & lanes, const double * gradient) noexcept {
    constexpr double alpha = 0.05, cap = 400.0, beta = 1.0, l2 = 0.01, gate = 3.0;
    for (int32_t i = 0; i < kDenseLanes; i += 4) {
        const V4d g = load(gradient + i);
        const V4d prior = load(lanes.prior + i);
        const V4d n = vmin(load(lanes.n + i) + g * g, splat(cap));
        const V4d root = vsqrt(n);
        const V4d sigma = (root - load(lanes.root_n + i)) * (1.0 / alpha);
        const V4d z = load(lanes.z + i) + (g - sigma * (load(lanes.weight + i) - prior));
        const V4d bound = gate * root;
        const V4d excess = z - vmin(vmax(z, -bound), bound);
        store(lanes.n + i, n);
        store(lanes.root_n + i, root);
        store(lanes.z + i, z);
        store(lanes.weight + i, prior - excess / ((beta + root) * (1.0 / alpha) + l2));
    }
}

static double group_likelihood(const float * p, int32_t top_k, int32_t hit) noexcept {
    const V8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const V8f one = splat8(1.0F);
    const V8f given = load8(p);
    const V8f clipped = vmin8(vmax8(select8(lane == hit, given, one - given), splat8(1e-7F)), splat8(1.0F - 1e-7F));
    const V8f q = select8(lane < top_k, clipped, one);
    const double a = static_cast<double>(q[0]) * q[1];
    const double b = static_cast<double>(q[2]) * q[3];
    const double c = static_cast<double>(q[4]) * q[5];
    const double d = static_cast<double>(q[6]) * q[7];
    return (a * b) * (c * d);
}

static void block_path_q(const float (*p)[kTopK], const uint8_t * dead, int32_t n, float * path_q) noexcept {
    const V8i bit = {1, 2, 4, 8, 16, 32, 64, 128};
    float above = 1.0F;
    for (int32_t i = 0; i < n; ++i) {
        V8f q = splat8(above) * load8(p[i]);
        if (dead[i] != 0) {
            const int32_t d = dead[i];
            q = (V8f)((V8i)q & ((V8i{d, d, d, d, d, d, d, d} & bit) == 0));
        }
        store8(path_q + kTopK * i, q);
        above = q[0];
    }
}

static const Kernels table = {AS_KERNELS_NAME, rank_descending, block_features, block_softmax,    sigmoid,
                              log_lanes,       price_widths,    ftrl_step,      group_likelihood, block_path_q};

#undef AS_INLINE
