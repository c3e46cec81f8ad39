// Products of many rows on AMX tiles. One tile instruction makes the integer sums of 32 inputs, 16 columns and up to 16
// rows; they are scaled as in kernel_body.h, operation by operation, so results are the same bits. Fewer rows, F32
// activations and everything else are the AVX-512 table's.
#define ADASPARK_SIMD amx
#define ADASPARK_AVX512
#define ADASPARK_VNNI _mm512_dpbusd_epi32
#include "kernels/simd_x86.h"

#include "kernels/scales.h"
#include "kernels/tables.h"

namespace adaspark::kernels {

namespace amx {

constexpr int32_t kFewest = 9;   // rows from which tiles pay
constexpr int32_t kMost = 16;    // rows of a tile
constexpr int32_t kLeast = 8;    // rows of a group when more than kMost are cut into groups of about equal size
constexpr int32_t kAhead = 8192; // bytes: how far ahead weights are asked for, across panels

// A block passes through stages, each this many blocks behind the one before: a tile load waits for stores to the same
// bytes to reach the cache, and nothing younger retires meanwhile.
constexpr int32_t kMultiply = 2; // behind the unpacking of its codes
constexpr int32_t kStore = kMultiply + 1;
constexpr int32_t kScale = kStore + 2;
constexpr int32_t kRing = 4; // blocks that hold codes or sums at once, rounded up to a power of two

// ---- tiles (the intrinsics of older compilers do not say that they read memory) -----------------------------------

struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start = 0;
    uint8_t reserved[14] = {};
    uint16_t bytes[16] = {}; // of a row
    uint8_t rows[16] = {};
};

inline void tile_config(const TileConfig & config) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }
inline void tile_config_of(TileConfig & out) { __asm__ volatile("sttilecfg %0" : "=m"(out)); }
template <int T> ADASPARK_INLINE void tile_load(const void * p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
template <int T> ADASPARK_INLINE void tile_store(void * p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
}
// C = A * B of signed bytes
template <int C, int A, int B> ADASPARK_INLINE void tile_dot() {
    __asm__ volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

// Sums are tiles 0..3 (two halves of even blocks, two of odd ones), activations 4 and 5, codes 6 and 7.
template <Format F> void configure(int32_t rows) {
    constexpr int32_t kInputs = kBlock / kHalves<F>;
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
        config.bytes[t] = t == 4 || t == 5 ? kInputs : 4 * kColumns;
        config.rows[t] = static_cast<uint8_t>(t >= 6 ? kInputs / 4 : rows);
    }
    tile_config(config);
}

// ---- codes ---------------------------------------------------------------------------------------------------------

// The codes of 32 inputs, less their offset, as signed bytes: a bit matrix takes the low or the high half of each byte.
template <Format F> ADASPARK_INLINE void unpack(const uint8_t * codes, uint8_t * out) {
    constexpr bool kNegative = F == Format::q4_0; // 4 bits less 8: the highest one turned, over those above it
    const __m512i low = _mm512_set1_epi64(kNegative ? 0x0102040808080808 : 0x0102040800000000);
    const __m512i high = _mm512_set1_epi64(kNegative ? 0x1020408080808080 : 0x1020408000000000);
    constexpr int kTurned = kNegative ? 0xf8 : (256 - code_offset(F)) & 0xff; // bits above the four: less 16 or 32
    each<4>([&](auto v) {
        const Bytes both = load_bytes(codes + 64 * v);
        Bytes first = _mm512_gf2p8affine_epi64_epi8(both, low, kTurned);
        Bytes second = _mm512_gf2p8affine_epi64_epi8(both, high, kTurned);
        each<code_bits(F) - 4>([&](auto extra) {
            const uint8_t * bits = codes + 256 + 64 * extra + 16 * v;
            first = add_bits(first, bits, 16 << extra);
            second = add_bits(second, bits + 8, 16 << extra);
        });
        _mm512_store_si512(out + 128 * v, first);
        _mm512_store_si512(out + 128 * v + 64, second);
    });
}

template <Format F> struct alignas(64) Scratch {
    int32_t sums[kRing][kHalves<F> * kMost * kColumns];
    uint8_t code[kRing][kBlock * kColumns];
};

// ---- products ------------------------------------------------------------------------------------------------------

// Rows row .. row + RB - 1 of a panel; tiles begin `skip` rows before.
template <Format F, int RB> void panel_store(const Gemm & g, int32_t panel, int32_t row, int32_t skip, Scratch<F> & s) {
    constexpr int32_t kInputs = kBlock / kHalves<F>;
    const uint8_t * w = g.w + static_cast<std::size_t>(panel) * panel_bytes(F, g.k);
    const uint8_t * codes = w + panel_scales(F, g.k);
    const int32_t blocks = g.k / kBlock;
    FW acc[RB];
    each<RB>([&](auto r) { acc[r] = zero_wide(); });
    Scales<F> scales = {w, 0, {}, {}, {}, {}};

    const auto multiply = [&](int32_t b, auto odd) {
        const uint8_t * code = F == Format::q8_0 ? codes + static_cast<int64_t>(b) * code_bytes(F) : s.code[b % kRing];
        const int8_t * a = g.a.q + (static_cast<int64_t>(b) * g.a.rows + row - skip) * kBlock;
        each<kHalves<F>>([&](auto h) {
            constexpr int kPair = kHalves<F> == 2 ? h : odd;
            tile_load<6 + kPair>(code + h * kInputs * kColumns, 4 * kColumns);
            tile_load<4 + kPair>(a + h * kInputs, kBlock);
            tile_dot<2 * odd + h, 4 + kPair, 6 + kPair>();
        });
    };
    const auto keep = [&](int32_t b, auto odd) {
        each<kHalves<F>>(
            [&](auto h) { tile_store<2 * odd + h>(s.sums[b % kRing] + h * kMost * kColumns, 4 * kColumns); });
    };
    for (int32_t i = 0; i < blocks + kScale; ++i) {
        if (i < blocks) {
            const uint8_t * code = codes + static_cast<int64_t>(i) * code_bytes(F);
            for (int j = 0; j <= code_bytes(F) && row == 0; j += 64) {
                ADASPARK_PREFETCH(code + kAhead + j);
            }
            if constexpr (F != Format::q8_0) {
                unpack<F>(code, s.code[i % kRing]);
            }
        }
        if (const int32_t b = i - kMultiply; b >= 0 && b < blocks) {
            b % 2 == 0 ? multiply(b, Index<0>{}) : multiply(b, Index<1>{});
        }
        if (const int32_t b = i - kStore; b >= 0 && b < blocks) {
            b % 2 == 0 ? keep(b, Index<0>{}) : keep(b, Index<1>{});
        }
        if (const int32_t b = i - kScale; b >= 0) {
            const int64_t at = static_cast<int64_t>(b) * g.a.rows + row;
            const int32_t * sums = s.sums[b % kRing] + skip * kColumns;
            scales.next(b);
            each<RB>([&](auto r) {
                const FW d = set1_wide(g.a.d[at + r]);
                each<kHalves<F>>([&](auto h) {
                    const IW sum = {_mm512_load_si512(sums + (h * kMost + r) * kColumns)};
                    acc[r] = fma(to_float(sum), mul(scales.scale[h], d), acc[r]);
                });
                if constexpr (has_minimum(F)) {
                    acc[r] = fma(scales.minimum, set1_wide(g.a.dsum[at + r]), acc[r]);
                }
            });
        }
    }

    const int64_t column = static_cast<int64_t>(panel) * kColumns;
    each<RB>([&](auto r) {
        float * out = g.out + (row + r) * g.ldo + column - static_cast<int64_t>(g.panel_begin) * kColumns;
        FW y = acc[r];
        if (g.bias != nullptr) {
            y = add(y, load_wide(g.bias + column));
        }
        store(out, g.add ? add(load_wide(out), y) : y);
    });
}

template <Format F, int N>
void panel_some_rows(const Gemm & g, int32_t panel, int32_t row, int32_t n, int32_t skip, Scratch<F> & s) {
    if constexpr (N > kLeast) {
        if (n < N) {
            return panel_some_rows<F, N - 1>(g, panel, row, n, skip, s);
        }
    }
    panel_store<F, N>(g, panel, row, skip, s);
}

template <Format F> void gemm_format(const Gemm & g) {
    Scratch<F> scratch;
    TileConfig before; // ggml sets its own once a thread and relies on it
    tile_config_of(before);
    const int32_t groups = (g.rows + kMost - 1) / kMost;
    const int32_t largest = (g.rows + groups - 1) / groups; // groups of about equal size, the larger ones first
    configure<F>(largest);
    for (int32_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
        for (int32_t i = 0, row = 0; i < groups; ++i) {
            const int32_t n = (g.rows - row + groups - i - 1) / (groups - i);
            panel_some_rows<F, kMost>(g, panel, row, n, largest - n, scratch);
            row += n;
        }
    }
    tile_config(before);
}

void gemm(const Gemm & g) {
    if (g.rows < kFewest) {
        return kAvx512Vnni.gemm(g);
    }
    switch (g.format) {
    case Format::q8_0:
        return gemm_format<Format::q8_0>(g);
    case Format::q4_0:
        return gemm_format<Format::q4_0>(g);
    case Format::q4_1:
        return gemm_format<Format::q4_1>(g);
    case Format::q5_0:
        return gemm_format<Format::q5_0>(g);
    case Format::q5_1:
        return gemm_format<Format::q5_1>(g);
    case Format::q4_k:
        return gemm_format<Format::q4_k>(g);
    case Format::q5_k:
        return gemm_format<Format::q5_k>(g);
    case Format::q6_k:
        return gemm_format<Format::q6_k>(g);
    default:
        return kAvx512Vnni.gemm(g);
    }
}

} // namespace amx

const Kernels & amx_table() {
    static const Kernels table = [] {
        Kernels t = kAvx512Vnni;
        t.name = "amx";
        t.gemm = amx::gemm;
        return t;
    }();
    return table;
}

} // namespace adaspark::kernels
