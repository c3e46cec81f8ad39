#include "core/timed.h"

#include <algorithm>
#include <bit>

namespace adaspark::core {

namespace {
constexpr double kSurprise = 0.9;     // of its price: a time below it contradicts the price
constexpr double kMarkupStep = 0.1;   // of itself, over the times seen, as for a median of what scatters by 4% ...
constexpr double kMarkupFirst = 0.02; // ... at most
constexpr double kMarkupLast = 0.001; // ... at least, so that it follows within some 50 times
constexpr double kFits = 1.15;        // of a band's typical time: a law this near it knows the band
} // namespace

void Level::add(double r) noexcept {
    ratio[seen % kLevelWindow] = static_cast<float>(r);
    seen = seen == UINT32_MAX ? 2 * kLevelWindow : seen + 1;
}

double Level::least() const noexcept {
    if (seen == 0) {
        return 1.0;
    }
    float least = ratio[0];
    if (seen >= kLevelWindow) {
        const float a = std::min(std::min(ratio[0], ratio[1]), std::min(ratio[2], ratio[3]));
        const float b = std::min(std::min(ratio[4], ratio[5]), std::min(ratio[6], ratio[7]));
        least = std::min(a, b);
    } else {
        for (uint32_t i = 1; i < seen; ++i) {
            least = std::min(least, ratio[i]);
        }
    }
    return least;
}

namespace {

// The least and the second of the numbers seen so far, ascending.
struct TwoLeast {
    float first, second;
    static TwoLeast of(float a, float b) noexcept { return {std::min(a, b), std::max(a, b)}; }
    static TwoLeast of(const TwoLeast & a, const TwoLeast & b) noexcept {
        return {std::min(a.first, b.first), std::min(std::max(a.first, b.first), std::min(a.second, b.second))};
    }
};

} // namespace

void Pace::take(const Level & ratios) noexcept {
    if (ratios.seen < kLevelWindow) {
        typical = clock = std::clamp(ratios.least(), 1.0 / kClockMost, kClockMost);
        return;
    }
    const float * r = ratios.ratio;
    const TwoLeast least = TwoLeast::of(TwoLeast::of(TwoLeast::of(r[0], r[1]), TwoLeast::of(r[2], r[3])),
                                        TwoLeast::of(TwoLeast::of(r[4], r[5]), TwoLeast::of(r[6], r[7])));
    clock = std::clamp<double>(least.first, 1.0 / kClockMost, kClockMost);
    // The next ratio falls below the least of eight in one round of nine, below the second in two.
    constexpr double between = kQuantile * (kLevelWindow + 1) - 1.0;
    typical = clock + between * (std::clamp<double>(least.second, clock, kClockMost) - clock);
}

void Markup::add(double time_over_price) noexcept {
    if (!(time_over_price <= kMarkupMost)) {
        return;
    }
    seen = seen == UINT32_MAX ? seen : seen + 1;
    const double step = std::clamp(kMarkupStep / seen, kMarkupLast, kMarkupFirst);
    value = std::clamp(value * (time_over_price > value ? 1.0 + step : 1.0 - step), 1.0, kMarkupMost);
}

double Timed::record(uint32_t context, const ContextBasis & basis, double time, const Pace & pace,
                     uint32_t round) noexcept {
    const double predicted = law.raw(basis);
    const double ratio = law.trained() ? time / law.price_of(predicted) : 0.0;
    // The price of an idle thing is doubted: that it runs quicker says nothing of the machine. The level is the least
    // of its window, so the first quick run is kept from it: one quiet moment of a busy machine is not a lower price.
    // Not of one row while it is young: its first times, of a request that begins, are the likelier ones to be wrong.
    const bool doubted = idle(round) && law.trained();
    const bool surprising = doubted && ratio < kSurprise * level.value() * pace.clock;
    const bool first_surprise = surprising && ratio < kSurprise * pace.clock && surprises == 0 && wait >= kIdleRounds;
    surprises = first_surprise ? 1 : 0;
    if (!first_surprise) {
        wait = doubted && !surprising ? std::min(2 * wait, UINT32_MAX / 4) : wait;
        due = round + wait;
    }
    // Everything learned is at one speed of the machine: else what runs while it changes would absorb the change, and
    // what does not run would look cheap or dear beside it.
    const double learned = time / pace.typical;
    lowest = count % kLevelWindow == 0 ? learned : std::min(lowest, learned);
    count = count == UINT32_MAX ? 2 * kLevelWindow : count + 1;
    if (count == kMeasurements || count % kLevelWindow == 0) {
        anchor = lowest;
    }
    // A context that the law has not been fitted on may take longer on the same machine. Until the refit at the end of
    // the request such a time is no evidence of drift, or requests at two contexts in turns, or one that grows, would
    // look like a machine that changes its speed.
    const uint32_t band = 1U << context_band(context);
    known |= law.trained() ? 0U : band;
    const bool evidence = ratio > 0.0 && !surprising && (known & band) != 0 && count > kTrusted;
    ran = first_surprise ? 0.0 : ratio;
    ran_context = context;
    fresh = 1;
    // The first samples of a band teach the law there. Then it stands until the refit, and a change is the machine's: a
    // law that went on would absorb what the clock tells of, and what does not run would be left behind.
    if (!evidence || bank.band[context_band(context)].seen < kBankDepth) {
        law.train(context, basis, predicted, learned);
    }
    bank.add(context, learned);
    return evidence ? ratio : 0.0;
}

void Timed::settle(double clock) noexcept {
    if (ran > 0.0) {
        level_context[level.seen % kLevelWindow] = ran_context;
        level.add(ran / clock);
        ran = 0.0;
    }
}

void Timed::refit(const SampleBank & samples) noexcept {
    const ContextLaw before = law;
    const Refit outcome = core::refit(law, samples);
    fresh = 0;
    if (outcome == Refit::refused) {
        return;
    }
    known = 0;
    for (uint32_t left = bank.bands(); left != 0; left &= left - 1) {
        const int32_t b = std::countr_zero(left);
        const SampleBank::Typical s = bank.typical(b);
        const double misfit = law.price(ContextBasis(s.context)) / s.time;
        known |= misfit < kFits && misfit > 1.0 / kFits ? 1U << b : 0U;
    }
    if (outcome == Refit::adopted) { // the level is of what the law says
        for (uint32_t i = 0; i < std::min<uint32_t>(level.seen, kLevelWindow); ++i) {
            const ContextBasis basis(level_context[i]);
            level.ratio[i] = static_cast<float>(level.ratio[i] * before.price(basis) / law.price(basis));
        }
    }
}

} // namespace adaspark::core
