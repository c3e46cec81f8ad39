// How many tokens extra rows really bring, over what S predicts (paper section 3.4, ii): one line in context per source
// and side of the reference width, by ridge-regularised least squares of realised on predicted marginals.
#pragma once

#include "core/context_law.h"

#include <algorithm>
#include <cstdint>

namespace adaspark::core {

inline constexpr int32_t kReferenceRows = 8; // n0 of Eq. (7)
inline constexpr double kGainPivot = 0.5;    // of u: the lines are written around 4096 tokens

struct GainFit {
    // Decayed sums over observations (p predicted, y realised tokens, v = context / 8192 - 1/2).
    double pp = 0.0, ppv = 0.0, ppvv = 0.0, py = 0.0, pvy = 0.0;
    double intercept = 1.0; // solution, at v = 0
    double slope = 0.0;     // per v

    // Marginals predicted at or below 1e-3 tokens are dropped: they say nothing about a factor.
    void observe(double predicted, double realised, double context) noexcept;
    double at(double context) const noexcept { // [0.25, 4]
        return std::clamp(intercept + slope * (context / kContextUnit - kGainPivot), 0.25, 4.0);
    }

    template <class A> void fields(A & a) { a(pp, ppv, ppvv, py, pvy, intercept, slope); }
};

// The four factors at one context.
struct Gains {
    double draft_above = 1.0, text_above = 1.0, draft_below = 1.0, text_below = 1.0;
};

struct GainFits {
    GainFit draft_above, text_above, draft_below, text_below;

    Gains at(double context) const noexcept {
        return {draft_above.at(context), text_above.at(context), draft_below.at(context), text_below.at(context)};
    }

    template <class A> void fields(A & a) { a(draft_above, text_above, draft_below, text_below); }
};

} // namespace adaspark::core
