// One verify time as a function of context (paper section 3.2, Eq. 4): a low quantile of the time, normalised by the
// law's scale, regressed on [1, u, u^2, sqrt u, ln(1 + u)] with u = context / 8192, by FTRL-Proximal.
#pragma once

#include "core/ftrl.h"
#include "core/kernels.h"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace adaspark::core {

inline constexpr double kContextUnit = 8192.0; // tokens of context in one u
inline constexpr double kQuantile = 0.15;      // tau of Proposition 3
inline constexpr int32_t kLawSamples = 3;      // samples held back before there is a law
inline constexpr double kLawL1 = 0.002;        // lambda_1, on normalised time
inline constexpr double kLawLow = 0.5;         // clamp of the answer, times the law's lowest normalised sample
inline constexpr double kLawHigh = 16.0; // the paper has 3; llama.cpp's 32 rows grow by 5 from 300 to 2,000 tokens
inline constexpr FtrlRule kLawRule{.alpha = 0.05};

// A context band: contexts with the same bit length (128..255, 256..511, ...). 0 for context 0.
inline constexpr int32_t kBands = 32;
inline int32_t context_band(uint32_t context) noexcept {
    return std::min<int32_t>(std::bit_width(context), kBands - 1);
}

// phi(u) of Eq. (4), once a round. phi[0] is 1.
struct ContextBasis {
    alignas(32) double phi[kBasisLanes];
    ContextBasis() = default;
    explicit ContextBasis(uint32_t context) noexcept { set(context); }
    void set(uint32_t context) noexcept;
};

// The online law. Untrained until it has kLawSamples samples; the first ones are held back and set its scale.
struct ContextLaw {
    uint32_t samples = 0; // seen, held-back ones included
    double scale = 0.0;   // microseconds: the least of the first kLawSamples
    double floor = 0.0;   // lowest normalised time seen
    LawLanes lanes;       // normalised; context weights are >= 0, so the law never falls with context
    uint32_t held_context[kLawSamples] = {};
    double held_time[kLawSamples] = {}; // microseconds

    bool trained() const noexcept { return samples >= kLawSamples; }

    // Forgets all, and is the straight line at_zero + slope * u, both in units of `scale_`, microseconds, and >= 0.
    void start(double scale_, double at_zero, double slope) noexcept;

    // Fold in one measured time, microseconds > 0; `basis` is that of the context and `predicted` what raw() says
    // there. Complexity O(kBasis).
    void train(uint32_t context, const ContextBasis & basis, double predicted, double time) noexcept;
    void train(uint32_t context, double time) noexcept {
        const ContextBasis basis(context);
        train(context, basis, raw(basis), time);
    }

    // Normalised, before the clamp.
    double raw(const ContextBasis & basis) const noexcept {
        const double * w = lanes.weight;
        const double * x = basis.phi;
        return ((w[0] + w[1] * x[1]) + w[2] * x[2]) + (w[3] * x[3] + w[4] * x[4]); // two short chains
    }

    // Microseconds at a context, and where raw() is known; requires trained().
    double price(const ContextBasis & basis) const noexcept { return price_of(raw(basis)); }
    double price_of(double raw) const noexcept { return std::clamp(raw, kLawLow * floor, kLawHigh * floor) * scale; }

    template <class A> void fields(A & a) {
        a(samples, scale, floor);
        for (int32_t i = 0; i < kBasis; ++i) {
            a(lanes.weight[i]);
        }
        a(held_context, held_time);
        for (int32_t i = 0; i < kBasis; ++i) {
            a(lanes.z[i], lanes.n[i], lanes.root_n[i]);
        }
    }

  private:
    void fold(const ContextBasis & basis, double predicted, double time) noexcept;
};

} // namespace adaspark::core
