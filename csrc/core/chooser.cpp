#include "core/chooser.h"

#include <limits>

namespace adaspark::core {

Choice choose_width(const Offer & offer, const Expected & expected, const Objective & objective, int32_t incumbent,
                    double * values) noexcept {
    Choice best;
    Choice held;
    best.value = -std::numeric_limits<double>::infinity();
    for (int32_t i = 0; i < offer.count; ++i) {
        const int32_t rows = offer.rows[i];
        const double tokens = objective.tokens(rows, expected.draft[i], expected.text[i], expected);
        const Choice c{i, rows, tokens, objective.value(tokens, offer.price[i])};
        if (values != nullptr) {
            values[i] = c.value;
        }
        if (rows == incumbent) {
            held = c;
        }
        if (c.value > best.value) {
            best = c;
        }
    }
    if (held.position < 0 || best.value > objective.bar(held.value, held.tokens)) {
        return best;
    }
    return held;
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
