// 8 lanes as two NEON registers. With ADASPARK_DOT dot products of four bytes are one instruction; with ADASPARK_I8MM
// too, two rows times two columns of eight bytes are one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <arm_neon.h>

#include "kernels/format.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

struct F8 {
    float32x4_t v[2];
};
struct I8 {
    int32x4_t v[2];
};

inline F8 set1(float x) { return {{vdupq_n_f32(x), vdupq_n_f32(x)}}; }
inline F8 zero() { return set1(0.0F); }
inline F8 load(const float * p) { return {{vld1q_f32(p), vld1q_f32(p + 4)}}; }
inline void store(float * p, F8 a) {
    vst1q_f32(p, a.v[0]);
    vst1q_f32(p + 4, a.v[1]);
}
inline uint16x8_t load_u16(const void * p) { return vreinterpretq_u16_u8(vld1q_u8(static_cast<const uint8_t *>(p))); }
inline F8 from_half(uint16x8_t h) {
    const float16x8_t f = vreinterpretq_f16_u16(h);
    return {{vcvt_f32_f16(vget_low_f16(f)), vcvt_high_f32_f16(f)}};
}
inline F8 load_half(const void * p) { return from_half(load_u16(p)); }
inline F8 load_bf16(const void * p) {
    const uint16x8_t h = load_u16(p);
    return {{vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))}};
}
inline void store_half(void * p, F8 a) {
    const float16x8_t h = vcvt_high_f16_f32(vcvt_f16_f32(a.v[0]), a.v[1]);
    vst1q_u8(static_cast<uint8_t *>(p), vreinterpretq_u8_f16(h));
}
inline F8 add(F8 a, F8 b) { return {{vaddq_f32(a.v[0], b.v[0]), vaddq_f32(a.v[1], b.v[1])}}; }
inline F8 sub(F8 a, F8 b) { return {{vsubq_f32(a.v[0], b.v[0]), vsubq_f32(a.v[1], b.v[1])}}; }
inline F8 mul(F8 a, F8 b) { return {{vmulq_f32(a.v[0], b.v[0]), vmulq_f32(a.v[1], b.v[1])}}; }
inline F8 div(F8 a, F8 b) { return {{vdivq_f32(a.v[0], b.v[0]), vdivq_f32(a.v[1], b.v[1])}}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {{vfmaq_f32(c.v[0], a.v[0], b.v[0]), vfmaq_f32(c.v[1], a.v[1], b.v[1])}}; }
// Not the instructions' maximum and minimum: they treat a NaN in another way.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline F8 max(F8 a, F8 b) { return {{larger(a.v[0], b.v[0]), larger(a.v[1], b.v[1])}}; }
inline F8 min(F8 a, F8 b) { return {{smaller(a.v[0], b.v[0]), smaller(a.v[1], b.v[1])}}; }
inline F8 abs(F8 a) { return {{vabsq_f32(a.v[0]), vabsq_f32(a.v[1])}}; }
inline bool any_nan(F8 a) { return vminvq_u32(vandq_u32(vceqq_f32(a.v[0], a.v[0]), vceqq_f32(a.v[1], a.v[1]))) == 0; }
inline float sum(F8 a) {
    const float32x4_t b = vaddq_f32(a.v[0], a.v[1]);
    return vpadds_f32(vadd_f32(vget_low_f32(b), vget_high_f32(b)));
}
inline float max_of(F8 a) { return vmaxvq_f32(larger(a.v[0], a.v[1])); }
inline int32x4_t rounded(float32x4_t a) { // the instruction alone saturates, and makes a NaN 0
    const uint32x4_t fits = vcltq_f32(vabsq_f32(a), vdupq_n_f32(2147483648.0F));
    return vbslq_s32(fits, vcvtnq_s32_f32(a), vdupq_n_s32(INT32_MIN));
}
inline I8 round(F8 a) { return {{rounded(a.v[0]), rounded(a.v[1])}}; }
inline F8 to_float(I8 a) { return {{vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1])}}; }
inline float32x4_t power(int32x4_t a) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(a, vdupq_n_s32(127)), 23)); }
inline F8 pow2(I8 a) { return {{power(a.v[0]), power(a.v[1])}}; }

inline void store_int8(int8_t * p, const I8 (&a)[4], int32_t (&total)[2]) {
    for (int i = 0; i < 2; ++i) {
        const I8 & lo = a[2 * i];
        const I8 & hi = a[2 * i + 1];
        const int16x8_t first = vqmovn_high_s32(vqmovn_s32(lo.v[0]), lo.v[1]);
        const int16x8_t second = vqmovn_high_s32(vqmovn_s32(hi.v[0]), hi.v[1]);
        const int8x16_t bytes = vqmovn_high_s16(vqmovn_s16(first), second);
        vst1q_s8(p + 16 * i, bytes);
        total[i] = vaddlvq_s8(bytes);
    }
}

// ---- wide lanes: the same 8 ----------------------------------------------------------------------------------------

constexpr int kWide = 8;
constexpr int kRegisters = 16; // pairs of them
using FW = F8;
using IW = I8;

inline FW zero_wide() { return zero(); }
inline FW set1_wide(float x) { return set1(x); }
inline FW load_wide(const float * p) { return load(p); }
inline FW load_half_wide(const void * p) { return load_half(p); }
inline FW set1_half_wide(const void * p) {
    uint16_t h = 0;
    std::memcpy(&h, p, sizeof(h));
    return from_half(vdupq_n_u16(h));
}
inline FW load_bf16_wide(const void * p) { return load_bf16(p); }
inline FW load_u8_wide(const uint8_t * p) {
    const uint16x8_t x = vmovl_u8(vld1_u8(p));
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(x))), vcvtq_f32_u32(vmovl_high_u16(x))}};
}
inline FW load_i8_wide(const uint8_t * p) {
    const int16x8_t x = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), vcvtq_f32_s32(vmovl_high_s16(x))}};
}

// ---- integer products ----------------------------------------------------------------------------------------------

template <Format F> constexpr int kHalves = F == Format::q6_k ? 2 : 1; // sums a block of 32 inputs has, one a scale

struct Codes { // of 8 columns, four inputs each
    int8x16_t v[2];
};

// The codes of inputs 8v .. 8v + 3 (first) and 8v + 4 .. 8v + 7 (second) of a block: q8_0's as they are, the others'
// without their offset.
template <Format F>
ADASPARK_INLINE void code_vectors(const uint8_t * codes, int part, int v, Codes & first, Codes & second) {
    if constexpr (F == Format::q8_0) {
        each<2>([&](auto j) {
            const uint8_t * at = codes + 128 * v + 32 * part + 16 * j;
            first.v[j] = vreinterpretq_s8_u8(vld1q_u8(at));
            second.v[j] = vreinterpretq_s8_u8(vld1q_u8(at + 64));
        });
    } else {
        uint8x16_t c[4]; // first, second
        each<2>([&](auto j) {
            const uint8x16_t both = vld1q_u8(codes + 64 * v + 32 * part + 16 * j);
            c[j] = vandq_u8(both, vdupq_n_u8(15));
            c[2 + j] = vshrq_n_u8(both, 4);
        });
        each<code_bits(F) - 4>([&](auto extra) __attribute__((always_inline)) { // bits 4, 5, from the byte's own bit
            const uint8_t * at = codes + 256 + 64 * extra + 16 * v + 4 * part;
            uint32_t half[2];
            std::memcpy(&half[0], at, 4);
            std::memcpy(&half[1], at + 8, 4);
            const uint8x16_t bits = vreinterpretq_u8_u64(vdupq_n_u64(uint64_t{half[1]} << 32 | half[0]));
            const uint8x16_t own = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201));
            each<4>([&](auto i) {
                const uint8x16_t from = vcombine_u8(vdup_n_u8(2 * i), vdup_n_u8(2 * i + 1));
                c[i] = vbslq_u8(vdupq_n_u8(16 << extra), vtstq_u8(vqtbl1q_u8(bits, from), own), c[i]);
            });
        });
        each<2>([&](auto j) {
            first.v[j] = vreinterpretq_s8_u8(c[j]);
            second.v[j] = vreinterpretq_s8_u8(c[2 + j]);
        });
    }
}

// sum + the products of four codes a column with inputs 4U .. 4U + 3 of `x`.
template <int U> ADASPARK_INLINE int32x4_t dot(int32x4_t sum, int8x16_t codes, int8x16_t x) {
#ifdef ADASPARK_DOT
    return vdotq_laneq_s32(sum, codes, x, U);
#else
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(x), U));
    // Two products fit 16 bits: inputs are -127..127.
    const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(codes), vget_low_s8(four)), vmull_high_s8(codes, four));
    return vpadalq_s16(sum, pairs);
#endif
}

// What the codes' offset takes from the sum of half h: a power of two times 8 times the sum of the inputs.
template <Format F>
ADASPARK_INLINE int32_t offset(const int32_t * minus8, const int32_t * minus8_half, int32_t rows, int h, int r) {
    return F == Format::q4_0   ? minus8[r]
           : F == Format::q5_0 ? 2 * minus8[r]
           : F == Format::q6_k ? 4 * minus8_half[h * rows + r]
                               : 0;
}

// Rows 2p and 2p + 1 of the first kPaired rows are multiplied together; until the end of their block their sums lie as
// [two columns of row 2p, the same of row 2p + 1] for the columns 0, 2, 4 and 6.
template <Format F, int RB>
ADASPARK_INLINE void block_dot(const uint8_t * codes, int part, const int8_t * a, const int32_t * minus8,
                               const int32_t * minus8_half, int32_t rows, IW (&s)[kHalves<F> * RB]) {
#ifdef ADASPARK_I8MM
    constexpr int kPaired = RB / 2 * 2;
#else
    constexpr int kPaired = 0;
#endif
    each<kHalves<F>>([&](auto h) {
        each<RB>([&](auto r) {
            constexpr int kFirst = r < kPaired ? r / 2 * 2 : r;
            constexpr int kSecond = r < kPaired ? kFirst + 1 : r;
            const int32x4_t start = vcombine_s32(vdup_n_s32(offset<F>(minus8, minus8_half, rows, h, kFirst)),
                                                 vdup_n_s32(offset<F>(minus8, minus8_half, rows, h, kSecond)));
            s[RB * h + r] = {{start, start}};
        });
    });
    const auto inputs = [&](auto x) __attribute__((always_inline)) { // 16, a register of them
        IW * sum = s + (kHalves<F> == 2 ? RB * x : 0);
        Codes code[4];
        code_vectors<F>(codes, part, 2 * x, code[0], code[1]);
        code_vectors<F>(codes, part, 2 * x + 1, code[2], code[3]);
        each<RB - kPaired>([&](auto i) {
            constexpr int r = kPaired + i;
            const int8x16_t input = vld1q_s8(a + kCodes * r + 16 * x);
            each<4>([&](auto u) { each<2>([&](auto j) { sum[r].v[j] = dot<u>(sum[r].v[j], code[u].v[j], input); }); });
        });
#ifdef ADASPARK_I8MM
        each<2>([&](auto v) {
            int8x16_t pair[4]; // two columns of eight inputs
            each<2>([&](auto j) {
                const int32x4_t first = vreinterpretq_s32_s8(code[2 * v].v[j]);
                const int32x4_t second = vreinterpretq_s32_s8(code[2 * v + 1].v[j]);
                pair[2 * j] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
                pair[2 * j + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
            });
            each<kPaired / 2>([&](auto p) {
                const int8_t * at = a + 2 * kCodes * p + 16 * x + 8 * v;
                const int8x16_t input = vcombine_s8(vld1_s8(at), vld1_s8(at + kCodes));
                each<4>([&](auto c) {
                    int32x4_t & to = sum[2 * p + c / 2].v[c % 2];
                    to = vmmlaq_s32(to, input, pair[c]);
                });
            });
        });
#endif
    };
    each<2>(inputs);
#ifdef ADASPARK_I8MM
    each<kHalves<F>>([&](auto h) {
        each<kPaired / 2>([&](auto p) {
            IW & even = s[RB * h + 2 * p];
            IW & odd = s[RB * h + 2 * p + 1];
            const int64x2_t c[4] = {vreinterpretq_s64_s32(even.v[0]), vreinterpretq_s64_s32(even.v[1]),
                                    vreinterpretq_s64_s32(odd.v[0]), vreinterpretq_s64_s32(odd.v[1])};
            even = {{vreinterpretq_s32_s64(vzip1q_s64(c[0], c[1])), vreinterpretq_s32_s64(vzip1q_s64(c[2], c[3]))}};
            odd = {{vreinterpretq_s32_s64(vzip2q_s64(c[0], c[1])), vreinterpretq_s32_s64(vzip2q_s64(c[2], c[3]))}};
        });
    });
#endif
}

} // namespace adaspark::kernels::ADASPARK_SIMD
