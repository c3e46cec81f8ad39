// What every arm64 CPU has.
#define ADASPARK_SIMD neon
#include "kernels/simd_arm.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kNeon = neon::table("neon");
}
