// Compiled for AVX-512 (BW, VL, VNNI) on top of AVX2; called only where the CPU has them.
#define ADASPARK_SIMD avx512vnni
#define ADASPARK_AVX512
#define ADASPARK_VNNI _mm512_dpbusd_epi32
#include "kernels/simd_x86.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kAvx512Vnni = avx512vnni::table("avx512vnni");
}
