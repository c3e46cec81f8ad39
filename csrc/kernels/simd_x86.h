// 8 lanes of AVX2, FMA and F16C, and the wide lanes of the matrix products and of attention: 8 too, or 16 of AVX-512
// with ADASPARK_AVX512. With ADASPARK_VNNI (an intrinsic of that width) dot products of four bytes are one instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "kernels/format.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

struct F8 {
    __m256 v;
};
struct I8 {
    __m256i v;
};

inline F8 zero() { return {_mm256_setzero_ps()}; }
inline F8 set1(float x) { return {_mm256_set1_ps(x)}; }
inline F8 load(const float * p) { return {_mm256_loadu_ps(p)}; }
inline void store(float * p, F8 a) { _mm256_storeu_ps(p, a.v); }
inline F8 load_half(const void * p) { return {_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(p)))}; }
inline F8 load_bf16(const void * p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i *>(p)));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline void store_half(void * p, F8 a) {
    _mm_storeu_si128(static_cast<__m128i *>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F8 add(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
inline F8 sub(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline F8 mul(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline F8 div(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
inline F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
inline F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
inline F8 abs(F8 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
inline bool any_nan(F8 a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)) != 0; }
inline float sum(F8 a) {
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
inline float max_of(F8 a) {
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
inline I8 round(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
inline F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline F8 pow2(I8 a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a.v, _mm256_set1_epi32(127)), 23))};
}

inline int32_t sum_lanes(__m128i a) {
    const __m128i b = _mm_add_epi32(a, _mm_unpackhi_epi64(a, a));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 1)));
}

inline void store_int8(int8_t * p, const I8 (&a)[4], int32_t (&total)[2]) {
    const __m256i lo = _mm256_packs_epi32(a[0].v, a[1].v);
    const __m256i hi = _mm256_packs_epi32(a[2].v, a[3].v);
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    total[0] = sum_lanes(_mm256_castsi256_si128(quads));
    total[1] = sum_lanes(_mm256_extracti128_si256(quads, 1));
}

// ---- wide lanes ----------------------------------------------------------------------------------------------------

#ifdef ADASPARK_AVX512

constexpr int kWide = 16;
constexpr int kRegisters = 32;
struct FW {
    __m512 v;
};
struct IW {
    __m512i v;
};
using Bytes = __m512i; // four bytes a lane

inline FW zero_wide() { return {_mm512_setzero_ps()}; }
inline FW set1_wide(float x) { return {_mm512_set1_ps(x)}; }
inline FW load_wide(const float * p) { return {_mm512_loadu_ps(p)}; }
inline FW load_half_wide(const void * p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(p)))};
}
inline FW set1_half_wide(const void * p) {
    int16_t h = 0;
    std::memcpy(&h, p, sizeof(h));
    return {_mm512_cvtph_ps(_mm256_set1_epi16(h))};
}
inline FW load_bf16_wide(const void * p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i *>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline FW load_u8_wide(const uint8_t * p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))};
}
inline FW load_i8_wide(const uint8_t * p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))};
}
inline void store(float * p, FW a) { _mm512_storeu_ps(p, a.v); }
inline FW add(FW a, FW b) { return {_mm512_add_ps(a.v, b.v)}; }
inline FW sub(FW a, FW b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline FW mul(FW a, FW b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline FW fma(FW a, FW b, FW c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline FW max(FW a, FW b) { return {_mm512_max_ps(a.v, b.v)}; }
inline FW min(FW a, FW b) { return {_mm512_min_ps(a.v, b.v)}; }
inline FW div(FW a, FW b) { return {_mm512_div_ps(a.v, b.v)}; }
inline IW round(FW a) { return {_mm512_cvtps_epi32(a.v)}; }
inline FW to_float(IW a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline FW pow2(IW a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(127)), 23))};
}

inline __m512i zero_bytes() { return _mm512_setzero_si512(); }
inline __m512i set1_lanes(int32_t x) { return _mm512_set1_epi32(x); }
inline Bytes load_bytes(const uint8_t * p) { return _mm512_loadu_si512(p); }
inline Bytes low_half(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Bytes high_half(Bytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
inline Bytes flip_sign(Bytes a) { return _mm512_xor_si512(a, _mm512_set1_epi8(-128)); }
// codes + value where the byte's bit is set
inline Bytes add_bits(Bytes codes, const uint8_t * bits, char value) {
    uint64_t mask = 0;
    std::memcpy(&mask, bits, sizeof(mask));
    return _mm512_mask_add_epi8(codes, mask, codes, _mm512_set1_epi8(value));
}
template <int N> inline __m512i shift_lanes(__m512i a) { return _mm512_slli_epi32(a, N); }

#else

constexpr int kWide = 8;
constexpr int kRegisters = 16;
using FW = F8;
using IW = I8;
using Bytes = __m256i;

inline FW zero_wide() { return zero(); }
inline FW set1_wide(float x) { return set1(x); }
inline FW load_wide(const float * p) { return load(p); }
inline FW load_half_wide(const void * p) { return load_half(p); }
inline FW set1_half_wide(const void * p) {
    int16_t h = 0;
    std::memcpy(&h, p, sizeof(h));
    return {_mm256_cvtph_ps(_mm_set1_epi16(h))};
}
inline FW load_bf16_wide(const void * p) { return load_bf16(p); }
inline FW load_u8_wide(const uint8_t * p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))))};
}
inline FW load_i8_wide(const uint8_t * p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))))};
}

inline __m256i zero_bytes() { return _mm256_setzero_si256(); }
inline __m256i set1_lanes(int32_t x) { return _mm256_set1_epi32(x); }
inline Bytes load_bytes(const uint8_t * p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline Bytes low_half(Bytes a) { return _mm256_and_si256(a, _mm256_set1_epi8(15)); }
inline Bytes high_half(Bytes a) { return _mm256_and_si256(_mm256_srli_epi16(a, 4), _mm256_set1_epi8(15)); }
inline Bytes flip_sign(Bytes a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }
inline Bytes add_bits(Bytes codes, const uint8_t * bits, char value) {
    int32_t mask = 0;
    std::memcpy(&mask, bits, sizeof(mask));
    const __m256i spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32(mask), _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    const __m256i one = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, one), one);
    return _mm256_add_epi8(codes, _mm256_and_si256(set, _mm256_set1_epi8(value)));
}
template <int N> inline __m256i shift_lanes(__m256i a) { return _mm256_slli_epi32(a, N); }

#endif

inline Bytes broadcast4(const int8_t * p) { // four inputs to every lane
    int32_t x = 0;
    std::memcpy(&x, p, sizeof(x));
    return set1_lanes(x);
}

// ---- integer products ----------------------------------------------------------------------------------------------

template <Format F> constexpr int kHalves = F == Format::q6_k ? 2 : 1; // sums a block of 32 inputs has, one a scale

// What the codes' offset takes from each sum: a power of two times 8 times the sum of the inputs.
template <Format F, int RB>
ADASPARK_INLINE void start(const int32_t * minus8, const int32_t * minus8_half, int32_t rows,
                           IW (&s)[kHalves<F> * RB]) {
    each<RB>([&](auto r) {
        if constexpr (F == Format::q4_0) {
            s[r].v = set1_lanes(minus8[r]);
        } else if constexpr (F == Format::q5_0) {
            s[r].v = shift_lanes<1>(set1_lanes(minus8[r]));
        } else if constexpr (F == Format::q8_0) {
            s[r].v = shift_lanes<4>(set1_lanes(minus8[r]));
        } else if constexpr (F == Format::q6_k) {
            s[r].v = shift_lanes<2>(set1_lanes(minus8_half[r]));
            s[RB + r].v = shift_lanes<2>(set1_lanes(minus8_half[rows + r]));
        } else {
            s[r].v = zero_bytes();
        }
    });
}

// Codes of inputs 8v .. 8v + 3 and 8v + 4 .. 8v + 7 of a block.
template <Format F>
ADASPARK_INLINE void code_vectors(const uint8_t * codes, int part, int v, Bytes & first, Bytes & second) {
    constexpr int kBytes = 4 * kWide;
    if constexpr (F == Format::q8_0) {
        first = load_bytes(codes + 128 * v + kBytes * part);
        second = load_bytes(codes + 128 * v + 64 + kBytes * part);
    } else {
        const Bytes both = load_bytes(codes + 64 * v + kBytes * part);
        first = low_half(both);
        second = high_half(both);
        each<code_bits(F) - 4>([&](auto extra) {
            const uint8_t * bits = codes + 256 + 64 * extra + 16 * v + kBytes / 8 * part;
            first = add_bits(first, bits, 16 << extra);
            second = add_bits(second, bits + 8, 16 << extra);
        });
    }
}

#ifdef ADASPARK_VNNI

template <Format F, int RB>
ADASPARK_INLINE void block_dot(const uint8_t * codes, int part, const int8_t * a, const int32_t * minus8,
                               const int32_t * minus8_half, int32_t rows, IW (&s)[kHalves<F> * RB]) {
    start<F, RB>(minus8, minus8_half, rows, s);
    each<4>([&](auto v) {
        Bytes first;
        Bytes second;
        code_vectors<F>(codes, part, v, first, second);
        if constexpr (F == Format::q8_0) { // signed codes as unsigned ones, 128 too large: start() has taken it off
            first = flip_sign(first);
            second = flip_sign(second);
        }
        each<RB>([&](auto r) {
            IW & sum = s[(kHalves<F> == 2 ? v / 2 : 0) * RB + r];
            sum.v = ADASPARK_VNNI(sum.v, first, broadcast4(a + kCodes * r + 8 * v));
            sum.v = ADASPARK_VNNI(sum.v, second, broadcast4(a + kCodes * r + 8 * v + 4));
        });
    });
}

#else

template <Format F, int RB>
ADASPARK_INLINE void block_dot(const uint8_t * codes, int part, const int8_t * a, const int32_t * minus8,
                               const int32_t * minus8_half, int32_t rows, IW (&s)[kHalves<F> * RB]) {
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (F == Format::q8_0) {
        each<RB>([&](auto r) { s[r].v = zero_bytes(); });
        ADASPARK_KEEP_LOOP
        for (int u = 0; u < 8; ++u) {
            const Bytes code = load_bytes(codes + 64 * u + 32 * part);
            const Bytes size = _mm256_abs_epi8(code); // unsigned: 128 stays 128
            each<RB>([&](auto r) {
                const Bytes x = _mm256_sign_epi8(broadcast4(a + kCodes * r + 4 * u), code);
                s[r].v = _mm256_add_epi32(s[r].v, _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones));
            });
        }
    } else {
        start<F, RB>(minus8, minus8_half, rows, s);
        // A lane of 16 bits holds 16, 8 or 4 products of codes below 16, 32 or 64 with -127..127: 32,004 at most.
        constexpr int kGroup = 4 >> (code_bits(F) - 4);
        __m256i t[RB];
        each<RB>([&](auto r) { t[r] = zero_bytes(); });
        const auto widen = [&](int half) {
            each<RB>([&](auto r) {
                IW & sum = s[half * RB + r];
                sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(t[r], ones));
                t[r] = zero_bytes();
            });
        };
        ADASPARK_KEEP_LOOP
        for (int v = 0; v < 4; ++v) {
            Bytes first;
            Bytes second;
            code_vectors<F>(codes, part, v, first, second);
            each<RB>([&](auto r) {
                t[r] = _mm256_add_epi16(t[r], _mm256_maddubs_epi16(first, broadcast4(a + kCodes * r + 8 * v)));
                t[r] = _mm256_add_epi16(t[r], _mm256_maddubs_epi16(second, broadcast4(a + kCodes * r + 8 * v + 4)));
            });
            if (kGroup == 1 || (kGroup == 2 && v % 2 == 1)) {
                widen(kHalves<F> == 2 ? v / 2 : 0);
            }
        }
        if constexpr (kGroup == 4) {
            widen(0);
        }
    }
}

#endif

} // namespace adaspark::kernels::ADASPARK_SIMD
