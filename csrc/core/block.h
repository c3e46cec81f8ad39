// Candidates of a drafter's block with the head-based estimate of their acceptance (paper sections 2.2 and 3.3).
#pragma once

#include <cstdint>
#include <span>

#include "core/tree.h"

namespace adaspark::core {

// One block as the drafter returns it. Column 0 of a position is the pick, the others its siblings.
struct BlockView {
    int32_t positions = 0;             // B
    int32_t k = 0;                     // K, candidates a position keeps
    std::span<const int32_t> ids;      // [positions][k]; negative = empty column
    std::span<const float> values;     // [positions][k]; Markov-biased logits, descending
    std::span<const float> confidence; // [positions]; the confidence head, [0, 1]
};

// Writes positions * k candidates to `out`, candidate position * k + column. The pick of a position hangs from the
// pick above it, siblings are leaves beside it. q of a pick is its confidence; q of a sibling its softmax share among
// the k values of its position. Empty columns get q = 0. Returns the count. No allocation.
int32_t candidates_from_block(const BlockView & block, std::span<Candidate> out) noexcept;

} // namespace adaspark::core
