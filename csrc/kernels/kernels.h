// The CPU kernels of the own verify, as a table of functions for one instruction set.
//
// The rule all of them keep: what is computed for one row (one query) is the same sequence of operations whatever other
// rows are computed with it, and the same in every table, so that results are equal bit for bit. Integer dot products
// are exact; every F32 sum runs in the one order its comment gives, with fused multiply-adds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/format.h"

namespace adaspark::kernels {

// Rows of activations with `k` inputs each, as F32 or as int8 with one scale for each 32 inputs (or both). The int8
// form keeps the rows of a block of 32 together: a product over several rows reads it front to back, at constant
// distances. A row of a block is 32 codes and 32 zeros, the codes first in even blocks and the zeros first in odd ones:
// where 64 inputs are multiplied at once, each of two blocks keeps its own sums.
struct Activations {
    float * x = nullptr;             // [rows][k]
    int8_t * q = nullptr;            // [k / 32][rows][64], -127..127; x is about d * q
    float * d = nullptr;             // [k / 32][rows]
    float * dsum = nullptr;          // [k / 32][rows] d * sum of q: what a minimum multiplies
    int32_t * minus8 = nullptr;      // [k / 32][rows] -8 * sum of q: what an offset of 8 takes away
    int32_t * minus8_half = nullptr; // [k / 32][2][rows] the same of the first and of the second 16
    int32_t rows = 0;                // of the int8 form's layout

    int8_t * codes(int32_t block, int32_t row) const {
        return q + (static_cast<int64_t>(block) * rows + row) * kCodes + block % 2 * kBlock;
    }
};

// Where the int8 form begins in `bytes`, which have kCodes to spare: on a cache line, or tiles load slowly.
inline int8_t * first_code(int8_t * bytes) {
    return bytes + (kCodes - reinterpret_cast<std::uintptr_t>(bytes) % kCodes) % kCodes;
}

struct Gemm {
    Format format = Format::f32;
    const uint8_t * w = nullptr; // packed
    int32_t k = 0;               // inputs
    int32_t panel_begin = 0;     // panels to compute
    int32_t panel_end = 0;
    Activations a;
    int32_t rows = 0;
    float * out = nullptr;        // where column 0 of panel_begin goes for row 0; whole panels are written
    int64_t ldo = 0;              // floats between two rows
    const float * bias = nullptr; // of column 0, added last; null = none. Whole panels are read
    bool add = false;             // out += instead of out =
};

// What the numbers of a key/value cache are stored as; q8_0: int8 codes, with an F16 scale for each 32 dimensions.
enum class Cache : int32_t { f32, f16, q8_0 };

// A cache is stored in groups of 16 slots. In a group lie keys as [dimension][slot % 16], values as [slot % 16]
// [dimension]; q8_0 has the scales of all 16 before them: [dimension / 32][slot % 16], [slot % 16][dimension / 32].
inline constexpr int32_t kSlots = 16;
inline constexpr std::size_t number_bytes(Cache cache) { return cache == Cache::f32 ? 4 : cache == Cache::f16 ? 2 : 1; }
inline constexpr std::size_t scales_bytes(Cache cache, int32_t head_dim) { // of a group
    return cache == Cache::q8_0 ? static_cast<std::size_t>(head_dim / kBlock) * kSlots * 2 : 0;
}
inline constexpr std::size_t group_bytes(Cache cache, int32_t head_dim) {
    return scales_bytes(cache, head_dim) + static_cast<std::size_t>(head_dim) * kSlots * number_bytes(cache);
}
inline constexpr int32_t kChunk = 128;                 // positions of one attention chunk
inline constexpr int32_t kQueries = 24;                // of one head that attention takes together best
inline constexpr int32_t kPartial = 16;                // floats before the values of a partial result: a cache line
inline constexpr int32_t kTile = kChunk + 64 + kSlots; // slots that scores are computed for at once, at most
inline constexpr int32_t kHeadDim = 512;               // of attention, at most
// Floats of scratch a query of attention has: its scores by slot, those by position, the query itself.
inline constexpr int32_t kQueryScratch = kTile + kChunk + kHeadDim;

// One chunk of attention for queries of one key/value head. Scores are sums over dimensions in ascending order; values
// are accumulated in the order of positions, the exponentials too, in 16 lanes that are added pairwise.
struct Attend {
    Cache cache = Cache::f16;
    const void * k = nullptr;    // this head's keys
    const void * v = nullptr;    // this head's values
    const void * next = nullptr; // keys that will be wanted after this chunk's, as many; null = not known
    int32_t head_dim = 0;        // a multiple of 16; q8_0: of 32
    int32_t slot_begin = 0;      // slots scores are computed for, multiples of 16
    int32_t slot_end = 0;
    const float * const * q = nullptr; // queries, scaled
    int32_t n_queries = 0;
    const int32_t * const * slots = nullptr; // per query its slots in order of position; null = slot_begin .. slot_end
    const int32_t * n_slots = nullptr; // per query, 0..kChunk, one for the same slots; not read when `slots` is null
    int32_t common = 0; // with `slots`: of every query so many of the first lie in the same slots, one after the other
    float * const * out = nullptr; // per query: maximum, sum, from kPartial on the weighted values [head_dim]
    float * scratch = nullptr;     // [n_queries][kQueryScratch]
};

struct Kernels {
    const char * name;
    void (*gemm)(const Gemm &);
    // out = x / rms(x) * weight; n is a multiple of 16. Sum of squares: 32 lanes over ascending inputs, added pairwise.
    void (*rms_norm)(const float * x, const float * weight, int32_t n, float eps, float * out);
    // Row `row` of `a` but for x, from n F32 inputs starting at input `first` (multiples of 32).
    void (*quantize)(const float * x, int32_t first, int32_t n, int32_t row, const Activations & a);
    // out = up * gate / (1 + exp(-gate)); n is a multiple of 16
    void (*silu_mul)(const float * gate, const float * up, int32_t n, float * out);
    // out += the sum over j = 0 .. count - 1 of weight[j] * in[j], in that order; n is a multiple of 16
    void (*mix)(const float * const * in, const float * weight, int32_t count, int32_t n, float * out);
    // out = c * the sum over t = 0 .. taps - 1 of weight[t * ldw ...] * in[t], in that order; n is a multiple of 16
    void (*short_conv)(const float * const * in, const float * weight, int64_t ldw, int32_t taps, const float * c,
                       int32_t n, float * out);
    void (*attend)(const Attend &);
    // Weighted mean of `count` partial results `stride` floats apart, in order. Those with a sum of 0 are skipped.
    void (*merge)(const float * partials, int64_t stride, int32_t count, int32_t head_dim, float * out);
    // `values` [n] to slot `slot` of a head's keys or values.
    void (*store_key)(const float * values, int32_t n, Cache cache, void * keys, int32_t slot);
    void (*store_value)(const float * values, int32_t n, Cache cache, void * head_values, int32_t slot);
    // Called by a thread around many products, so that each need not set up the thread's state (null: there is none).
    // Between them the thread runs nothing else that uses matrix tiles.
    void (*enter)() = nullptr;
    void (*leave)() = nullptr;
};

// The fastest table this CPU can run, and a table by name ("portable"; "avx2", "avxvnni", "avx512vnni", "amx";
// "neon", "dotprod", "i8mm"); null when this build or this CPU lacks it.
const Kernels & kernels_best();
const Kernels * kernels_named(const char * name);

// A thread's products with one table.
class Session {
  public:
    explicit Session(const Kernels & kernels) : kernels_(kernels) {
        if (kernels_.enter != nullptr) {
            kernels_.enter();
        }
    }
    ~Session() {
        if (kernels_.leave != nullptr) {
            kernels_.leave();
        }
    }
    Session(const Session &) = delete;
    Session & operator=(const Session &) = delete;

  private:
    const Kernels & kernels_;
};

} // namespace adaspark::kernels
