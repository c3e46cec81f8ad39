// Operations on rows: norms, int8 codes, SiLU, mixtures, over the lanes of the `simd_*.h` included before this file.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/kernels.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

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

} // namespace adaspark::kernels::ADASPARK_SIMD
