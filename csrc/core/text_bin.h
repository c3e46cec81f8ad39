// A position of the text by what the text alone proposes there. Like its context it does not depend on how wide rounds
// are, so what is learned of decoding is kept apart for each.
#pragma once

#include <cstdint>

namespace adaspark::core {

inline constexpr int32_t kTextBins = 4; // by the tokens expected of text alone: < 1.15 | < 2 | < 4 | more

inline int32_t text_bin(double tokens) noexcept { return tokens < 1.15 ? 0 : tokens < 2.0 ? 1 : tokens < 4.0 ? 2 : 3; }

} // namespace adaspark::core
