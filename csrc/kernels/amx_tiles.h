// AMX tile instructions (the intrinsics of older compilers do not say that they read memory) and how tiles are set up
// for products.
#pragma once

#include <cstdint>

#include "kernels/unroll.h"

// On a lambda: it is part of the function around it.
#define ADASPARK_INLINED __attribute__((always_inline))

namespace adaspark::kernels::amx {

constexpr int32_t kTileRows = 16;
constexpr int32_t kTileRow = 64; // bytes of a row of codes or sums

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {}; // of a row
    uint8_t rows[16] = {};
};

// Tiles 0 to 3 are sums, 4 and 5 activations and codes, `inputs` deep (64, 32 or 16).
constexpr int kSums = 4;
constexpr int kTileA = 4;
constexpr int kTileB = 5;

constexpr TileConfig tile_config(int32_t inputs, int32_t rows) {
    TileConfig config;
    for (int t = 0; t <= kTileB; ++t) {
        config.bytes[t] = static_cast<uint16_t>(t == kTileA ? inputs : kTileRow);
        config.rows[t] = static_cast<uint8_t>(t == kTileB ? inputs / 4 : rows);
    }
    return config;
}

inline void load_config(const TileConfig & config) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }
inline void store_config(TileConfig & out) { __asm__ volatile("sttilecfg %0" : "=m"(out)); }
template <int T> ADASPARK_INLINE void tile_load(const void * p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T> ADASPARK_INLINE void tile_store(void * p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T> ADASPARK_INLINE void tile_zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(T)); }

// C += A * B of signed bytes.
template <int C> ADASPARK_INLINE void tile_product(const void * activations, int64_t stride, const void * codes) {
    tile_load<kTileB>(codes, kTileRow);
    tile_load<kTileA>(activations, stride);
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(kTileA), "i"(kTileB));
}

// Sums go to memory; the tile is zero again.
template <int C> ADASPARK_INLINE void tile_keep(int32_t * sums) {
    tile_store<C>(sums, kTileRow);
    tile_zero<C>();
}

} // namespace adaspark::kernels::amx
