// The bodies of kernels.h, included once per instruction set inside a namespace. GNU vector extensions (GCC, Clang):
// four doubles a vector, split or widened by the compiler to what the machine has. Nothing here may call an inline
// function of the standard library: a copy compiled for AVX2 could be the one the linker keeps for everybody.

typedef double V4d __attribute__((vector_size(32)));
typedef int64_t V4i __attribute__((vector_size(32)));
typedef float V8f __attribute__((vector_size(32)));
typedef int32_t V8i __attribute__((vector_size(32)));
typedef int64_t V2i __attribute__((vector_size(16)));
typedef char V16c __attribute__((vector_size(16)));

#define AS_INLINE static inline __attribute__((always_inline))

AS_INLINE V4d splat(double x) { return V4d{x, x, x, x}; }
AS_INLINE V4d load(const double * p) {
    V4d v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
AS_INLINE void store(double * p, const V4d & v) { __builtin_memcpy(p, &v, sizeof v); }
AS_INLINE V4d select(const V4i & mask, const V4d & a, const V4d & b) {
    return (V4d)((mask & (V4i)a) | (~mask & (V4i)b));
}
#ifdef AS_KERNELS_AVX
AS_INLINE V4d vmin(const V4d & a, const V4d & b) { return (V4d)__builtin_ia32_minpd256(a, b); }
AS_INLINE V4d vmax(const V4d & a, const V4d & b) { return (V4d)__builtin_ia32_maxpd256(a, b); }
AS_INLINE V4d vsqrt(const V4d & v) { return (V4d)__builtin_ia32_sqrtpd256(v); }
#else
AS_INLINE V4d vmin(const V4d & a, const V4d & b) { return select(a < b, a, b); }
AS_INLINE V4d vmax(const V4d & a, const V4d & b) { return select(a > b, a, b); }
AS_INLINE V4d vsqrt(const V4d & v) {
    return V4d{__builtin_sqrt(v[0]), __builtin_sqrt(v[1]), __builtin_sqrt(v[2]), __builtin_sqrt(v[3])};
}
#endif
AS_INLINE double sum(const V4d & v) { return (v[0] + v[2]) + (v[1] + v[3]); }

AS_INLINE V8f splat8(float x) { return V8f{x, x, x, x, x, x, x, x}; }
AS_INLINE V8f load8(const float * p) {
    V8f v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}
AS_INLINE void store8(float * p, const V8f & v) { __builtin_memcpy(p, &v, sizeof v); }
AS_INLINE V8f select8(const V8i & mask, const V8f & a, const V8f & b) {
    return (V8f)((mask & (V8i)a) | (~mask & (V8i)b));
}
#ifdef AS_KERNELS_AVX
AS_INLINE V8f vmin8(const V8f & a, const V8f & b) { return (V8f)__builtin_ia32_minps256(a, b); }
AS_INLINE V8f vmax8(const V8f & a, const V8f & b) { return (V8f)__builtin_ia32_maxps256(a, b); }
#else
AS_INLINE V8f vmin8(const V8f & a, const V8f & b) { return select8(a < b, a, b); }
AS_INLINE V8f vmax8(const V8f & a, const V8f & b) { return select8(a > b, a, b); }
#endif
AS_INLINE V4d lower(const V8f & v) { return __builtin_convertvector(__builtin_shufflevector(v, v, 0, 1, 2, 3), V4d); }
AS_INLINE V4d upper(const V8f & v) { return __builtin_convertvector(__builtin_shufflevector(v, v, 4, 5, 6, 7), V4d); }
AS_INLINE float sum8(const V8f & v) { return ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7])); }

// exp to about 1e-7 relative on [-80, 80], clamped outside: reduction by multiples of ln 2, then degree 6.
AS_INLINE V8f vexp8(const V8f & unclamped) {
    const V8f x = vmin8(vmax8(unclamped, splat8(-80.0F)), splat8(80.0F));
    const V8f magic = splat8(12582912.0F); // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
    const V8f shifted = x * splat8(1.44269504F) + magic;
    const V8f k = shifted - magic;
    const V8f r = (x - k * splat8(0.693145752F)) - k * splat8(1.42860677e-6F);
    const V8f r2 = r * r;
    const V8f low = (splat8(1.0F) + r) + r2 * (splat8(0.5F) + r * splat8(1.0F / 6.0F));
    const V8f high = (splat8(1.0F / 24.0F) + r * splat8(1.0F / 120.0F)) + r2 * splat8(1.0F / 720.0F);
    const V8i bits = ((V8i)shifted - (V8i)magic + 127) << 23;
    return (low + (r2 * r2) * high) * (V8f)bits;
}

// ln to about 1e-7 absolute near 1, for positive normal x: mantissa to [sqrt(1/2), sqrt(2)), then atanh series.
AS_INLINE V8f vlog8(const V8f & x) {
    const V8i bits = (V8i)x;
    const V8i exponent = (bits - 0x3F3504F3) >> 23;
    const V8f m = (V8f)(bits - (exponent << 23));
    const V8f magic = splat8(12582912.0F);
    const V8f k = (V8f)(exponent + (V8i)magic) - magic;
    const V8f f = (m - 1.0F) / (m + 1.0F);
    const V8f s = f * f;
    const V8f poly =
        (splat8(2.0F / 3.0F) + s * splat8(2.0F / 5.0F)) + (s * s) * (splat8(2.0F / 7.0F) + s * splat8(2.0F / 9.0F));
    return k * splat8(0.693145752F) + (2.0F * f + (f * s * poly + k * splat8(1.42860677e-6F)));
}

// ln to about 1e-15 absolute near 1, for positive normal x: mantissa to [sqrt(1/2), sqrt(2)), then atanh series.
AS_INLINE V4d vlog(const V4d & x) {
    const V4i bits = (V4i)x;
    const V4i offset = bits - 0x3FE6A09E667F3BCDLL; // distance from sqrt(1/2), so the exponent rounds the way we want
    const V4i exponent = offset >> 52;
    const V4d m = (V4d)(bits - (exponent << 52));
    const V4d magic = splat(6755399441055744.0);
    const V4d k = (V4d)(exponent + (V4i)magic) - magic;
    const V4d f = (m - 1.0) / (m + 1.0);
    const V4d s = f * f;
    const V4d s2 = s * s;
    const V4d a = splat(2.0 / 3.0) + s * splat(2.0 / 5.0);
    const V4d b = splat(2.0 / 7.0) + s * splat(2.0 / 9.0);
    const V4d c = splat(2.0 / 11.0) + s * splat(2.0 / 13.0);
    const V4d d = splat(2.0 / 15.0) + s * splat(2.0 / 17.0);
    const V4d s4 = s2 * s2;
    const V4d poly = (a + s2 * b) + s4 * (c + s2 * d);
    return k * splat(0.693147180369123816490) + (2.0 * f + (f * s * poly + k * splat(1.90821492927058770002e-10)));
}

static void sigmoid(float * x, int32_t n) noexcept {
    for (int32_t i = 0; i < n; i += 8) {
        store8(x + i, 1.0F / (1.0F + vexp8(-load8(x + i))));
    }
}

static void log_lanes(double * x, int32_t n) noexcept {
    for (int32_t i = 0; i < n; i += 4) {
        store(x + i, vlog(load(x + i)));
    }
}

#include "core/kernels_block.h"
#include "core/kernels_learn.h"
#include "core/kernels_rank.h"

static const Kernels table = {AS_KERNELS_NAME,  rank_descending, block_features, block_softmax, sigmoid,
                              log_lanes,        price_widths,    context_basis,  law_step,      ftrl_steps,
                              block_likelihood, block_gradients, head_estimate,  block_path_q};

#undef AS_INLINE
