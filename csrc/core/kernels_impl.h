// The bodies of kernels.h, included once per instruction set inside a namespace. GNU vector extensions (GCC, Clang):
// four doubles a vector, split or widened by the compiler to what the machine has. Nothing here may call an inline
// function of the standard library: a copy compiled for AVX2 could be the one the linker keeps for everybody.

typedef double V4d __attribute__((vector_size(32)));
typedef int64_t V4i __attribute__((vector_size(32)));
typedef float V4f __attribute__((vector_size(16)));
typedef float V8f __attribute__((vector_size(32)));
typedef int32_t V8i __attribute__((vector_size(32)));

#define AS_INLINE static inline __attribute__((always_inline))

AS_INLINE V4d splat(double x) { return V4d{x, x, x, x}; }
AS_INLINE V4d load(const double * p) {
    V4d v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
AS_INLINE V4d widen(const float * p) {
    V4f v;
    __builtin_memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, V4d);
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

// exp to about 1e-14 relative on [-700, 700], clamped outside: reduction by multiples of ln 2, then degree 11.
AS_INLINE V4d vexp(const V4d & unclamped) {
    const V4d x = vmin(vmax(unclamped, splat(-700.0)), splat(700.0));
    const V4d magic = splat(6755399441055744.0); // 1.5 * 2^52: adding it leaves the rounded integer in the low bits
    const V4d shifted = x * splat(1.4426950408889634) + magic;
    const V4d k = shifted - magic;
    const V4d r = (x - k * splat(0.693147180369123816490)) - k * splat(1.90821492927058770002e-10);
    const V4d r2 = r * r;
    const V4d r4 = r2 * r2;
    const V4d low = (splat(1.0) + r) + r2 * (splat(0.5) + r * splat(1.0 / 6.0));
    const V4d mid = (splat(1.0 / 24.0) + r * splat(1.0 / 120.0)) + r2 * (splat(1.0 / 720.0) + r * splat(1.0 / 5040.0));
    const V4d high = (splat(1.0 / 40320.0) + r * splat(1.0 / 362880.0)) +
                     r2 * (splat(1.0 / 3628800.0) + r * splat(1.0 / 39916800.0));
    const V4d poly = low + r4 * (mid + r4 * high);
    const V4i bits = ((V4i)shifted - (V4i)magic + 1023) << 52;
    return poly * (V4d)bits;
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
    const V8f t = {threshold, threshold, threshold, threshold, threshold, threshold, threshold, threshold};
    V8i hits = {};
    for (int32_t b = 0; b < blocks; ++b) {
        V8f v;
        __builtin_memcpy(&v, key + 8 * b, sizeof v);
        hits -= v >= t;
    }
    return ((hits[0] + hits[4]) + (hits[1] + hits[5])) + ((hits[2] + hits[6]) + (hits[3] + hits[7]));
}

static int32_t rank_descending(const float * key, int32_t n, int32_t limit, int32_t * index) noexcept {
    if (n <= 0 || limit <= 0) {
        return 0;
    }
    alignas(32) float padded[336];
    alignas(32) float kept[336 + 8];
    int32_t origin[336 + 8];
    const int32_t blocks = (n + 7) / 8;
    __builtin_memcpy(padded, key, sizeof(float) * static_cast<size_t>(n));
    for (int32_t i = n; i < 8 * blocks; ++i) {
        padded[i] = 0.0F;
    }
    // A threshold that keeps at least `limit` keys and few more: bisect on the bits of positive floats, which sort as
    // integers. Exactness does not depend on it; the quadratic ranking below gets a short list.
    float threshold = 1e-45F; // the least positive float: drops the zeros
    if (n > 96 && limit + 8 < n) {
        int32_t low = 1;           // count(low) >= limit, or fewer positive keys than that
        int32_t high = 0x3F800001; // just above 1
        for (int32_t step = 0; step < 14; ++step) {
            const int32_t middle = low + (high - low) / 2;
            float t;
            __builtin_memcpy(&t, &middle, sizeof t);
            const int32_t hits = count_at_least(padded, blocks, t);
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
    }
    int32_t m = 0;
    for (int32_t i = 0; i < n; ++i) {
        kept[m] = padded[i];
        origin[m] = i;
        m += padded[i] >= threshold ? 1 : 0;
    }
    const int32_t kept_blocks = (m + 7) / 8;
    for (int32_t i = m; i < 8 * kept_blocks; ++i) {
        kept[i] = -1.0F;
        origin[i] = 0;
    }
    const V8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int32_t b = 0; b < kept_blocks; ++b) {
        V8f mine;
        __builtin_memcpy(&mine, kept + 8 * b, sizeof mine);
        V8i before = {};
        V8i tied = {};
        int32_t j = 0;
        for (; j < 8 * b; ++j) { // an earlier key wins a tie
            const float k = kept[j];
            before -= V8f{k, k, k, k, k, k, k, k} >= mine;
        }
        for (; j < 8 * b + 8; ++j) {
            const float k = kept[j];
            const V8f other = {k, k, k, k, k, k, k, k};
            const int32_t local = j - 8 * b;
            before -= other > mine;
            tied -= (other == mine) & (lane > local);
        }
        for (; j < 8 * kept_blocks; ++j) {
            const float k = kept[j];
            before -= V8f{k, k, k, k, k, k, k, k} > mine;
        }
        before += tied;
        const int32_t end = m - 8 * b < 8 ? m - 8 * b : 8;
        for (int32_t l = 0; l < end; ++l) {
            if (before[l] < limit) {
                index[before[l]] = origin[8 * b + l];
            }
        }
    }
    return m < limit ? m : limit;
}

static void block_features(const float * logits, const float * head, int32_t n, BlockFeatures & out) noexcept {
    constexpr double eps = 1e-7;                 // probabilities are clipped before any logit
    constexpr double bound = 16.118095550958316; // logit(1 - eps)
    alignas(32) double total[kMaxBlock + 4];
    alignas(32) double odds[kMaxBlock + 4];
    for (int32_t i = 0; i < n; ++i) {
        const float * v = logits + kTopK * i;
        const V4d pick = splat(v[0]);
        const V4d d0 = widen(v) - pick;
        const V4d d1 = widen(v + 4) - pick;
        V4d e0 = vexp(d0);
        const V4d e1 = vexp(d1);
        e0[0] = 0.0;
        const double siblings = sum(e0 + e1);
        total[i] = siblings > 1e-300 ? siblings : 1e-300;
        const double given = head[i];
        const double h = !(given >= eps) ? eps : given > 1.0 - eps ? 1.0 - eps : given; // NaN reads as 0
        out.head[i] = h;
        odds[i] = h / (1.0 - h);
        const double inverse = 1.0 / (1.0 + siblings);
        e0[0] = 1.0;
        store(&out.share[i][0], e0 * inverse);
        store(&out.share[i][4], e1 * inverse);
        store(&out.log_r[i][0], d0);
        store(&out.log_r[i][4], d1);
    }
    for (int32_t i = n; i < (n + 3) / 4 * 4; ++i) {
        total[i] = 1.0;
        odds[i] = 1.0;
    }
    for (int32_t i = 0; i < n; i += 4) {
        const V4d lse = vlog(load(total + i));
        store(total + i, lse);
        store(&out.logit_share[i], vmin(vmax(-lse, splat(-bound)), splat(bound)));
        store(&out.logit_head[i], vlog(load(odds + i)));
    }
    for (int32_t i = 0; i < n; ++i) {
        const V4d lse = splat(total[i]);
        store(&out.log_r[i][0], vmax(load(&out.log_r[i][0]) - lse, splat(-30.0)));
        store(&out.log_r[i][4], vmax(load(&out.log_r[i][4]) - lse, splat(-30.0)));
        out.log_r[i][0] = 0.0;
    }
}

static void block_softmax(const BlockFeatures & f, const ScoreTerms & t, const double (*evidence)[kTopK],
                          const double * text_score, int32_t n, double (*p)[kTopK], double * text_p) noexcept {
    const double * w = t.weight;
    const V4i lane0 = {0, 1, 2, 3};
    const V4i lane1 = {4, 5, 6, 7};
    const V4i k = {t.top_k, t.top_k, t.top_k, t.top_k};
    const V4i used0 = lane0 < k;
    const V4i used1 = lane1 < k;
    alignas(32) double text[kMaxBlock + 4];
    for (int32_t i = 0; i < n; i += 4) {
        store(text + i, vexp(load(text_score + i))); // exp(-700) is nothing beside the 1 of NONE
    }
    for (int32_t i = 0; i < n; ++i) {
        const double shared = t.context_term + t.depth_slope * i;
        const double pick = shared + w[0] + w[1] * f.logit_head[i] + w[2] * f.logit_share[i];
        const double sibling = shared + w[3] + w[5] * f.logit_head[i] + w[6] * f.logit_share[i];
        V4d s0 = splat(sibling) + w[4] * load(&f.log_r[i][0]);
        s0[0] = pick;
        const V4d s1 = splat(sibling) + w[4] * load(&f.log_r[i][4]);
        const V4d e0 = (V4d)((V4i)vexp(s0 + load(&evidence[i][0])) & used0);
        const V4d e1 = (V4d)((V4i)vexp(s1 + load(&evidence[i][4])) & used1);
        const double mine = text_score[i] < -600.0 ? 0.0 : text[i];
        const double inverse = 1.0 / (1.0 + (sum(e0 + e1) + mine));
        store(&p[i][0], e0 * inverse);
        store(&p[i][4], e1 * inverse);
        text_p[i] = mine * inverse;
    }
}

static void sigmoid(double * x, int32_t n) noexcept {
    for (int32_t i = 0; i < n; i += 4) {
        store(x + i, 1.0 / (1.0 + vexp(-load(x + i))));
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

static double group_likelihood(const double * p, int32_t top_k, int32_t hit) noexcept {
    const V4i lane0 = {0, 1, 2, 3};
    const V4i lane1 = {4, 5, 6, 7};
    const V4i h = {hit, hit, hit, hit};
    const V4i k = {top_k, top_k, top_k, top_k};
    const V4d low = splat(1e-12);
    const V4d high = splat(1.0 - 1e-12);
    const V4d p0 = load(p);
    const V4d p1 = load(p + 4);
    const V4d q0 = vmin(vmax(select(lane0 == h, p0, 1.0 - p0), low), high);
    const V4d q1 = vmin(vmax(select(lane1 == h, p1, 1.0 - p1), low), high);
    const V4d q = select(lane0 < k, q0, splat(1.0)) * select(lane1 < k, q1, splat(1.0));
    return (q[0] * q[2]) * (q[1] * q[3]);
}

static void block_path_q(const double (*p)[kTopK], const uint8_t * dead, int32_t n, float * path_q) noexcept {
    float above = 1.0F;
    for (int32_t i = 0; i < n; ++i) {
        float * q = path_q + kTopK * i;
        for (int32_t l = 0; l < kTopK; ++l) {
            q[l] = above * static_cast<float>(p[i][l]);
        }
        if (dead[i] != 0) {
            for (int32_t l = 0; l < kTopK; ++l) {
                q[l] = (dead[i] >> l & 1) != 0 ? 0.0F : q[l];
            }
        }
        above = q[0];
    }
}

static const Kernels table = {AS_KERNELS_NAME, rank_descending, block_features, block_softmax, sigmoid,
                              log_lanes, price_widths, ftrl_step, group_likelihood, block_path_q};

#undef AS_INLINE
