// The head-based estimate that the fitted model replaces, and the guard between the two (paper section 3.3,
// "Learning"): a pick's confidence head, a sibling's share of the top-K mass, a text node's source precision, all
// shifted by one per-request logit offset.
#pragma once

#include "core/acceptance.h"

#include <cstdint>

namespace adaspark::core {

struct HeadEstimate {
    RequestBias offset;

    void begin_request() noexcept { offset = RequestBias{}; }

    // exp of the offset in force, the factor on every odds. Fixed for a round, so that a round is priced, scored and
    // learned from with one offset.
    double odds_factor() const noexcept;

    // Prices the first `positions` positions of the block and every text-only node.
    static void price(const CandidateSet & set, const RoundFeatures & features, double odds_factor, int32_t positions,
                      RoundPrices & out) noexcept;

    // One AdaGrad step a round: `gradient` and `squared` are sums of q' - y and its square over the round's labelled
    // nodes that took a row.
    void learn(double gradient, double squared) noexcept { offset.step(gradient, squared, 1e300); }
};

inline double shift_odds(double q, double odds_factor) noexcept {
    return q * odds_factor / (1.0 - q + q * odds_factor); // keeps 0 and 1
}

inline constexpr double kGuardKeep = 0.9972960560854701; // 0.5^(1/256): a half-life of 256 labelled parents
inline constexpr double kLossFloor = 1e-7;               // probabilities are clipped to [1e-7, 1 - 1e-7] in the loss

// Decayed log losses of the two on the same labels, each candidate of a parent as accepted or not.
struct Guard {
    double fitted = 0.0; // nats
    double head = 0.0;

    // Strictly lower, so an empty store prices by the head.
    bool prefers_fitted() const noexcept { return fitted < head; }
    void add(double fitted_loss, double head_loss) noexcept {
        fitted = fitted * kGuardKeep + fitted_loss;
        head = head * kGuardKeep + head_loss;
    }

    template <class A> void fields(A & a) { a(fitted, head); }
};

// Likelihood of every labelled parent: the product over its candidates of p (accepted) or 1 - p, each clipped. At most
// kTopK + 1 factors, so it does not underflow; minus its logarithm is the parent's loss.
void parent_likelihoods(const CandidateSet & set, const RoundPrices & p, const Labels & labels, double * out) noexcept;

} // namespace adaspark::core
