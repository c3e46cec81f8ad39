// The tables this build may have; which of them it has is ADASPARK_KERNELS_X86 or _ARM, set by CMake.
#pragma once

#include "kernels/kernels.h"

namespace adaspark::kernels {

extern const Kernels kPortable;
extern const Kernels kAvx2;
extern const Kernels kAvxVnni;
extern const Kernels kAvx512Vnni;
const Kernels & amx_table();
extern const Kernels kNeon;
extern const Kernels kDotprod;
extern const Kernels kI8mm;

} // namespace adaspark::kernels
