#include "core/context_law.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

namespace adaspark::core {

int32_t context_band(uint32_t context) noexcept { return std::min<int32_t>(std::bit_width(context), kBands - 1); }

ContextBasis::ContextBasis(uint32_t context) noexcept {
    const double u = context / kContextUnit;
    phi[0] = 1.0;
    phi[1] = u;
    phi[2] = u * u;
    phi[3] = std::sqrt(u);
    phi[4] = std::log1p(u);
}

static double raw(const double * weight, const ContextBasis & basis) noexcept {
    double value = weight[0];
    for (int32_t i = 1; i < kBasis; ++i) {
        value += weight[i] * basis.phi[i];
    }
    return value;
}

void ContextLaw::train(uint32_t context, const ContextBasis & basis, double time) noexcept {
    assert(time > 0.0);
    context_low = samples == 0 ? context : std::min(context_low, context);
    context_high = std::max(context_high, context);
    if (samples < kLawSamples) {
        held_context[samples] = context;
        held_time[samples] = time;
        ++samples;
        if (samples < kLawSamples) {
            return;
        }
        scale = *std::min_element(held_time, held_time + kLawSamples);
        floor = 1.0;
        // The state whose weight is exactly 1 for the intercept, so that the law starts at its scale.
        weight[0] = 1.0;
        coordinate[0].z = -(kLawRule.beta * (1.0 / kLawRule.alpha) + kLawRule.l2) - kLawL1;
        for (int32_t i = 0; i < kLawSamples; ++i) {
            fold(ContextBasis(held_context[i]), held_time[i]);
        }
        return;
    }
    samples += samples < UINT32_MAX ? 1 : 0;
    fold(basis, time);
}

void ContextLaw::fold(const ContextBasis & basis, double time) noexcept {
    const double y = time / scale;
    floor = std::min(floor, y);
    // Subgradient of the quantile loss with respect to the prediction, before the clamp of the answer.
    const double factor = y < raw(weight, basis) ? 1.0 - kQuantile : -kQuantile;
    for (int32_t i = 0; i < kBasis; ++i) {
        ftrl_accumulate(coordinate[i], factor * basis.phi[i], weight[i], kLawRule);
        const double w = ftrl_deviation(coordinate[i], kLawL1, kLawRule);
        weight[i] = i == 0 ? w : std::max(w, 0.0);
    }
}

double ContextLaw::price(const ContextBasis & basis) const noexcept {
    return std::clamp(raw(weight, basis), kLawLow * floor, kLawHigh * floor) * scale;
}

} // namespace adaspark::core
