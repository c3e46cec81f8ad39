#include "engine/topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace adaspark {

namespace {

constexpr std::size_t kLanes = 16;

// The largest of some numbers, those that are not numbers left out: lanes instead of one chain, so that it vectorises.
float largest_of(std::span<const float> x) noexcept {
    float top[kLanes];
    std::fill_n(top, kLanes, -std::numeric_limits<float>::infinity());
    std::size_t i = 0;
    for (; i + kLanes <= x.size(); i += kLanes) {
        const float * v = x.data() + i;
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
            top[lane] = v[lane] > top[lane] ? v[lane] : top[lane];
        }
    }
    float largest = *std::max_element(top, top + kLanes);
    for (; i < x.size(); ++i) {
        largest = x[i] > largest ? x[i] : largest;
    }
    return largest;
}

} // namespace

int32_t argmax(std::span<const float> row) noexcept {
    constexpr std::size_t kBlock = 1024; // the second pass looks into one block only
    const std::size_t n = row.size();
    float best = -std::numeric_limits<float>::infinity();
    std::size_t best_block = n;
    bool nan = false;
    for (std::size_t b = 0; b < n; b += kBlock) {
        const std::span<const float> block = row.subspan(b, std::min(kBlock, n - b));
        int bad = 0;
        for (const float v : block) {
            bad |= static_cast<int>(v != v);
        }
        nan = nan || bad != 0;
        const float top = largest_of(block);
        if (top > best || best_block == n) {
            best = top;
            best_block = b;
        }
    }
    if (n == 0 || nan) {
        return -1;
    }
    const std::size_t end = std::min(n, best_block + kBlock);
    for (std::size_t i = best_block; i < end; ++i) {
        if (row[i] == best) {
            return static_cast<int32_t>(i);
        }
    }
    return -1;
}

void top_k(std::span<const float> row, std::span<const int32_t> subset, std::span<int32_t> ids,
           std::span<float> values) noexcept {
    const std::size_t k = ids.size();
    std::fill(ids.begin(), ids.end(), -1);
    std::fill(values.begin(), values.end(), -std::numeric_limits<float>::infinity());
    const auto offer = [&](int32_t id, float v) {
        // values[k - 1] is the weakest kept; -infinity never beats an empty column, so it stays out
        if (!(v > values[k - 1] || (v == values[k - 1] && ids[k - 1] >= 0 && id < ids[k - 1]))) {
            return;
        }
        std::size_t at = k - 1;
        while (at > 0 && (v > values[at - 1] || (v == values[at - 1] && id < ids[at - 1]))) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
            --at;
        }
        values[at] = v;
        ids[at] = id;
    };
    if (subset.empty()) {
        constexpr std::size_t kBlock = 8 * kLanes; // most have nothing to offer
        for (std::size_t b = 0; b < row.size(); b += kBlock) {
            const std::size_t end = std::min(row.size(), b + kBlock);
            if (largest_of(row.subspan(b, end - b)) > values[k - 1]) {
                for (std::size_t i = b; i < end; ++i) {
                    offer(static_cast<int32_t>(i), row[i]);
                }
            }
        }
    } else {
        for (const int32_t id : subset) {
            offer(id, row[static_cast<std::size_t>(id)]);
        }
    }
}

} // namespace adaspark
