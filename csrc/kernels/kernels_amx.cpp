// Products of several rows on AMX tiles. A tile instruction makes the integer sums of many inputs, 16 columns and up to
// 16 rows; they are scaled as in kernel_body.h, operation by operation, so results are the same bits. Few rows, F32
// activations and everything else are the AVX-512 table's.
//
// A tile's sums cost the same whether its rows are all used or not. So up to 8 rows, two blocks share one: activations
// are stored with zeros beside them, rows of [even block | 0] and after them rows of [0 | odd block].
#define ADASPARK_SIMD amx
#define ADASPARK_AVX512
#define ADASPARK_VNNI _mm512_dpbusd_epi32
#include "kernels/simd_x86.h"

#include <algorithm>

#include "kernels/amx_tiles.h"
#include "kernels/scales.h"
#include "kernels/tables.h"

namespace adaspark::kernels {

namespace amx {

constexpr int32_t kFewest = 5;         // rows from which tiles pay, where two blocks can share one
constexpr int32_t kMost = kTileRows;   // rows of a product
constexpr int32_t kShared = kMost / 2; // rows up to which two blocks share a tile
constexpr int32_t kAhead = 8192;       // bytes: how far ahead weights are asked for, across panels

// A panel is multiplied some tiles at a time: first all their codes are unpacked, then come all products, then all sums
// are scaled. A load from bytes whose stores have not reached the cache yet waits for them, and nothing younger retires
// meanwhile; what lies between is still in the first cache. Every second line of the weights wanted next is asked for
// between the products and the others while sums are scaled, as unpacking alone would ask for too many at once.
constexpr int32_t kTiles = 6;
template <Format F> constexpr int32_t kRun = kBlock / kHalves<F>; // inputs that have a sum of their own
template <Format F, bool Shared> constexpr int32_t kBlocks = kTiles * (Shared ? 2 : 1) / kHalves<F>;

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

struct alignas(64) Scratch {
    int32_t sums[kTiles][kMost * kColumns];
    uint8_t code[2 * kTiles][kBlock * kColumns];
    int8_t last[kMost * kCodes]; // activations of the last tile, which always loads kMost rows
};

// ---- products ------------------------------------------------------------------------------------------------------

// The sums of `count` blocks from `first` on, some of a panel's.
template <Format F, bool Shared>
ADASPARK_INLINE void sums_of(const Gemm & g, const uint8_t * codes, int32_t first, int32_t count, int32_t row,
                             Scratch & s) {
    constexpr int32_t kInputs = Shared ? 2 * kBlock : kRun<F>; // of a tile
    constexpr int32_t kBytes = kInputs * kColumns;
    const uint8_t * ahead = codes + kAhead;
    const uint8_t * code = s.code[0];
    if constexpr (F == Format::q8_0) {
        code = codes;
    }
    for (int32_t b = 0; b < count; ++b, codes += code_bytes(F)) {
        if constexpr (F != Format::q8_0) {
            unpack<F>(codes, s.code[b]);
        } else if (Shared && b == count - 1 && b % 2 == 0) { // half a tile: what would be read after it may not exist
            std::memcpy(s.code[0], codes, code_bytes(F));
        }
    }
    const int32_t tiles = (count * kBlock + kInputs - 1) / kInputs;
    const int32_t last = Shared ? (g.k / kBlock - 1) / 2 * 2 : g.k / kBlock - 1; // first block of the last tile
    const auto multiply = [&](int32_t t, auto tile) ADASPARK_INLINED {
        const uint8_t * from = code + static_cast<int64_t>(t) * kBytes;
        constexpr int32_t kPacked = code_bytes(F) * kInputs / kBlock;
        for (int j = 64; j < kPacked && kHalves<F> == 1 && row == 0; j += 128) {
            ADASPARK_PREFETCH(ahead + t * kPacked + j);
        }
        if (F == Format::q8_0 && Shared && 2 * t == count - 1) {
            from = s.code[0];
        }
        const int32_t b = first + (Shared ? 2 * t : t / kHalves<F>);
        const int8_t * a = b == last ? s.last + b % 2 * kBlock : g.a.codes(b, row);
        tile_product<tile, kInputs>(a + (Shared ? 0 : t % kHalves<F> * kInputs), kCodes, from);
    };
    for (int32_t t = 0; t < tiles; t += 2) { // the sums of one are stored behind the product of the next
        multiply(t, Index<0>{});
        if (t > 0) {
            tile_keep<1>(s.sums[t - 1]);
        }
        if (t + 1 < tiles) {
            multiply(t + 1, Index<1>{});
        }
        tile_keep<0>(s.sums[t]);
    }
    if (tiles % 2 == 0) {
        tile_keep<1>(s.sums[tiles - 1]);
    }
}

// One block's sums, scaled.
template <Format F, int RB>
ADASPARK_INLINE void add_block(const Scales<F> & scales, const int32_t * sums, const float * d, const float * dsum,
                               FW (&acc)[RB]) {
    each<RB>([&](auto r) ADASPARK_INLINED {
        const FW scale = set1_wide(d[r]);
        each<kHalves<F>>([&](auto h) ADASPARK_INLINED {
            const IW sum = {_mm512_load_si512(sums + (h * kMost + r) * kColumns)};
            acc[r] = fma(to_float(sum), mul(scales.scale[h], scale), acc[r]);
        });
        if constexpr (has_minimum(F)) {
            acc[r] = fma(scales.minimum, set1_wide(dsum[r]), acc[r]);
        }
    });
}

// Rows row .. row + RB - 1 of a panel; s.last is theirs. Not shared: RB is at least kShared.
template <Format F, int RB, bool Shared> void panel_store(const Gemm & g, int32_t panel, int32_t row, Scratch & s) {
    constexpr int32_t kUnit = Shared ? 2 : 1; // blocks of a turn: a multiple of it
    const uint8_t * w = g.w + static_cast<std::size_t>(panel) * panel_bytes(F, g.k);
    const uint8_t * codes = w + panel_scales(F, g.k);
    const int32_t blocks = g.k / kBlock;
    FW acc[RB];
    each<RB>([&](auto r) ADASPARK_INLINED { acc[r] = zero_wide(); });
    Scales<F> scales = {w, 0, {}, {}, {}, {}};
    const int32_t turns = (blocks + kBlocks<F, Shared> - 1) / kBlocks<F, Shared>;
    const int32_t even = ((blocks + turns - 1) / turns + kUnit - 1) / kUnit * kUnit; // about equally many a turn
    for (int32_t first = 0; first < blocks; first += even) {
        const int32_t count = std::min(even, blocks - first);
        sums_of<F, Shared>(g, codes + static_cast<int64_t>(first) * code_bytes(F), first, count, row, s);
        const float * d = g.a.d + static_cast<int64_t>(first) * g.a.rows + row;
        const float * dsum = g.a.dsum + static_cast<int64_t>(first) * g.a.rows + row;
        for (int32_t b = 0; b < count; ++b, d += g.a.rows, dsum += g.a.rows) {
            const int32_t * sums = Shared ? s.sums[b / 2] + b % 2 * g.a.rows * kColumns : s.sums[b * kHalves<F>];
            const uint8_t * ahead = codes + static_cast<int64_t>(first + b) * code_bytes(F) + kAhead;
            for (int j = 0; j <= code_bytes(F) && row == 0; j += kHalves<F> == 1 ? 128 : 64) {
                ADASPARK_PREFETCH(ahead + j);
            }
            scales.next(first + b);
            add_block<F, RB>(scales, sums, d, dsum, acc);
        }
    }

    const int64_t column = static_cast<int64_t>(panel) * kColumns;
    const int64_t ldo = g.ldo;
    const bool more = g.add;
    float * out = g.out + row * ldo + column - static_cast<int64_t>(g.panel_begin) * kColumns;
    if (g.bias != nullptr) {
        const FW bias = load_wide(g.bias + column);
        each<RB>([&](auto r) ADASPARK_INLINED { acc[r] = add(acc[r], bias); });
    }
    each<RB>([&](auto r) ADASPARK_INLINED {
        float * to = out + r * ldo;
        store(to, more ? add(load_wide(to), acc[r]) : acc[r]);
    });
}

template <Format F, int N, bool Shared>
void some_rows(const Gemm & g, int32_t panel, int32_t row, int32_t n, Scratch & s) {
    if constexpr (N > (Shared ? kFewest : kShared)) {
        if (n < N) {
            return some_rows<F, N - 1, Shared>(g, panel, row, n, s);
        }
    }
    panel_store<F, N, Shared>(g, panel, row, s);
}

// The rows of the last tile, with whatever after them.
void copy_last(const Gemm & g, int32_t row, bool shared, Scratch & s) {
    const int32_t blocks = g.k / kBlock;
    const int32_t block = shared ? (blocks - 1) / 2 * 2 : blocks - 1;
    const int32_t there = (blocks - 1 - block) * g.a.rows + g.rows - row;
    std::memcpy(s.last, g.a.codes(block, row) - block % 2 * kBlock, std::min(there, kMost) * kCodes);
}

template <Format F> void gemm_format(const Gemm & g) {
    Scratch scratch;
    if constexpr (kHalves<F> == 1) {
        if (g.rows <= kShared) {
            copy_last(g, 0, true, scratch);
            for (int32_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
                some_rows<F, kShared, true>(g, panel, 0, g.rows, scratch);
            }
            return;
        }
    }
    const int32_t groups = (g.rows + kMost - 1) / kMost;
    for (int32_t panel = g.panel_begin; panel < g.panel_end; ++panel) {
        for (int32_t i = 0, row = 0; i < groups; ++i) {
            const int32_t n = (g.rows - row + groups - i - 1) / (groups - i); // groups of about equal size
            copy_last(g, row, false, scratch);
            some_rows<F, kMost, false>(g, panel, row, n, scratch);
            row += n;
        }
    }
}

// ---- configuration -------------------------------------------------------------------------------------------------

constexpr TileConfig kConfig = tile_config();
thread_local TileConfig t_before; // ggml sets its own once a thread and relies on it
thread_local bool t_entered = false;

void enter() {
    store_config(t_before);
    load_config(kConfig);
    t_entered = true;
}

void leave() {
    load_config(t_before);
    t_entered = false;
}

void gemm(const Gemm & g) {
    // The rows of two blocks fit one tile where there are few, and few between them.
    const bool shared = g.format != Format::q6_k && g.rows >= kFewest && g.rows + g.a.rows <= kMost;
    if (!is_quantized(g.format) || (g.rows <= kShared && !shared)) {
        return kAvx512Vnni.gemm(g);
    }
    if (!t_entered) {
        enter();
        gemm(g);
        return leave();
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
        return;
    }
}

} // namespace amx

const Kernels & amx_table() {
    static const Kernels table = [] {
        Kernels t = kAvx512Vnni;
        t.name = "amx";
        t.gemm = amx::gemm;
        t.enter = amx::enter;
        t.leave = amx::leave;
        return t;
    }();
    return table;
}

} // namespace adaspark::kernels
