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
    std::fill(out + labels.groups, out + labels.count, 1.0);
    for (int32_t i = 0; i < labels.count; ++i) {
        if (const int32_t text = labels.text[i]; text >= 0) {
            const double q = p.text[text];
            out[i] *= std::clamp(labels.text_hit(i) ? q : 1.0 - q, kLossFloor, 1.0 - kLossFloor);
        }
    }
}

} // namespace adaspark::core
