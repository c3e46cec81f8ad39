// Compiled for NEON with dot products; called only where the CPU has them.
#define ADASPARK_SIMD dotprod
#define ADASPARK_DOT
#include "kernels/simd_arm.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kDotprod = dotprod::table("dotprod");
}
