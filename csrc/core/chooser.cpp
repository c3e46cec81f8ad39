#include "core/chooser.h"

#include <limits>

namespace adaspark::core {

Choice choose_width(const Offer & offer, const Expected & expected, const Objective & objective, int32_t incumbent,
                    double * values) noexcept {
    double tokens[kMaxWidths];
    double own[kMaxWidths];
    double * const value = values != nullptr ? values : own;
    int32_t best = -1;
    int32_t held = -1;
    double most = -std::numeric_limits<double>::infinity();
    for (int32_t i = 0; i < offer.count; ++i) {
        const int32_t rows = offer.rows[i];
        tokens[i] = objective.tokens(rows, expected.draft[i], expected.text[i], expected);
        value[i] = objective.value(tokens[i], offer.price[i]);
        held = rows == incumbent ? i : held;
        best = value[i] > most ? i : best;
        most = value[i] > most ? value[i] : most;
    }
    if (held >= 0 && !(most > objective.bar(value[held], tokens[held]))) {
        best = held;
    }
    if (best < 0) {
        Choice none;
        none.value = most;
        return none;
    }
    return {best, offer.rows[best], tokens[best], value[best]};
}

int32_t StandingAdvantage::update(const Offer & offer, const double * values, const Choice & held) noexcept {
    if (held.rows != incumbent) {
        *this = StandingAdvantage{};
        incumbent = held.rows;
    }
    rounds += rounds < UINT32_MAX ? 1 : 0;
    const float share = static_cast<float>(1.0 / std::min<double>(rounds, kStandingMemory));
    int32_t best = held.rows;
    float most = static_cast<float>(kStandingMargin);
    for (int32_t i = 0; i < offer.count; ++i) {
        const int32_t rows = offer.rows[i];
        mean[rows] += (static_cast<float>((values[i] - held.value) / held.tokens) - mean[rows]) * share;
        if (mean[rows] > most) {
            best = rows;
            most = mean[rows];
        }
    }
    return rounds >= kStanding ? best : held.rows;
}

} // namespace adaspark::core
