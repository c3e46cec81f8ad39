// Compiled for AVX-VNNI on top of AVX2; called only where the CPU has it.
#define ADASPARK_SIMD avxvnni
#define ADASPARK_VNNI _mm256_dpbusd_avx_epi32
#include "kernels/simd_x86.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kAvxVnni = avxvnni::table("avxvnni");
}
