// 8 lanes in plain C++: what every other `simd_*.h` must equal bit for bit.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/format.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

struct F8 {
    float v[8];
};
struct I8 {
    int32_t v[8];
};

template <typename F> inline F8 lanes(F && f) {
    F8 out;
    for (int i = 0; i < 8; ++i) {
        out.v[i] = f(i);
    }
    return out;
}

inline F8 zero() { return F8{}; }
inline F8 set1(float x) {
    return lanes([&](int) { return x; });
}
inline F8 load(const float * p) {
    return lanes([&](int i) { return p[i]; });
}
inline void store(float * p, F8 a) { std::memcpy(p, a.v, sizeof(a.v)); }
inline F8 load_half(const void * p) {
    uint16_t h[8];
    std::memcpy(h, p, sizeof(h));
    return lanes([&](int i) { return half_to_float(h[i]); });
}
inline F8 load_bf16(const void * p) {
    uint16_t h[8];
    std::memcpy(h, p, sizeof(h));
    return lanes([&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(h[i]) << 16); });
}
inline void store_half(void * p, F8 a) {
    uint16_t h[8];
    for (int i = 0; i < 8; ++i) {
        h[i] = float_to_half(a.v[i]);
    }
    std::memcpy(p, h, sizeof(h));
}
inline F8 add(F8 a, F8 b) {
    return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline F8 sub(F8 a, F8 b) {
    return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline F8 mul(F8 a, F8 b) {
    return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline F8 div(F8 a, F8 b) {
    return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
inline F8 fma(F8 a, F8 b, F8 c) { // a * b + c, rounded once
    return lanes([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline F8 max(F8 a, F8 b) { // b where either is a NaN
    return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 min(F8 a, F8 b) {
    return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline F8 abs(F8 a) {
    return lanes([&](int i) { return std::fabs(a.v[i]); });
}
inline bool any_nan(F8 a) {
    bool out = false;
    for (const float x : a.v) {
        out |= x != x;
    }
    return out;
}
// Lanes i and i + 4, then i and i + 2, then the last two.
inline float sum(F8 a) {
    const float b[4] = {a.v[0] + a.v[4], a.v[1] + a.v[5], a.v[2] + a.v[6], a.v[3] + a.v[7]};
    return (b[0] + b[2]) + (b[1] + b[3]);
}
inline float max_of(F8 a) {
    float out = a.v[0];
    for (const float x : a.v) {
        out = x > out ? x : out;
    }
    return out;
}
inline I8 round(F8 a) { // to nearest, ties to even; INT32_MIN for what does not fit, NaN too
    I8 out;
    for (int i = 0; i < 8; ++i) {
        out.v[i] = std::fabs(a.v[i]) < 2147483648.0F ? static_cast<int32_t>(std::nearbyint(a.v[i])) : INT32_MIN;
    }
    return out;
}
inline F8 to_float(I8 a) {
    return lanes([&](int i) { return static_cast<float>(a.v[i]); });
}
inline F8 pow2(I8 a) { // 2^a for -126..127
    return lanes([&](int i) { return std::bit_cast<float>(static_cast<uint32_t>(a.v[i] + 127) << 23); });
}
inline I8 sub1(I8 a, int32_t b) {
    for (int32_t & x : a.v) {
        x -= b;
    }
    return a;
}
// 32 rounded values as int8; their sum.
inline int32_t store_int8(int8_t * p, const I8 (&a)[4]) {
    int32_t total = 0;
    for (int i = 0; i < 32; ++i) {
        const int32_t x = a[i / 8].v[i % 8];
        p[i] = static_cast<int8_t>(x < -128 ? -128 : x > 127 ? 127 : x);
        total += p[i];
    }
    return total;
}

// s[PB * r + p] = for the 8 columns of panel p (`stride` bytes apart), the sum over 32 inputs of code (0..15) times row
// r of a [RB][32].
template <int RB, int PB>
inline void dot_q4(const uint8_t * w, std::size_t stride, const int8_t * a, I8 (&s)[RB * PB]) {
    for (int at = 0; at < RB * PB; ++at) {
        const int8_t * row = a + 32 * (at / PB);
        const uint8_t * codes = w + static_cast<std::size_t>(at % PB) * stride;
        s[at] = I8{};
        for (int j = 0; j < 128; ++j) {
            const int i = j / 32 * 8 + j % 4;
            s[at].v[j % 32 / 4] += (codes[j] & 15) * row[i] + (codes[j] >> 4) * row[i + 4];
        }
    }
}
// The same for int8 weights.
template <int RB, int PB>
inline void dot_q8(const uint8_t * w, std::size_t stride, const int8_t * a, I8 (&s)[RB * PB]) {
    for (int at = 0; at < RB * PB; ++at) {
        const int8_t * row = a + 32 * (at / PB);
        const uint8_t * codes = w + static_cast<std::size_t>(at % PB) * stride;
        s[at] = I8{};
        for (int j = 0; j < 256; ++j) {
            s[at].v[j % 32 / 4] += static_cast<int8_t>(codes[j]) * row[j / 32 * 4 + j % 4];
        }
    }
}

} // namespace adaspark::kernels::ADASPARK_SIMD
