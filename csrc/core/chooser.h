// The width that maximises Eq. (7), kept at the incumbent unless beaten by a margin (paper section 3.4).
#pragma once

#include "core/gains.h"
#include "core/width_table.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace adaspark::core {

inline constexpr double kMargin = 0.04; // of the incumbent's expected tokens, or of its ratio

// What a tree of every offered width is expected to accept, by source. Agreed candidates count as text.
struct Expected {
    double draft[kMaxWidths];     // S_d(n) at the offered widths
    double text[kMaxWidths];      // S_ng(n)
    double draft_reference = 0.0; // S_d(n0)
    double text_reference = 0.0;  // S_ng(n0)
};

// How time is priced in one round.
struct Objective {
    Gains gains;
    double rate = 0.0;  // rho, tokens per microsecond; 0 = unknown: widths compete by tokens / time
    double fixed = 0.0; // microseconds besides the verify: D (and what committing costs)
    double margin = kMargin;

    // Expected tokens of a width of `rows` rows whose tree accepts draft + text nodes. Widths differ as in Eq. (7), but
    // one row brings one token: Eq. (7) holds S(n0) fixed, and a gain below 1 would credit a row that verifies nothing
    // with part of it. The paper never compares with a round that did not draft.
    double tokens(int32_t rows, double draft, double text, const Expected & e) const noexcept {
        if (rows < kReferenceRows) {
            return 1.0 + gains.draft_below * draft + gains.text_below * text;
        }
        return 1.0 + gains.draft_below * e.draft_reference + gains.text_below * e.text_reference +
               gains.draft_above * (draft - e.draft_reference) + gains.text_above * (text - e.text_reference);
    }
    double value(double tokens, double verify) const noexcept {
        return rate > 0.0 ? tokens - rate * (fixed + verify) : tokens / (fixed + verify);
    }
    // What another width's value must exceed to replace one of this value.
    double bar(double value, double tokens) const noexcept {
        return rate > 0.0 ? value + margin * tokens : value * (1.0 + margin);
    }
};

struct Choice {
    int32_t position = -1; // of the offer; -1 when nothing is offered
    int32_t rows = 0;
    double tokens = 0.0; // expected, the anchor's included
    double value = 0.0;  // Eq. (7), or the ratio
};

// `incumbent`: rows of the width held, 0 = none (then the best wins outright, as it does when it is not on offer).
// Ties go to the narrower. `values`, when given, receives the value of every offered width.
Choice choose_width(const Offer & offer, const Expected & expected, const Objective & objective, int32_t incumbent,
                    double * values = nullptr) noexcept;

inline constexpr uint32_t kStanding = 24;        // rounds of standing evidence before it may move the incumbent
inline constexpr double kStandingMemory = 48.0;  // rounds its means remember
inline constexpr double kStandingMargin = 0.005; // of the incumbent's expected tokens a round

// The margin keeps one round's noise from flipping the width, but it would also keep for good an incumbent that is a
// little worse every round. Beyond the paper: what another width would have gained over the incumbent is averaged over
// rounds, and an average needs a much smaller margin.
struct StandingAdvantage {
    float mean[kMaxRows + 1] = {}; // by rows: (value - incumbent's value) / incumbent's tokens
    uint32_t rounds = 0;           // behind the means
    int32_t incumbent = 0;         // rows: whom they are measured against

    // One chosen round. Returns the width that should be held from now on.
    int32_t update(const Offer & offer, const double * values, const Choice & held) noexcept;

    template <class A> void fields(A & a) { a(mean, rounds, incumbent); }
};

inline constexpr double kSteep = 1.25; // a class whose top costs this much more than its bottom is split at its edge

// Where to split a class so that a width inside could win, or 0 (paper section 3.2). A width between neighbours a < b
// is taken to cost at least the price of a and to bring at most the tokens of b - 1 rows; the nearest class to the held
// width that clears the margin under these terms is split: next to the held width where the price is steep, else in the
// middle. `tops` ascend; `price` is infinite where unmeasured; `tokens(rows)` are the round's expected tokens.
template <class Tokens>
int32_t split_point(std::span<const int32_t> tops, std::span<const double> price, int32_t held_rows, double held_tokens,
                    const Objective & objective, Tokens tokens) noexcept {
    const int32_t n = static_cast<int32_t>(tops.size());
    int32_t at = -1;
    for (int32_t i = 0; i < n; ++i) {
        at = tops[static_cast<size_t>(i)] == held_rows ? i : at;
    }
    if (at < 0) {
        return 0;
    }
    double held_price = price[static_cast<size_t>(at)]; // of the cheapest width at least as wide
    for (int32_t i = at + 1; i < n; ++i) {
        held_price = std::min(held_price, price[static_cast<size_t>(i)]);
    }
    const double bar = objective.bar(objective.value(held_tokens, held_price), held_tokens);
    for (int32_t distance = 0; distance < n; ++distance) {
        for (const int32_t upper : {at - distance, at + 1 + distance}) { // below the held width, above it, outwards
            if (upper < 1 || upper >= n) {
                continue;
            }
            const size_t u = static_cast<size_t>(upper);
            const int32_t a = tops[u - 1];
            const int32_t b = tops[u];
            if (b - a < 2 || !(price[u - 1] < 1e300) || !(price[u] < 1e300) ||
                objective.value(tokens(b - 1), price[u - 1]) <= bar) {
                continue;
            }
            if (price[u] > kSteep * price[u - 1]) {
                if (a == held_rows) {
                    return a + 1;
                }
                if (b == held_rows) {
                    return b - 1;
                }
            }
            return (a + b) / 2;
        }
    }
    return 0;
}

} // namespace adaspark::core
