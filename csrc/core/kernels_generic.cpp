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

const Kernels & detail::select_kernels() noexcept {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return kernels_x86_v3();
    }
#endif
    return kernels_generic();
}

} // namespace adaspark::core
