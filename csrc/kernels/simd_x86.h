// 8 lanes of AVX2, FMA and F16C; with ADASPARK_VNNI (an intrinsic) dot products of four bytes are one instruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

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
    float v[8];
    store(v, a);
    float out = v[0];
    for (const float x : v) {
        out = x > out ? x : out;
    }
    return out;
}
inline I8 round(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
inline F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline F8 pow2(I8 a) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(a.v, _mm256_set1_epi32(127)), 23))};
}
inline I8 sub1(I8 a, int32_t b) { return {_mm256_sub_epi32(a.v, _mm256_set1_epi32(b))}; }

inline int32_t store_int8(int8_t * p, const I8 (&a)[4]) {
    const __m256i lo = _mm256_packs_epi32(a[0].v, a[1].v);
    const __m256i hi = _mm256_packs_epi32(a[2].v, a[3].v);
    const __m256i bytes =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m128i b = _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256(quads, 1));
    const __m128i c = _mm_add_epi32(b, _mm_unpackhi_epi64(b, b));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 1)));
}

inline __m256i broadcast4(const int8_t * p) {
    int32_t x = 0;
    std::memcpy(&x, p, sizeof(x));
    return _mm256_set1_epi32(x);
}

template <int RB, int PB>
ADASPARK_INLINE void dot_q4(const uint8_t * w, std::size_t stride, const int8_t * a, I8 (&s)[RB * PB]) {
    const __m256i low = _mm256_set1_epi8(15);
    each<RB * PB>([&](auto i) { s[i].v = _mm256_setzero_si256(); });
    ADASPARK_KEEP_LOOP
    for (int v = 0; v < 4; ++v) {
        __m256i lo[PB];
        __m256i hi[PB];
        each<PB>([&](auto p) {
            const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + p * stride + 32 * v));
            lo[p] = _mm256_and_si256(codes, low);
            hi[p] = _mm256_and_si256(_mm256_srli_epi16(codes, 4), low);
        });
        each<RB>([&](auto r) {
            const __m256i first = broadcast4(a + 32 * r + 8 * v);
            const __m256i second = broadcast4(a + 32 * r + 8 * v + 4);
            each<PB>([&](auto p) {
                __m256i & sum = s[PB * r + p].v;
#ifdef ADASPARK_VNNI
                sum = ADASPARK_VNNI(sum, lo[p], first);
                sum = ADASPARK_VNNI(sum, hi[p], second);
#else
                // 16 products of at most 15 * 127 to a lane of 16 bits: 30480 at most
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(lo[p], first));
                sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(hi[p], second));
#endif
            });
        });
    }
#ifndef ADASPARK_VNNI
    each<RB * PB>([&](auto i) { s[i].v = _mm256_madd_epi16(s[i].v, _mm256_set1_epi16(1)); });
#endif
}

template <int RB, int PB>
ADASPARK_INLINE void dot_q8(const uint8_t * w, std::size_t stride, const int8_t * a, I8 (&s)[RB * PB]) {
    each<RB * PB>([&](auto i) { s[i].v = _mm256_setzero_si256(); });
    ADASPARK_KEEP_LOOP
    for (int v = 0; v < 8; ++v) {
        __m256i codes[PB];
        each<PB>(
            [&](auto p) { codes[p] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(w + p * stride + 32 * v)); });
        each<RB>([&](auto r) {
            const __m256i input = broadcast4(a + 32 * r + 4 * v);
            each<PB>([&](auto p) {
                const __m256i size = _mm256_abs_epi8(codes[p]); // unsigned: 128 stays 128
                const __m256i x = _mm256_sign_epi8(input, codes[p]);
                __m256i & sum = s[PB * r + p].v;
#ifdef ADASPARK_VNNI
                sum = ADASPARK_VNNI(sum, size, x);
#else
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), _mm256_set1_epi16(1)));
#endif
            });
        });
    }
}

} // namespace adaspark::kernels::ADASPARK_SIMD
