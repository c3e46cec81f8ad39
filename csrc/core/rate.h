// The long-run decode rate of a context band, the price of time in Eq. (7) (paper section 3.4, i).
#pragma once

#include "core/context_law.h"

#include <cstdint>

namespace adaspark::core {

inline constexpr double kRateKeep = 0.9892280131939755; // 0.5^(1/64): a half-life of 64 rounds of the band
inline constexpr uint32_t kRateRounds = 8;              // rounds of a band before its rate is used

struct LongRunRate {
    double tokens[kBands] = {}; // decayed committed tokens
    double time[kBands] = {};   // decayed microseconds
    uint32_t rounds[kBands] = {};

    void add(uint32_t context, double committed, double microseconds) noexcept {
        const int32_t m = context_band(context);
        tokens[m] = tokens[m] * kRateKeep + committed;
        time[m] = time[m] * kRateKeep + microseconds;
        rounds[m] += rounds[m] < UINT32_MAX ? 1 : 0;
    }

    // Tokens per microsecond, or 0 while the band has too few rounds.
    double rate(uint32_t context) const noexcept {
        const int32_t m = context_band(context);
        return rounds[m] >= kRateRounds && time[m] > 0.0 ? tokens[m] / time[m] : 0.0;
    }

    template <class A> void fields(A & a) { a(tokens, time, rounds); }
};

} // namespace adaspark::core
