// Products of several rows on AMX tiles. A tile instruction makes the integer sums of many inputs, 16 columns and up to
// 16 rows; they are scaled as in kernel_products.h, operation by operation, so results are the same bits. Few rows, F32
// activations and everything else are the AVX-512 table's.
//
// To store a tile's sums takes 16 cycles, however few of its rows are used. So up to 8 rows, two blocks share one:
// activations are stored with zeros beside them, rows of [even block | 0] and after them rows of [0 | odd block].
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

constexpr int32_t kFewest = 5;         // rows from which tiles pay in a forward, where two blocks can share one
constexpr int32_t kMost = kTileRows;   // rows of a product
constexpr int32_t kShared = kMost / 2; // rows up to which two blocks share a tile
constexpr int32_t kAhead = 8192;       // bytes: how far ahead weights are asked for (second cache), across panels

// In every turn the codes of one tile are unpacked, the product of another is made and the sums of a third are scaled:
// each keeps other parts of the core busy. A load from bytes whose stores have not reached the cache yet waits for
// them, and a store of sums waits for their product; some turns later both are done, and what lies between is still in
// the first cache.
template <Format F> constexpr int32_t kUnpacked = kHalves<F> == 2 ? 2 : 3; // turns before the product
constexpr int32_t kStored = 2;                                             // turns after it
constexpr int32_t kScaled = 3;
constexpr int32_t kRing = 4; // tiles kept of codes and of sums

template <Format F, bool Shared> constexpr int32_t kInputs = Shared ? 2 * kBlock : kBlock / kHalves<F>; // of a tile

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
    int32_t sums[kRing][kMost * kColumns];
    uint8_t code[kRing][2 * kBlock * kColumns];
};

// ---- products ------------------------------------------------------------------------------------------------------

// Some rows times some panels.
struct Part {
    int32_t begin; // panels
    int32_t end;
    int32_t row;
};

// A sum as F32. While tiles are in use only one of the two vector units converts and multiplies, but both add. So a sum
// (its size is below 2^22) is added to the low bits of 1.5 * 2^23, which is then taken off: the same number exactly.
ADASPARK_INLINE FW sum_of(const int32_t * sums) {
    const __m512i shift = _mm512_set1_epi32(0x4b400000);
    const __m512i shifted = _mm512_add_epi32(_mm512_load_si512(sums), shift);
    return sub(FW{_mm512_castsi512_ps(shifted)}, FW{_mm512_castsi512_ps(shift)});
}

// One scale's sums.
template <int RB> ADASPARK_INLINE void add_sums(FW scale, const int32_t * sums, const float * d, FW (&acc)[RB]) {
    each<RB>([&](auto r)
                 ADASPARK_INLINED { acc[r] = fma(sum_of(sums + r * kColumns), mul(scale, set1_wide(d[r])), acc[r]); });
}

template <Format F, int RB>
ADASPARK_INLINE void add_block(const Scales<F> & scales, const int32_t * sums, const float * d, const float * dsum,
                               FW (&acc)[RB]) {
    add_sums<RB>(scales.scale[0], sums, d, acc);
    if constexpr (has_minimum(F)) {
        each<RB>([&](auto r) ADASPARK_INLINED { acc[r] = fma(scales.minimum, set1_wide(dsum[r]), acc[r]); });
    }
}

template <int RB> ADASPARK_INLINE void store_panel(const Gemm & g, int32_t panel, int32_t row, FW (&acc)[RB]) {
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
        acc[r] = zero_wide();
    });
}

// RB rows of a part, the tiles of one panel after those of the other. Unpacking, product and scaling each have their
// own place, and go on to the next panel at the end of one.
template <Format F, int RB, bool Shared> void part_store(const Gemm & g, const Part & part, Scratch & s) {
    constexpr bool kTwo = kHalves<F> == 2;                       // tiles a block: the second in odd turns
    constexpr int32_t kBytes = code_bytes(F) * (Shared ? 2 : 1); // unpacked at once
    constexpr int32_t kAll =                                     // the same and its scales
        kBytes +
        (unit_inputs(F) / kBlock * scale_bytes(F) + scale_head(F)) * kBlock / unit_inputs(F) * (Shared ? 2 : 1);
    static_assert(kUnpacked<F> < kRing && kScaled - kStored < kRing && kStored < kSums);
    constexpr int32_t kTileCodes = kBlock * kColumns / kHalves<F>; // unpacked codes of a tile, where a block is two
    const int32_t row = part.row;
    const int32_t rows = g.a.rows;
    const int32_t blocks = g.k / kBlock;
    const int32_t total = (g.k + kInputs<F, Shared> - 1) / kInputs<F, Shared> * (part.end - part.begin); // turns
    const bool odd = Shared && blocks % 2 != 0; // the last tile has one block, in the place of an even one
    const std::size_t stride = panel_bytes(F, g.k);
    const auto scales_bytes = static_cast<std::size_t>(panel_scales(F, g.k));

    Scales<F> scales = {g.w + static_cast<std::size_t>(part.begin) * stride, 0, {}, {}, {}, {}};
    const uint8_t * panel_end = scales.at + stride; // of the panel that is unpacked
    const uint8_t * packed = scales.at + scales_bytes;
    const uint8_t * ahead = scales.at + kAhead; // wanted later: a share of the scales with every tile's codes

    const int64_t a_block = static_cast<int64_t>(rows) * kCodes;
    const int8_t * const a_begin = g.a.q + static_cast<int64_t>(row) * kCodes;
    const int8_t * const a_last = a_begin + (blocks - 1) * a_block;
    const int8_t * a = a_begin;
    int32_t a_shift = 0;            // codes of odd blocks lie behind zeros
    const uint8_t * bytes = packed; // q8_0: codes to multiply
    const uint8_t * bytes_end = panel_end;

    const float * const d_begin = g.a.d + row;
    const float * const d_last = d_begin + static_cast<int64_t>(blocks - 1) * rows;
    const float * d = d_begin;
    const float * dsum = g.a.dsum + row;
    int32_t panel = part.begin;
    int32_t block = 0;
    FW acc[RB];
    each<RB>([&](auto r) ADASPARK_INLINED { acc[r] = zero_wide(); });

    for (int32_t turn = -kUnpacked<F>; turn < total + kScaled; ++turn) {
        if (turn + kUnpacked<F> < total && !(kTwo && turn % 2 != 0)) [[likely]] {
            uint8_t * to = s.code[(turn + kUnpacked<F>) % kRing];
            const bool alone = Shared && panel_end - packed < kBytes;
            if constexpr (F == Format::q8_0) {
                if (alone) [[unlikely]] { // what would be read after it may not exist
                    std::memcpy(to, packed, code_bytes(F));
                }
            } else {
                unpack<F>(packed, to);
                if (Shared && !alone) {
                    unpack<F>(packed + code_bytes(F), to + kBlock * kColumns);
                }
            }
            for (int j = 0; j < kAll && row == 0; j += 64) {
                _mm_prefetch(reinterpret_cast<const char *>(ahead + j), _MM_HINT_T1);
            }
            ahead += kAll;
            packed += kBytes;
            if (packed >= panel_end) [[unlikely]] {
                packed = panel_end + scales_bytes;
                ahead = panel_end + kAhead;
                panel_end += stride;
            }
        }
        if (turn < 0) [[unlikely]] {
            continue;
        }

        const int8_t * from = a + a_shift;
        const uint8_t * code = s.code[turn % kRing];
        if constexpr (kTwo) {
            from += turn % 2 * kInputs<F, Shared>;
            code = s.code[turn / 2 * 2 % kRing] + turn % 2 * kTileCodes;
        }
        if (!kTwo || turn % 2 != 0) {
            const bool end = Shared ? a + a_block >= a_last : a == a_last;
            if (Shared && end && odd) [[unlikely]] {
                from -= a_block; // the block before it and it; the sums of that are not looked at
            } else if (F == Format::q8_0) {
                code = bytes;
            }
            a += Shared ? 2 * a_block : a_block;
            a_shift ^= Shared ? 0 : kBlock;
            bytes += kBytes;
            if (end) [[unlikely]] {
                a = a_begin;
                a_shift = 0;
                bytes = bytes_end + scales_bytes;
                bytes_end += stride;
            }
        }
        const auto multiply = [&](auto tile) ADASPARK_INLINED {
            if (turn < total) [[likely]] {
                tile_product<tile>(from, kCodes, code);
            }
            if (turn >= kStored && turn < total + kStored) [[likely]] {
                tile_keep<(tile + kSums - kStored) % kSums>(s.sums[(turn - kStored) % kRing]);
            }
        };
        switch (turn % kSums) {
        case 0:
            multiply(Index<0>{});
            break;
        case 1:
            multiply(Index<1>{});
            break;
        case 2:
            multiply(Index<2>{});
            break;
        default:
            multiply(Index<3>{});
        }
        if (turn < kScaled) [[unlikely]] {
            continue;
        }

        const int32_t * sums = s.sums[(turn - kScaled) % kRing];
        if constexpr (kTwo) {
            if (turn % 2 != kScaled % 2) {
                add_sums<RB>(scales.scale[1], sums, d, acc);
            } else {
                scales.next(block++);
                add_sums<RB>(scales.scale[0], sums, d, acc);
                continue;
            }
        } else {
            sums += odd && d == d_last ? rows * kColumns : 0;
            scales.next(block++);
            add_block<F, RB>(scales, sums, d, dsum, acc);
            dsum += rows;
            if (Shared && d != d_last) {
                d += rows;
                scales.next(block++);
                add_block<F, RB>(scales, sums + rows * kColumns, d, dsum, acc);
                dsum += rows;
            }
        }
        if (d == d_last) [[unlikely]] {
            store_panel<RB>(g, panel++, row, acc);
            scales.at = g.w + static_cast<std::size_t>(panel) * stride;
            d = d_begin;
            dsum = g.a.dsum + row;
        } else {
            d += rows;
        }
    }
}

template <Format F, int N, bool Shared> void some_rows(const Gemm & g, const Part & part, int32_t n, Scratch & s) {
    if constexpr (N > (Shared ? kFewest : kShared)) {
        if (n < N) {
            return some_rows<F, N - 1, Shared>(g, part, n, s);
        }
    }
    part_store<F, N, Shared>(g, part, s);
}

// Tiles of `inputs` inputs and `rows` rows, on this thread.
void configure(int32_t inputs, int32_t rows);

template <Format F> void gemm_format(const Gemm & g, bool shared) {
    Scratch scratch;
    if constexpr (kHalves<F> == 1) {
        if (shared) {
            configure(kInputs<F, true>, g.a.rows + g.rows);
            return some_rows<F, kShared, true>(g, {g.panel_begin, g.panel_end, 0}, g.rows, scratch);
        }
    }
    const int32_t groups = (g.rows + kMost - 1) / kMost;
    const int32_t step = groups == 1 ? g.panel_end - g.panel_begin : 2; // panels read once for all groups
    configure(kInputs<F, false>, (g.rows + groups - 1) / groups);
    for (int32_t panel = g.panel_begin; panel < g.panel_end; panel += step) {
        for (int32_t i = 0, row = 0; i < groups; ++i) {
            const int32_t n = (g.rows - row) / (groups - i); // about equal, the last the largest: all fill a tile
            some_rows<F, kMost, false>(g, {panel, std::min(panel + step, g.panel_end), row}, n, scratch);
            row += n;
        }
    }
}

// ---- configuration -------------------------------------------------------------------------------------------------

thread_local TileConfig t_before; // ggml sets its own once a thread and relies on it
thread_local bool t_entered = false;
thread_local int32_t t_inputs = 0; // as the tiles are set up; 0: not yet
thread_local int32_t t_rows = 0;

void configure(int32_t inputs, int32_t rows) {
    if (inputs != t_inputs || rows != t_rows) { // loading one costs hundreds of cycles
        load_config(tile_config(inputs, rows));
        t_inputs = inputs;
        t_rows = rows;
    }
}

void enter() {
    store_config(t_before);
    t_inputs = 0;
    t_entered = true;
}

void leave() {
    load_config(t_before);
    t_entered = false;
}

void gemm(const Gemm & g) {
    // The rows of two blocks fit one tile where there are few, and few between them.
    const bool shared = g.format != Format::q6_k && g.k > kBlock && g.rows >= kFewest && g.rows + g.a.rows <= kMost;
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
        return gemm_format<Format::q8_0>(g, shared);
    case Format::q4_0:
        return gemm_format<Format::q4_0>(g, shared);
    case Format::q4_1:
        return gemm_format<Format::q4_1>(g, shared);
    case Format::q5_0:
        return gemm_format<Format::q5_0>(g, shared);
    case Format::q5_1:
        return gemm_format<Format::q5_1>(g, shared);
    case Format::q4_k:
        return gemm_format<Format::q4_k>(g, shared);
    case Format::q5_k:
        return gemm_format<Format::q5_k>(g, shared);
    case Format::q6_k:
        return gemm_format<Format::q6_k>(g, shared);
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
