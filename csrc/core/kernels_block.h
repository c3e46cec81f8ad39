// Part of kernels_impl.h: features and Eq. (6) of a drafter block, eight positions at a time. Lanes of the candidates
// are turned into vectors over positions, so that sums over a position's candidates are sums of vectors.

// Columns of an 8 x 8 block become its rows.
AS_INLINE void transpose(V8f * r) {
    V8f a[8];
    V8f b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4) {
        b[i] = __builtin_shufflevector(a[i], a[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        b[i + 2] = __builtin_shufflevector(a[i + 1], a[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        b[i + 3] = __builtin_shufflevector(a[i + 1], a[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

AS_INLINE void store_rows(float (*to)[kTopK], V8f * lanes) {
    transpose(lanes);
    for (int i = 0; i < 8; ++i) {
        store8(to[i], lanes[i]);
    }
}

AS_INLINE V8f sum_of(const V8f * v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

static void block_features(const float * logits, const float * head, int32_t n, BlockFeatures & out) noexcept {
    // Probabilities are clipped to [1e-7, 1 - 1e-7] before any logit.
    constexpr float bound = 16.1180957F; // logit(1 - 1e-7)
    for (int32_t from = 0; from < n; from += 8) {
        V8f d[8];
        V8f e[8];
        V8f given = splat8(0.5F);
        if (from + 8 <= n) {
            for (int32_t i = 0; i < 8; ++i) {
                d[i] = load8(logits + kTopK * (from + i));
            }
            given = load8(head + from);
        } else {
            float some[8] = {0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F};
            for (int32_t i = 0; i < 8; ++i) {
                d[i] = from + i < n ? load8(logits + kTopK * (from + i)) : splat8(0.0F);
                some[i] = from + i < n ? head[from + i] : 0.5F;
            }
            given = load8(some);
        }
        transpose(d);
        e[0] = splat8(0.0F);
        for (int l = 1; l < 8; ++l) {
            d[l] = d[l] - d[0];
            e[l] = vexp8(d[l]);
        }
        const V8f siblings = sum_of(e);
        const V8f inverse = 1.0F / (1.0F + siblings);
        e[0] = inverse;
        for (int l = 1; l < 8; ++l) {
            e[l] = e[l] * inverse;
        }
        store_rows(out.share + from, e);
        const V8f lse = vlog8(vmax8(siblings, splat8(1e-30F)));
        store8(&out.logit_share[from], vmin8(vmax8(-lse, splat8(-bound)), splat8(bound)));
        const V8f h = select8(given >= splat8(1e-7F), given, splat8(1e-7F)); // NaN reads as 0
        store8(&out.head[from], vmin8(h, splat8(1.0F - 1e-7F)));
        const V8f odds = vmin8(vmax8(h / (1.0F - h), splat8(1.0000001e-7F)), splat8(9999999.0F));
        store8(&out.logit_head[from], vlog8(odds));
        d[0] = splat8(0.0F);
        for (int l = 1; l < 8; ++l) {
            d[l] = vmin8(vmax8(d[l] - lse, splat8(-30.0F)), splat8(0.0F));
        }
        for (int l = 0; l < 8; ++l) {
            store8(out.log_r_by_lane[from / 8][l], d[l]);
        }
        store_rows(out.log_r + from, d);
    }
}

static void block_softmax(const BlockFeatures & f, const ScoreTerms & t, const TextEvidence * evidence, int32_t n,
                          float (*p)[kTopK], float * text_p) noexcept {
    float w[kDense];
    for (int32_t i = 0; i < kDense; ++i) {
        w[i] = static_cast<float>(t.weight[i]);
    }
    const V8f place = {0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 5.0F, 6.0F, 7.0F};
    for (int32_t from = 0; from < n; from += 8) {
        const V8f shared =
            static_cast<float>(t.context_term) + static_cast<float>(t.depth_slope) * (place + static_cast<float>(from));
        const V8f head = load8(f.logit_head + from);
        const V8f share = load8(f.logit_share + from);
        const V8f sibling = shared + w[3] + w[5] * head + w[6] * share;
        V8f s[8];
        s[0] = shared + w[0] + w[1] * head + w[2] * share;
        for (int l = 1; l < 8; ++l) {
            s[l] = sibling + w[4] * load8(f.log_r_by_lane[from / 8][l]);
        }
        V8f text = splat8(0.0F);
        if (evidence != nullptr) {
            V8i lane;
            __builtin_memcpy(&lane, evidence->lane + from, sizeof lane);
            const V8f agreed = load8(evidence->agreed + from);
            const V8f others = load8(evidence->sibling + from);
            s[0] += select8(lane == 0, agreed, load8(evidence->pick + from));
            for (int l = 1; l < 8; ++l) {
                s[l] += select8(lane == l, agreed, others);
            }
            const V8f score = load8(evidence->text + from);
            text = (V8f)((V8i)vexp8(score) & (score > splat8(-1e29F)));
        }
        for (int l = 0; l < 8; ++l) {
            s[l] = l < t.top_k ? vexp8(s[l]) : splat8(0.0F);
        }
        const V8f inverse = 1.0F / (1.0F + (sum_of(s) + text));
        for (int l = 0; l < 8; ++l) {
            s[l] = s[l] * inverse;
        }
        store_rows(p + from, s);
        store8(text_p + from, text * inverse);
    }
}

static void head_estimate(const BlockFeatures & f, float factor, int32_t n, float (*p)[kTopK]) noexcept {
    const V8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int32_t i = 0; i < n; ++i) {
        const V8f q = select8(lane == 0, splat8(f.head[i]), load8(f.share[i]));
        store8(p[i], q * factor / (1.0F - q + q * factor));
    }
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
