// The scales of a packed panel, over the wide lanes of the `simd_*.h` included before this file.
#pragma once

#include "kernels/format.h"
#include "kernels/unroll.h"

namespace adaspark::kernels::ADASPARK_SIMD {

constexpr int32_t kHalfBytes = 2 * kWide; // of the f16 scales of one part

// The scales of one part of a panel, read front to back.
template <Format F> struct Scales {
    const uint8_t * at; // of the next block of 32 inputs
    int part;
    FW d;        // super-blocks: of the whole
    FW e;        // super-blocks: of the minimums
    FW scale[2]; // of this block's halves
    FW minimum;

    ADASPARK_INLINE void next(int32_t block) {
        if constexpr (is_super(F)) {
            if (block % (kSuper / kBlock) == 0) {
                d = load_half_wide(at + kHalfBytes * part);
                if constexpr (has_minimum(F)) {
                    e = sub(zero_wide(), load_half_wide(at + 32 + kHalfBytes * part));
                }
                at += scale_head(F);
            }
            const uint8_t * first = at + kWide * part;
            if constexpr (F == Format::q6_k) {
                scale[0] = mul(d, load_i8_wide(first));
                scale[1] = mul(d, load_i8_wide(first + 16));
            } else {
                scale[0] = mul(d, load_u8_wide(first));
                minimum = mul(e, load_u8_wide(first + 16));
            }
        } else {
            scale[0] = load_half_wide(at + kHalfBytes * part);
            if constexpr (has_minimum(F)) {
                minimum = load_half_wide(at + 32 + kHalfBytes * part);
            }
        }
        at += scale_bytes(F);
    }
};

} // namespace adaspark::kernels::ADASPARK_SIMD
