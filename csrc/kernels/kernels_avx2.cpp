// Compiled for AVX2, FMA and F16C; called only where the CPU has them.
#define ADASPARK_SIMD avx2
#include "kernels/simd_x86.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kAvx2 = avx2::table("avx2");
}
