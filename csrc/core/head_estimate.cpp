#include "core/head_estimate.h"

#include <algorithm>
#include <cmath>

namespace adaspark::core {

double HeadEstimate::odds_factor() const noexcept { return offset.value == 0.0 ? 1.0 : std::exp(offset.value); }

void HeadEstimate::price(const CandidateSet & set, const RoundFeatures & f, double factor, int32_t positions,
                         RoundPrices & out) noexcept {
    const float e = static_cast<float>(factor);
    for (int32_t i = 0; i < positions; ++i) {
        for (int32_t l = 0; l < kTopK; ++l) {
            const float q = f.block.share[i][l];
            out.block[i][l] = q * e / (1.0F - q + q * e);
        }
        out.block[i][0] = static_cast<float>(shift_odds(f.block.head[i], factor));
    }
    if (set.text == 0) {
        return;
    }
    float slot[kSlots];
    for (int32_t s = 0; s < kSlots; ++s) {
        slot[s] = static_cast<float>(shift_odds(f.precision[s], factor));
    }
    for (int32_t t = 0; t < set.text; ++t) {
        out.text[t] = slot[set.text_slot[t]];
    }
}

double parent_likelihood(const CandidateSet & set, const RoundPrices & p, const ParentLabel & label) noexcept {
    const auto [group, text, accepted] = label;
    double product = group >= 0 ? kernels().group_likelihood(p.block[group], set.top_k, accepted - group * kTopK) : 1.0;
    if (text >= 0) {
        const double q = p.text[text];
        product *= std::clamp(accepted == set.text_base() + text ? q : 1.0 - q, kLossFloor, 1.0 - kLossFloor);
    }
    return product;
}

} // namespace adaspark::core
