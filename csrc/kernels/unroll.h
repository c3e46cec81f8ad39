// Loops whose index is a constant in every turn, so that small arrays of vectors stay in registers.
#pragma once

#if defined(_MSC_VER)
#define ADASPARK_INLINE __forceinline
#define ADASPARK_KEEP_LOOP
#else
#define ADASPARK_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define ADASPARK_KEEP_LOOP _Pragma("clang loop unroll(disable)")
#else
#define ADASPARK_KEEP_LOOP _Pragma("GCC unroll 1")
#endif
#endif

#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
#include <xmmintrin.h>
#define ADASPARK_PREFETCH(p) _mm_prefetch(reinterpret_cast<const char *>(p), _MM_HINT_T0)
#elif defined(__GNUC__)
#define ADASPARK_PREFETCH(p) __builtin_prefetch(p)
#else
#define ADASPARK_PREFETCH(p)
#endif

namespace adaspark::kernels {

template <int N> struct Index {
    constexpr operator int() const { return N; }
};

template <int N, typename F> ADASPARK_INLINE void each(F && f) {
    if constexpr (N > 0) {
        each<N - 1>(f);
        f(Index<N - 1>{});
    }
}

} // namespace adaspark::kernels
