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
// 32 rounded values as int8; the sums of the first and the second 16.
inline void store_int8(int8_t * p, const I8 (&a)[4], int32_t (&total)[2]) {
    total[0] = total[1] = 0;
    for (int i = 0; i < 32; ++i) {
        const int32_t x = a[i / 8].v[i % 8];
        p[i] = static_cast<int8_t>(x < -128 ? -128 : x > 127 ? 127 : x);
        total[i / 16] += p[i];
    }
}

// ---- wide lanes: the same 8
// ------------------------------------------------------------------------------------------

constexpr int kWide = 8;
constexpr int kRegisters = 16;
using FW = F8;
using IW = I8;

inline FW zero_wide() { return zero(); }
inline FW set1_wide(float x) { return set1(x); }
inline FW load_wide(const float * p) { return load(p); }
inline FW load_half_wide(const void * p) { return load_half(p); }
inline FW set1_half_wide(const void * p) {
    uint16_t h = 0;
    std::memcpy(&h, p, sizeof(h));
    return set1(half_to_float(h));
}
inline FW load_bf16_wide(const void * p) { return load_bf16(p); }
inline FW load_u8_wide(const uint8_t * p) {
    return lanes([&](int i) { return static_cast<float>(p[i]); });
}
inline FW load_i8_wide(const uint8_t * p) {
    return lanes([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}

template <Format F> constexpr int kHalves = F == Format::q6_k ? 2 : 1; // sums a block of 32 inputs has, one a scale

// s[RB * h + r] = for 8 columns, the sum over the inputs of half h of (code - offset) * row r of a, kCodes apart.
template <Format F, int RB>
inline void block_dot(const uint8_t * codes, int part, const int8_t * a, const int32_t * /*minus8*/,
                      const int32_t * /*minus8_half*/, int32_t /*rows*/, IW (&s)[kHalves<F> * RB]) {
    int32_t code[8][32]; // [vector][4 * column + input]
    for (int u = 0; u < 8; ++u) {
        for (int j = 0; j < 32; ++j) {
            const int lane = 32 * part + j;
            if constexpr (F == Format::q8_0) {
                code[u][j] = static_cast<int8_t>(codes[64 * u + lane]);
            } else {
                code[u][j] = (codes[64 * (u / 2) + lane] >> (u % 2 * 4) & 15) - code_offset(F);
                for (int extra = 0; extra < code_bits(F) - 4; ++extra) {
                    code[u][j] += (codes[256 + 64 * extra + 8 * u + lane / 8] >> (lane % 8) & 1) << (4 + extra);
                }
            }
        }
    }
    for (int h = 0; h < kHalves<F>; ++h) {
        for (int r = 0; r < RB; ++r) {
            I8 sum{};
            for (int u = 8 / kHalves<F> * h; u < 8 / kHalves<F> * (h + 1); ++u) {
                for (int j = 0; j < 32; ++j) {
                    sum.v[j / 4] += code[u][j] * a[kCodes * r + 4 * u + j % 4];
                }
            }
            s[RB * h + r] = sum;
        }
    }
}

} // namespace adaspark::kernels::ADASPARK_SIMD
