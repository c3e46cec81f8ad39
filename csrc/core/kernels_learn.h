// Part of kernels_impl.h: prices of widths, the learning steps and the likelihoods.

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

static void context_basis(double u, double log, double * phi) noexcept {
    store(phi, V4d{1.0, u, u * u, __builtin_sqrt(u)});
    store(phi + 4, V4d{log, 0.0, 0.0, 0.0});
}

static void law_step(LawLanes & lanes, const double * phi, double factor) noexcept {
    constexpr double alpha = 0.05, cap = 400.0, beta = 1.0, l2 = 0.01, l1 = 0.002;
    const double infinity = __builtin_inf();
    const V4d least[2] = {{-infinity, 0.0, 0.0, 0.0}, {0.0, 0.0, 0.0, 0.0}}; // the intercept may be negative
    for (int32_t i = 0; i < kBasisLanes; i += 4) {
        const V4d g = factor * load(phi + i);
        const V4d n = vmin(load(lanes.n + i) + g * g, splat(cap));
        const V4d root = vsqrt(n);
        const V4d sigma = (root - load(lanes.root_n + i)) * (1.0 / alpha);
        const V4d rate = 1.0 / ((beta + root) * (1.0 / alpha) + l2); // while z is still on its way
        const V4d z = load(lanes.z + i) + (g - sigma * load(lanes.weight + i));
        const V4d excess = z - vmin(vmax(z, splat(-l1)), splat(l1));
        store(lanes.n + i, n);
        store(lanes.root_n + i, root);
        store(lanes.z + i, z);
        store(lanes.weight + i, vmax(least[i / 4], -excess * rate));
    }
}

static void ftrl_steps(FtrlLanes & lanes, const double (*gradient)[kGradients], int32_t count, const double * slope,
                       int32_t slopes) noexcept {
    // One step waits for the last through z and the weight alone: roots and reciprocals run ahead.
    constexpr double alpha = 0.05, cap = 400.0, beta = 1.0, l2 = 0.01;
    for (int32_t i = 0; i < kGradients; i += 4) {
        const V4d prior = load(lanes.prior + i);
        V4d n = load(lanes.n + i);
        V4d root = load(lanes.root_n + i);
        V4d z = load(lanes.z + i);
        V4d away = load(lanes.weight + i) - prior;
        for (int32_t step = 0; step < count; ++step) {
            const V4d g = load(gradient[step] + i);
            const V4d before = root;
            n = vmin(n + g * g, splat(cap));
            root = vsqrt(n);
            const V4d sigma = (root - before) * (1.0 / alpha);
            const V4d rate = 1.0 / ((beta + root) * (1.0 / alpha) + l2);
            z = (z + g) - sigma * away;
            away = -z * rate;
        }
        store(lanes.n + i, n);
        store(lanes.root_n + i, root);
        store(lanes.z + i, z);
        store(lanes.weight + i, prior + away);
    }
    const double prior = lanes.prior[kGradients];
    double n = lanes.n[kGradients];
    double root = lanes.root_n[kGradients];
    double z = lanes.z[kGradients];
    double away = lanes.weight[kGradients] - prior;
    for (int32_t step = 0; step < slopes; ++step) {
        const double g = slope[step];
        const double before = root;
        n = n + g * g;
        n = n < cap ? n : cap;
        root = __builtin_sqrt(n);
        const double sigma = (root - before) * (1.0 / alpha);
        const double rate = 1.0 / ((beta + root) * (1.0 / alpha) + l2);
        z = (z + g) - sigma * away;
        away = -z * rate;
    }
    lanes.n[kGradients] = n;
    lanes.root_n[kGradients] = root;
    lanes.z[kGradients] = z;
    lanes.weight[kGradients] = prior + away;
}

// Product of eight floats, in doubles.
AS_INLINE double product(const V8f & q) {
    const V4d low = lower(q);
    const V4d high = upper(q);
    const V4d even = __builtin_shufflevector(low, high, 0, 4, 2, 6); // lanes 0, 4, 2, 6
    const V4d odd = __builtin_shufflevector(low, high, 1, 5, 3, 7);
    const V4d pairs = even * odd; // 01, 45, 23, 67
    return (pairs[0] * pairs[2]) * (pairs[1] * pairs[3]);
}

static void block_likelihood(const float (*p)[kTopK], int32_t top_k, const int32_t * hit, int32_t n,
                             double * out) noexcept {
    const V8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const V8f one = splat8(1.0F);
    for (int32_t i = 0; i < n; ++i) {
        const V8f given = load8(p[i]);
        const V8f clipped =
            vmin8(vmax8(select8(lane == hit[i], given, one - given), splat8(1e-7F)), splat8(1.0F - 1e-7F));
        out[i] = product(select8(lane < top_k, clipped, one));
    }
}

static void block_gradients(const BlockFeatures & f, const float (*p)[kTopK], const int32_t * hit, int32_t n,
                            double (*gradient)[kGradients], double * all) noexcept {
    const V4i lane = {0, 1, 2, 3};
    for (int32_t i = 0; i < n; ++i) {
        const int64_t h = hit[i];
        const V4d one = splat(1.0);
        const V8f given = load8(p[i]);
        const V4d low = lower(given) - (V4d)((V4i)one & (lane == h));
        const V4d high = upper(given) - (V4d)((V4i)one & (lane + 4 == h));
        const V8f r = load8(f.log_r[i]); // 0 for the pick
        const V4d along = low * lower(r) + high * upper(r);
        const double pick = low[0];
        const double siblings = sum((V4d)((V4i)low & (lane != 0)) + high);
        const double head = f.logit_head[i];
        const double share = f.logit_share[i];
        double * g = gradient[i];
        store(g, V4d{pick, pick * head, pick * share, siblings});
        all[i] = pick + siblings;
        store(g + 4, V4d{sum(along), siblings * head, siblings * share, all[i] * i});
    }
}
