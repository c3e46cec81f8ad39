// The long-run decode rate, the price of time in Eq. (7) (paper section 3.4, i): of the positions of a context band
// with as much text to go on. The paper has one of all the band's positions; but a copy that decodes fast does not make
// a token after it worth more time.
#pragma once

#include "core/context_law.h"
#include "core/text_bin.h"

#include <cstdint>

namespace adaspark::core {

inline constexpr double kRateKeep = 0.9892280131939755; // 0.5^(1/64): a half-life of 64 rounds of the band
inline constexpr uint32_t kRateRounds = 8;              // rounds before a rate is used

struct LongRunRate {
    static constexpr int32_t kAll = kTextBins; // the band's positions together

    double tokens[kBands][kTextBins + 1] = {}; // decayed committed tokens
    double time[kBands][kTextBins + 1] = {};   // decayed microseconds
    uint32_t rounds[kBands][kTextBins + 1] = {};

    void add(uint32_t context, int32_t bin, double committed, double microseconds) noexcept {
        const int32_t m = context_band(context);
        for (const int32_t b : {bin, kAll}) {
            tokens[m][b] = tokens[m][b] * kRateKeep + committed;
            time[m][b] = time[m][b] * kRateKeep + microseconds;
            rounds[m][b] += rounds[m][b] < UINT32_MAX ? 1 : 0;
        }
    }

    // Tokens per microsecond, of the whole band while the bin has too few rounds; 0 while that has too few.
    double rate(uint32_t context, int32_t bin) const noexcept {
        const int32_t m = context_band(context);
        const int32_t b = rounds[m][bin] >= kRateRounds ? bin : kAll;
        return rounds[m][b] >= kRateRounds && time[m][b] > 0.0 ? tokens[m][b] / time[m][b] : 0.0;
    }

    template <class A> void fields(A & a) { a(tokens, time, rounds); }
};

} // namespace adaspark::core
