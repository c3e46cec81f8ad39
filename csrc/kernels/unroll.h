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
