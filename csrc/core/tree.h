// The order of Proposition 1 and the depth-first layout of a verify tree (paper section 3.1).
#pragma once

#include <cstdint>
#include <span>

namespace adaspark::core {

// Widest verify, rows. A row's ancestors fit one 64-bit word.
inline constexpr int32_t kMaxRows = 64;

// Candidates of one round: a block of at most 32 positions with K = 8 each, and 63 text candidates.
inline constexpr int32_t kMaxCandidates = 32 * 8 + 63;

// kMaxCandidates rounded up, so that vector kernels may read and write whole blocks of 16.
inline constexpr int32_t kCandidateSlots = (kMaxCandidates + 15) / 16 * 16;

inline constexpr int32_t kAnchor = -1; // the parent of first-level candidates

// One candidate. The array is indexed so that every parent precedes its children.
struct Candidate {
    int32_t token = 0;
    int32_t parent = kAnchor; // candidate index, or kAnchor
    float q = 0.0F;           // P(accepted | parent accepted), [0, 1]; 0 = never placed (nor anything below it)
};

// Caller-owned result and scratch of `order_best_first`; no allocation.
// Q is a float: the product of floats in [0, 1] never rounds above its first factor, so a child never overtakes its
// parent, and the order is a total one on exactly the numbers stored here.
struct Order {
    int32_t count = 0;                              // candidates placed, in order
    int32_t index[kCandidateSlots] = {};            // candidate indices by decreasing Q, ties to the lower index
    alignas(32) float path_q[kCandidateSlots] = {}; // Q by candidate index: product of q from the anchor
    float guess = 0.01F; // Q that the next order's candidates will likely reach: for speed, it changes no result
};

// The first `limit` candidates of the best-first order (Proposition 1). Candidates with Q = 0 are left out.
// Every prefix of the result is a tree. No allocation.
void order_best_first(std::span<const Candidate> candidates, int32_t limit, Order & out) noexcept;

// The same, for a caller that has filled `out.path_q[0, n)` already.
void order_by_path_q(int32_t n, int32_t limit, Order & out) noexcept;

// The rows of one verify. Row 0 is the anchor.
struct Tree {
    int32_t rows = 0;                  // rows in use, 1..kMaxRows
    int32_t token[kMaxRows] = {};      // token id of the row
    int32_t parent[kMaxRows] = {};     // parent row, -1 for the anchor; parent[i] < i
    int32_t depth[kMaxRows] = {};      // rows below the anchor: 0 for the anchor
    int32_t candidate[kMaxRows] = {};  // candidate index, -1 for the anchor
    int32_t rank[kMaxRows] = {};       // place in the best-first order, from 0; -1 for the anchor
    uint64_t ancestors[kMaxRows] = {}; // bit r: row r is this row or above it
};

// Lay out the first `n` candidates of `order` depth-first, children by their place in the order. No allocation.
void layout_depth_first(int32_t anchor_token, std::span<const Candidate> candidates, const Order & order, int32_t n,
                        Tree & out) noexcept;

// The same, for candidates kept as arrays: token and parent by candidate index.
void layout_depth_first(int32_t anchor_token, const int32_t * token, const int32_t * parent, const Order & order,
                        int32_t n, Tree & out) noexcept;

} // namespace adaspark::core
