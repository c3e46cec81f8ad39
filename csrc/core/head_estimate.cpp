#include "core/head_estimate.h"

#include <algorithm>
#include <cmath>

namespace adaspark::core {

double HeadEstimate::odds_factor() const noexcept { return offset.value == 0.0 ? 1.0 : std::exp(offset.value); }

void HeadEstimate::price(const CandidateSet & set, const RoundFeatures & f, double factor, int32_t positions,
                         RoundPrices & out) noexcept {
    kernels().head_estimate(f.block, static_cast<float>(factor), positions, out.block);
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

void parent_likelihoods(const CandidateSet & set, const RoundPrices & p, const Labels & labels, double * out) noexcept {
    kernels().block_likelihood(p.block, set.top_k, labels.hit, labels.groups, out);
    const auto likelihood = [&](int32_t i) {
        const double q = p.text[labels.text[i]];
        return std::clamp(labels.text_hit(i) ? q : 1.0 - q, kLossFloor, 1.0 - kLossFloor);
    };
    for (int32_t i = 0; i < labels.groups; ++i) {
        out[i] = labels.text[i] >= 0 ? out[i] * likelihood(i) : out[i];
    }
    for (int32_t i = labels.groups; i < labels.count; ++i) { // text alone
        out[i] = likelihood(i);
    }
}

} // namespace adaspark::core
