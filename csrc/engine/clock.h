// Monotonic time for statistics.
#pragma once

#include <chrono>

namespace adaspark {

inline double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace adaspark
