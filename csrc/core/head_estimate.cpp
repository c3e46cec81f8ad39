#include "core/head_estimate.h"

#include <algorithm>
#include <cmath>

namespace adaspark::core {

double HeadEstimate::odds_factor() const noexcept { return offset.value == 0.0 ? 1.0 : std::exp(offset.value); }

void HeadEstimate::price(const CandidateSet & set, const RoundFeatures & f, double factor, int32_t positions,
                         RoundPrices & out) noexcept {
    for (int32_t i = 0; i < positions; ++i) {
        for (int32_t l = 0; l < kTopK; ++l) {
            out.block[i][l] = shift_odds(f.block.share[i][l], factor);
        }
        out.block[i][0] = shift_odds(f.block.head[i], factor);
    }
    double slot[kSlots];
    for (int32_t s = 0; s < kSlots; ++s) {
        slot[s] = shift_odds(f.precision[s], factor);
    }
    for (int32_t t = 0; t < set.text; ++t) {
        out.text[t] = slot[set.text_slot[t]];
    }
}

double parent_likelihood(const CandidateSet & set, const RoundPrices & p, int32_t group, int32_t text,
                         int32_t accepted) noexcept {
    const auto clip = [](double x) { return std::clamp(x, kLossFloor, 1.0 - kLossFloor); };
    double product = 1.0;
    if (group >= 0) {
        const int32_t lane = accepted - group * kTopK;
        for (int32_t l = 0; l < set.top_k; ++l) {
            const double q = p.block[group][l];
            product *= clip(accepted >= 0 && l == lane ? q : 1.0 - q);
        }
    }
    if (text >= 0) {
        const double q = p.text[text];
        product *= clip(accepted == set.text_base() + text ? q : 1.0 - q);
    }
    return product;
}

} // namespace adaspark::core
