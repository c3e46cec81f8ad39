#define ADASPARK_SIMD portable
#include "kernels/simd_portable.h"

#include "kernels/kernel_body.h"
#include "kernels/tables.h"

namespace adaspark::kernels {
const Kernels kPortable = portable::table("portable");
}
