// Keys and values stored into the cache, over the lanes of the `simd_*.h` included before this file.
#pragma once

#include <cstring>

#include "kernels/kernel_rows.h"
#include "kernels/kernels.h"

namespace adaspark::kernels::ADASPARK_SIMD {

// Eight numbers, `step` numbers apart.
inline void store_strided(const float * x, Cache cache, uint8_t * out, int32_t step) {
    uint16_t h[8];
    store_half(h, load(x));
    for (int32_t j = 0; j < 8; ++j) {
        if (cache == Cache::f16) {
            std::memcpy(out + static_cast<std::ptrdiff_t>(2 * j) * step, h + j, 2);
        } else {
            std::memcpy(out + static_cast<std::ptrdiff_t>(4 * j) * step, x + j, 4);
        }
    }
}

// n numbers of a slot: `out` [n] is `step` numbers apart, `scales` [n / 32] of q8_0 `scale_step` apart.
inline void store_slot(const float * x, int32_t n, Cache cache, uint8_t * out, int32_t step, uint8_t * scales,
                       int32_t scale_step) {
    if (cache != Cache::q8_0) {
        for (int32_t i = 0; i < n; i += 8) {
            store_strided(x + i, cache, out + static_cast<std::ptrdiff_t>(number_bytes(cache)) * i * step, step);
        }
        return;
    }
    for (int32_t b = 0; b < n / kBlock; ++b) {
        int8_t codes[kBlock];
        int32_t total[2];
        const uint16_t d = float_to_half(codes_of(x + b * kBlock, codes, total));
        std::memcpy(scales + static_cast<std::ptrdiff_t>(2 * b) * scale_step, &d, 2);
        for (int32_t i = 0; i < kBlock; ++i) {
            out[static_cast<std::ptrdiff_t>(b * kBlock + i) * step] = static_cast<uint8_t>(codes[i]);
        }
    }
}

void store_value(const float * x, int32_t n, Cache cache, void * head_values, int32_t slot) {
    uint8_t * group = static_cast<uint8_t *>(head_values) + slot / kSlots * group_bytes(cache, n);
    const int32_t in = slot % kSlots;
    store_slot(x, n, cache, group + scales_bytes(cache, n) + number_bytes(cache) * static_cast<std::size_t>(in * n), 1,
               group + 2 * (in * (n / kBlock)), 1);
}

void store_key(const float * x, int32_t n, Cache cache, void * keys, int32_t slot) {
    uint8_t * group = static_cast<uint8_t *>(keys) + slot / kSlots * group_bytes(cache, n);
    const int32_t in = slot % kSlots;
    store_slot(x, n, cache, group + scales_bytes(cache, n) + number_bytes(cache) * static_cast<std::size_t>(in), kSlots,
               group + 2 * in, kSlots);
}

} // namespace adaspark::kernels::ADASPARK_SIMD
