// The kernels, written once over the 8 lanes of the `simd_*.h` included before this file.
#pragma once

#include "kernels/kernel_products.h"

#include "kernels/kernel_attention.h"
#include "kernels/kernel_cache.h"
#include "kernels/kernel_rows.h"
#include "kernels/kernels.h"

namespace adaspark::kernels::ADASPARK_SIMD {

constexpr Kernels table(const char * name) {
    return {name, gemm, rms_norm, quantize, silu_mul, mix, short_conv, attend, merge, store_key, store_value};
}

} // namespace adaspark::kernels::ADASPARK_SIMD
