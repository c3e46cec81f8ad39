// Compiled for NEON with dot products and products of byte matrices; called only where the CPU has them.
#define ADASPARK_SIMD i8mm
#define ADASPARK_DOT
#define ADASPARK_I8MM
#include "kernels/simd_arm.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kI8mm = i8mm::table("i8mm");
}
