// Reading rows of logits: the argmax of a target row, the top K of a drafter row.
#pragma once

#include <cstdint>
#include <span>

namespace adaspark {

// Index of the largest value, the lowest on ties; -1 when the row holds a NaN (or is empty).
int32_t argmax(std::span<const float> row) noexcept;

// The `ids.size()` largest of `row`, descending, ties to the lower id. `subset`, when not empty, lists the only ids
// looked at (a drafter's reduced vocabulary). Columns that cannot be filled get id -1 and -infinity; so do values of
// -infinity and NaN.
void top_k(std::span<const float> row, std::span<const int32_t> subset, std::span<int32_t> ids,
           std::span<float> values) noexcept;

} // namespace adaspark
