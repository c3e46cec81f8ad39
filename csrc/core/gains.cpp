#include "core/gains.h"

#include "core/context_law.h"

#include <algorithm>

namespace adaspark::core {

namespace {
constexpr double kKeep = 255.0 / 256.0; // per observation
constexpr double kRidge = 0.02;         // of each regressor's sum of squares
// In squared tokens, about what a dozen narrow rounds bring. An empty fit is exactly 1, and the first rounds of an
// empty store, at two rows, cannot move it far: one lucky token there would otherwise price every narrow width below
// plain decoding, and nothing would ever be measured that could correct it.
constexpr double kRidgeFloor = 2.0;
constexpr double kNegligible = 1e-3; // tokens
} // namespace

void GainFit::observe(double predicted, double realised, double context) noexcept {
    if (!(predicted > kNegligible)) {
        return;
    }
    const double v = context / kContextUnit - kGainPivot;
    const double p2 = predicted * predicted;
    pp = pp * kKeep + p2;
    ppv = ppv * kKeep + p2 * v;
    ppvv = ppvv * kKeep + p2 * v * v;
    py = py * kKeep + predicted * realised;
    pvy = pvy * kKeep + predicted * v * realised;
    // Ridge toward (1, 0): the same weight on the diagonal and, times the prior mean, on the right-hand side.
    const double ridge_intercept = kRidge * pp + kRidgeFloor;
    const double ridge_slope = kRidge * ppvv + kRidgeFloor;
    const double a = pp + ridge_intercept;
    const double d = ppvv + ridge_slope;
    const double right = py + ridge_intercept;
    const double inverse = 1.0 / (a * d - ppv * ppv);
    intercept = (right * d - ppv * pvy) * inverse;
    slope = (a * pvy - ppv * right) * inverse;
}

} // namespace adaspark::core
