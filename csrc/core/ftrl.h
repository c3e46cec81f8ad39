// FTRL-Proximal, one coordinate at a time (the paper's reference [29]). Both online models use it: the context law with
// an elastic net around zero, the acceptance model around its prior, its buckets behind a gate.
#pragma once

#include <algorithm>
#include <cmath>

namespace adaspark::core {

// Constants of one learner (paper Table 14).
struct FtrlRule {
    double alpha;       // rate
    double beta = 1.0;  // stabiliser
    double l2 = 0.01;   // weight of the squared deviation from the centre
    double cap = 400.0; // sum of squared gradients never exceeds this: the floor of the learning rate
};

// One coordinate: z and n as in the algorithm. The weight lives with the caller, who may clamp it.
struct FtrlCoordinate {
    double z = 0.0;
    double n = 0.0;      // sum of squared gradients, [0, cap]
    double root_n = 0.0; // its square root, kept because every step needs the last one
};

// Adds gradient g, taken at `deviation` from the centre (the weight itself, or weight - prior).
inline void ftrl_accumulate(FtrlCoordinate & c, double g, double deviation, const FtrlRule & rule) noexcept {
    c.n = std::min(c.n + g * g, rule.cap);
    const double root = std::sqrt(c.n);
    const double sigma = (root - c.root_n) * (1.0 / rule.alpha);
    c.z += g - sigma * deviation;
    c.root_n = root;
}

// How far a unit of z moves the coefficient. Does not wait for z, which is what one step waits for the last with.
inline double ftrl_rate(double root_n, const FtrlRule & rule) noexcept {
    return 1.0 / ((rule.beta + root_n) * (1.0 / rule.alpha) + rule.l2);
}

// Deviation from the centre that minimises the accumulated objective: zero while |z| is within `gate`.
inline double ftrl_deviation(const FtrlCoordinate & c, double gate, const FtrlRule & rule) noexcept {
    // Branches: on which side of the gate a coefficient is hardly changes, so the next step need not wait for a clamp.
    if (c.z > gate) {
        return (gate - c.z) * ftrl_rate(c.root_n, rule);
    }
    if (c.z < -gate) {
        return (-gate - c.z) * ftrl_rate(c.root_n, rule);
    }
    return 0.0;
}

// A step of the acceptance model's shared coefficients. Every step is at most alpha / sqrt(n) of its gradient, so noise
// alone takes a coefficient alpha * sqrt(ln n) from its prior: a tenth of a logit, which needs no gate. A gate of
// 3 sqrt(n), the paper's, would hold back that much of z for good: after 2,000 labels the prices of a drafter that is
// too sure of itself would still sum to several percent too much.
inline double ftrl_step(FtrlCoordinate & c, double g, double weight, double prior, const FtrlRule & rule) noexcept {
    ftrl_accumulate(c, g, weight - prior, rule);
    return prior + ftrl_deviation(c, 0.0, rule);
}

inline constexpr double kGate = 3.0; // a bucket's weight leaves 0 past kGate standard deviations of a zero-mean z

// A step of a bucket's weight. At ten times the alpha, noise would take it a whole logit away: it is gated by
// kGate * sqrt(n), where n, the sum of squared gradients, is the variance of z if their mean is zero. At gradients of
// size 1 that is the paper's 3 sqrt(m), and still three deviations at smaller ones.
inline double ftrl_gated_step(FtrlCoordinate & c, double g, double weight, const FtrlRule & rule) noexcept {
    ftrl_accumulate(c, g, weight, rule);
    return ftrl_deviation(c, kGate * c.root_n, rule);
}

} // namespace adaspark::core
