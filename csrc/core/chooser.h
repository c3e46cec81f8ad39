// The width that maximises Eq. (7), kept at the incumbent unless beaten by a margin (paper section 3.4).
#pragma once

#include "gains.h"
#include "width_table.h"

#include <cstdint>

namespace adaspark::core {

inline constexpr double kMargin = 0.04; // of the incumbent's expected tokens, or of its ratio

// What a tree of every offered width is expected to accept, by source. Agreed candidates count as text.
struct Expected {
    double draft[kMaxWidths];       // S_d(n) at the offered widths
    double text[kMaxWidths];        // S_ng(n)
    double draft_reference = 0.0;   // S_d(n0)
    double text_reference = 0.0;    // S_ng(n0)
};

// How time is priced in one round.
struct Objective {
    Gains gains;
    double rate = 0.0;  // rho, tokens per microsecond; 0 = unknown: widths compete by tokens / time
    double fixed = 0.0; // microseconds besides the verify: D (and what committing costs)
    double margin = kMargin;

    // Expected tokens of a width of `rows` rows whose tree accepts draft + text nodes.
    double tokens(int32_t rows, double draft, double text, const Expected & e) const noexcept {
        const bool above = rows >= kReferenceRows;
        const double gain_draft = above ? gains.draft_above : gains.draft_below;
        const double gain_text = above ? gains.text_above : gains.text_below;
        return 1.0 + e.draft_reference + e.text_reference + gain_draft * (draft - e.draft_reference) +
               gain_text * (text - e.text_reference);
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
// Ties go to the narrower. `best`, when given, receives the unconstrained maximiser.
Choice choose_width(const Offer & offer, const Expected & expected, const Objective & objective, int32_t incumbent,
                    Choice * best = nullptr) noexcept;

} // namespace adaspark::core
