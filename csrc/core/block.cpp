#include "core/block.h"

#include <cmath>

namespace adaspark::core {

int32_t candidates_from_block(const BlockView & block, std::span<Candidate> out) noexcept {
    int32_t n = 0;
    for (int32_t i = 0; i < block.positions; ++i) {
        const auto row = static_cast<std::size_t>(i) * static_cast<std::size_t>(block.k);
        const float top = block.values[row];
        float sum = 0.0F; // of exp(value - top) over the filled columns
        for (int32_t c = 0; c < block.k; ++c) {
            const auto at = row + static_cast<std::size_t>(c);
            sum += block.ids[at] >= 0 ? std::exp(block.values[at] - top) : 0.0F;
        }
        for (int32_t c = 0; c < block.k; ++c) {
            const auto at = row + static_cast<std::size_t>(c);
            Candidate & candidate = out[static_cast<std::size_t>(n++)];
            candidate.token = block.ids[at];
            candidate.parent = i == 0 ? kAnchor : (i - 1) * block.k;
            candidate.q =
                c == 0 ? block.confidence[static_cast<std::size_t>(i)] : std::exp(block.values[at] - top) / sum;
            if (block.ids[at] < 0 || !(candidate.q > 0.0F)) { // also a NaN
                candidate.q = 0.0F;
            }
        }
    }
    return n;
}

} // namespace adaspark::core
