// What is timed again and again, and its price: context law x level x clock x markup (paper section 3.2, "The price",
// Eq. 5).
#pragma once

#include "core/context_law.h"
#include "core/sample_bank.h"

#include <algorithm>
#include <cstdint>

namespace adaspark::core {

inline constexpr int32_t kLevelWindow = 8;
inline constexpr double kLevelLow = 0.5;
inline constexpr double kLevelHigh = 2.0;
inline constexpr double kClockMost = 16.0; // times faster or slower than its laws a machine may become
inline constexpr double kMarkupMost = 1.25;
inline constexpr uint32_t kMeasurements = 3; // of a width before it is priced
inline constexpr uint32_t kTrusted = 8;      // samples of a law that may tell the machine's speed
inline constexpr uint32_t kIdleRounds = 128; // without a run until a price is doubted; doubled when confirmed
inline constexpr uint32_t kFirstIdle = 4;    // the same of one row, whose first times are the coldest

// The last kLevelWindow ratios measured / law (of a width's level, measured / law / clock). Their least follows the
// machine within 8 runs and, unlike an all-time minimum, rises again when the machine slows.
struct Level {
    uint32_t seen = 0;
    float ratio[kLevelWindow] = {};

    void add(double r) noexcept;
    double least() const noexcept; // 1 with no ratios
    double value() const noexcept { return std::clamp(least(), kLevelLow, kLevelHigh); }

    template <class A> void fields(A & a) { a(seen, ratio); }
};

// How fast the machine runs against its laws, from the last ratios measured / law of laws that can be trusted.
struct Pace {
    double clock = 1.0;   // times a law is the price at hand: the least of kLevelWindow ratios
    double typical = 1.0; // what a time is divided by before a law learns it: a share kQuantile of ratios is below

    void take(const Level & ratios) noexcept;
};

// What a time is over its price, at the median: laws, levels and the clock are low on purpose, so that a neighbour does
// not move them, and lie some percent under the times wherever these scatter. One factor for all, so that what widths
// and the draft cost relative to one another is left to their laws. It follows by a step a time, up or down: in the end
// as many lie above it as below. Times of more than kMarkupMost prices are a neighbour's, or a slower machine's, and do
// not count.
struct Markup {
    double value = 1.0; // within [1, kMarkupMost]
    uint32_t seen = 0;

    void add(double time_over_price) noexcept;

    template <class A> void fields(A & a) { a(value, seen); }
};

// A timed thing: the verifies of one width, or the fixed part of a drafted round.
struct Timed {
    uint32_t count = 0; // samples
    double lowest =
        0.0; // microseconds, at a clock of 1: least of the current block of 8 (the price where laws are off)
    double anchor = 0.0; // the same, of the block before: the price without a law
    uint32_t due = 0;    // round of the table from which it is idle
    uint32_t wait = kIdleRounds;
    uint32_t surprises = 0; // 1: the last run, of an idle one, was much quicker than its price
    uint32_t known = 0;     // bit b: the law was made in context band b, or prices its typical sample within kFits
    uint32_t borrowed = 0;  // bit b: the law has been fitted on samples of band b that another width lent
    uint32_t fresh = 0;     // 1: has run since the last refit
    uint32_t level_context[kLevelWindow] = {}; // of the level's ratios
    double ran = 0.0;                          // this round's measured / law for the level, 0 = none
    uint32_t ran_context = 0;                  // its context
    Level level;                               // of measured / law / clock
    ContextLaw law;
    SampleBank bank;

    // Returns measured / law from before this sample trains the law, or 0 where it says nothing of the machine's speed:
    // while the law has few samples, in a context band that it does not know, and where the price itself is in doubt.
    // `round` of the table.
    double record(uint32_t context, const ContextBasis & basis, double time, const Pace & pace,
                  uint32_t round) noexcept;
    // After the clock has taken this round's ratio: the level takes its own.
    void settle(double clock) noexcept;
    // Its samples are of long ago. Rounds may wrap around.
    bool idle(uint32_t round) const noexcept { return count > 0 && static_cast<int32_t>(round - due) >= 0; }
    // At the end of a request; `samples`: the bank, and what other widths lend it.
    void refit(const SampleBank & samples) noexcept;

    template <class A> void fields(A & a) {
        a(count, lowest, anchor, due, wait, surprises, known, borrowed, fresh, level_context, level, law, bank);
    }
};

} // namespace adaspark::core
