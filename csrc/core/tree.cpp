#include "core/tree.h"

#include <algorithm>

namespace adaspark::core {

void order_best_first(std::span<const Candidate> candidates, int32_t limit, Order & out) noexcept {
    const auto n = static_cast<int32_t>(candidates.size());
    int32_t placed = 0;
    for (int32_t i = 0; i < n; ++i) {
        const Candidate & c = candidates[static_cast<std::size_t>(i)];
        const double above = c.parent == kAnchor ? 1.0 : out.path_q[c.parent];
        out.path_q[i] = above * static_cast<double>(c.q);
        if (out.path_q[i] > 0.0) {
            out.index[placed++] = i;
        }
    }
    // A child's Q is at most its parent's and its index is higher, so sorting by (Q, index) keeps parents first.
    const auto better = [&out](int32_t a, int32_t b) {
        return out.path_q[a] != out.path_q[b] ? out.path_q[a] > out.path_q[b] : a < b;
    };
    out.count = std::clamp(limit, 0, placed);
    std::partial_sort(out.index, out.index + out.count, out.index + placed, better);
}

void layout_depth_first(int32_t anchor_token, std::span<const Candidate> candidates, const Order & order, int32_t n,
                        Tree & out) noexcept {
    n = std::min({n, order.count, kMaxRows - 1});
    // Children of every placed candidate in the order's sequence, as linked lists over places; place -1 is the anchor.
    int32_t place_of[kMaxCandidates];
    int32_t first_child[kMaxRows];
    int32_t last_child[kMaxRows];
    int32_t next[kMaxRows];
    std::fill(std::begin(first_child), std::end(first_child), -1);
    for (int32_t p = 0; p < n; ++p) {
        const int32_t c = order.index[p];
        place_of[c] = p;
        next[p] = -1;
        const int32_t parent = candidates[static_cast<std::size_t>(c)].parent;
        const int32_t slot = parent == kAnchor ? 0 : place_of[parent] + 1;
        if (first_child[slot] < 0) {
            first_child[slot] = p;
        } else {
            next[last_child[slot]] = p;
        }
        last_child[slot] = p;
    }
    out.rows = 1;
    out.token[0] = anchor_token;
    out.parent[0] = -1;
    out.depth[0] = 0;
    out.candidate[0] = -1;
    out.ancestors[0] = 1;
    int32_t row_of[kMaxRows]; // by slot: 0 the anchor, place + 1
    row_of[0] = 0;
    int32_t stack[kMaxRows];
    int32_t top = 0;
    if (first_child[0] >= 0) {
        stack[top++] = first_child[0];
    }
    while (top > 0) {
        const int32_t p = stack[--top];
        const int32_t c = order.index[p];
        const int32_t parent = candidates[static_cast<std::size_t>(c)].parent;
        const int32_t above = row_of[parent == kAnchor ? 0 : place_of[parent] + 1];
        const int32_t row = out.rows++;
        out.token[row] = candidates[static_cast<std::size_t>(c)].token;
        out.parent[row] = above;
        out.depth[row] = out.depth[above] + 1;
        out.candidate[row] = c;
        out.ancestors[row] = out.ancestors[above] | (uint64_t{1} << row);
        row_of[p + 1] = row;
        if (next[p] >= 0) {
            stack[top++] = next[p]; // the sibling waits until this branch is laid out
        }
        if (first_child[p + 1] >= 0) {
            stack[top++] = first_child[p + 1];
        }
    }
}

} // namespace adaspark::core
