// The kernels for AVX-512, whatever the flags of the build: callers pick them at load (kernels_generic.cpp). Vectors
// stay at 256 bits: what pays is twice the registers, masks, and packing in one instruction.
#include "core/kernels.h"

#include <cstddef>

namespace adaspark::core {

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl"))),   \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,popcnt,avx512f,avx512bw,avx512dq,avx512vl")
#endif

namespace x86_v4 {
#define AS_KERNELS_NAME "x86-64-v4"
#if !defined(__clang__)
#define AS_KERNELS_AVX512
#define AS_KERNELS_AVX // GCC does not turn the portable forms into single instructions; Clang does
#endif
#include "core/kernels_impl.h"
} // namespace x86_v4

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const Kernels & kernels_x86_v4() noexcept { return x86_v4::table; }

#else

const Kernels & kernels_x86_v4() noexcept { return kernels_generic(); }

#endif

} // namespace adaspark::core
