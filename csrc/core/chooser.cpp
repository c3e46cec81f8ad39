#include "core/chooser.h"

#include <limits>

namespace adaspark::core {

Choice choose_width(const Offer & offer, const Expected & expected, const Objective & objective, int32_t incumbent,
                    Choice * best_out) noexcept {
    Choice best;
    Choice held;
    best.value = -std::numeric_limits<double>::infinity();
    for (int32_t i = 0; i < offer.count; ++i) {
        const int32_t rows = offer.rows[i];
        const double tokens = objective.tokens(rows, expected.draft[i], expected.text[i], expected);
        const Choice c{i, rows, tokens, objective.value(tokens, offer.price[i])};
        if (rows == incumbent) {
            held = c;
        }
        if (c.value > best.value) {
            best = c;
        }
    }
    if (best_out != nullptr) {
        *best_out = best;
    }
    if (held.position < 0 || best.value > objective.bar(held.value, held.tokens)) {
        return best;
    }
    return held;
}

} // namespace adaspark::core
