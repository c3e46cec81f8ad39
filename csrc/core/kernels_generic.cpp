// Baseline kernels, and the choice made at load.
#include "core/kernels.h"

#include <cstddef>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi" // vectors never cross a function that is not inlined
#endif

namespace adaspark::core {

namespace generic {
#define AS_KERNELS_NAME "generic"
#include "core/kernels_impl.h"
} // namespace generic

const Kernels & kernels_generic() noexcept { return generic::table; }

int32_t runnable_kernels(const Kernels * (&out)[kKernelVariants]) noexcept {
    int32_t n = 0;
    out[n++] = &kernels_generic();
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt")) {
        out[n++] = &kernels_x86_v3();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            out[n++] = &kernels_x86_v4();
        }
    }
#endif
    return n;
}

const Kernels & detail::select_kernels() noexcept {
    const Kernels * runnable[kKernelVariants];
    return *runnable[runnable_kernels(runnable) - 1];
}

} // namespace adaspark::core
