#include "core/context_law.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace adaspark::core {

void ContextBasis::set(uint32_t context) noexcept {
    const double u = context / kContextUnit;
    kernels().context_basis(u, std::log(1.0 + u), phi); // 1 + u is exact: a multiple of 2^-13 below 2^20
}

void ContextLaw::start(double scale_, double at_zero, double slope) noexcept {
    samples = kLawSamples;
    scale = scale_;
    floor = 1.0;
    lanes = LawLanes{};
    const double weight[] = {at_zero, slope};
    for (int32_t i = 0; i < 2; ++i) { // the state whose weight is exactly this
        lanes.weight[i] = weight[i];
        lanes.z[i] =
            weight[i] > 0.0 ? -weight[i] * (kLawRule.beta * (1.0 / kLawRule.alpha) + kLawRule.l2) - kLawL1 : 0.0;
    }
}

void ContextLaw::train(uint32_t context, const ContextBasis & basis, double predicted, double time) noexcept {
    assert(time > 0.0);
    if (samples < kLawSamples) {
        held_context[samples] = context;
        held_time[samples] = time;
        ++samples;
        if (samples < kLawSamples) {
            return;
        }
        start(*std::min_element(held_time, held_time + kLawSamples), 1.0, 0.0);
        for (int32_t i = 0; i < kLawSamples; ++i) {
            const ContextBasis held(held_context[i]);
            fold(held, raw(held), held_time[i]);
        }
        return;
    }
    samples += samples < UINT32_MAX ? 1 : 0;
    fold(basis, predicted, time);
}

void ContextLaw::fold(const ContextBasis & basis, double predicted, double time) noexcept {
    const double y = time / scale;
    floor = std::min(floor, y);
    // Subgradient of the quantile loss with respect to the prediction, before the clamp of the answer.
    const double factor = y < predicted ? 1.0 - kQuantile : -kQuantile;
    kernels().law_step(lanes, basis.phi, factor);
}

} // namespace adaspark::core
