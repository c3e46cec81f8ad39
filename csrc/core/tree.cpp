#include "core/tree.h"

#include "core/kernels.h"

#include <algorithm>
#include <bit>
#include <cassert>

namespace adaspark::core {

namespace {
constexpr float kGuessShare = 0.5F; // of the last Q placed
constexpr float kLeastGuess = 1e-30F;
} // namespace

void order_best_first(std::span<const Candidate> candidates, int32_t limit, Order & out) noexcept {
    assert(candidates.size() <= static_cast<size_t>(kMaxCandidates));
    const int32_t n = static_cast<int32_t>(candidates.size());
    for (int32_t i = 0; i < n; ++i) {
        const Candidate & c = candidates[static_cast<size_t>(i)];
        assert(c.parent < i && c.q >= 0.0F && c.q <= 1.0F);
        out.path_q[i] = c.parent < 0 ? c.q : out.path_q[c.parent] * c.q;
    }
    order_by_path_q(n, limit, out);
}

void order_by_path_q(int32_t n, int32_t limit, Order & out) noexcept {
    for (int32_t i = n; i % 8 != 0; ++i) {
        out.path_q[i] = 0.0F; // whole vectors
    }
    out.count = kernels().rank_descending(out.path_q, n, std::clamp(limit, 0, n), out.guess, out.index);
    if (out.count > 0) { // the next round's candidates are of much the same kind
        out.guess = std::max(kGuessShare * out.path_q[out.index[out.count - 1]], kLeastGuess);
    }
}

namespace {

template <class Token, class Parent>
void layout(int32_t anchor_token, Token token_of, Parent parent_of, const Order & order, int32_t n,
            Tree & out) noexcept {
    n = std::min({n, order.count, kMaxRows - 1});
    // Slot r + 1 holds the candidate of rank r; slot 0 is the anchor. Parents have the lower rank, so one sweep from
    // the last rank gives subtree sizes and one from the first gives every node its row.
    uint8_t slot_of[kCandidateSlots];
    uint8_t parent_slot[kMaxRows];
    uint8_t size[kMaxRows];
    bool chain = true; // every node has at most one child
    for (int32_t s = 1; s <= n; ++s) {
        const int32_t index = order.index[s - 1];
        const int32_t parent = parent_of(index);
        slot_of[index] = static_cast<uint8_t>(s);
        parent_slot[s] = parent < 0 ? uint8_t{0} : slot_of[parent];
        size[s] = 1;
        chain &= parent_slot[s] == s - 1;
    }
    out.rows = n + 1;
    out.token[0] = anchor_token;
    out.parent[0] = -1;
    out.depth[0] = 0;
    out.candidate[0] = -1;
    out.rank[0] = -1;
    out.ancestors[0] = 1;
    if (chain) { // already depth-first: a long copy, mostly
        for (int32_t s = 1; s <= n; ++s) {
            out.candidate[s] = order.index[s - 1];
            out.token[s] = token_of(order.index[s - 1]);
            out.parent[s] = s - 1;
            out.depth[s] = s;
            out.rank[s] = s - 1;
            out.ancestors[s] = (uint64_t{2} << s) - 1;
        }
        return;
    }
    size[0] = 1;
    for (int32_t s = n; s >= 1; --s) {
        size[parent_slot[s]] = static_cast<uint8_t>(size[parent_slot[s]] + size[s]);
    }
    uint8_t next_row[kMaxRows]; // first free row below the node of this slot
    uint8_t row_of[kMaxRows];
    row_of[0] = 0;
    next_row[0] = 1;
    for (int32_t s = 1; s <= n; ++s) {
        const int32_t above = parent_slot[s];
        const int32_t row = next_row[above];
        const int32_t parent_row = row_of[above];
        const int32_t index = order.index[s - 1];
        next_row[above] = static_cast<uint8_t>(row + size[s]);
        next_row[s] = static_cast<uint8_t>(row + 1);
        row_of[s] = static_cast<uint8_t>(row);
        out.token[row] = token_of(index);
        out.parent[row] = parent_row;
        out.depth[row] = out.depth[parent_row] + 1;
        out.candidate[row] = index;
        out.rank[row] = s - 1;
        out.ancestors[row] = out.ancestors[parent_row] | (uint64_t{1} << row);
    }
}

} // namespace

void layout_depth_first(int32_t anchor_token, std::span<const Candidate> candidates, const Order & order, int32_t n,
                        Tree & out) noexcept {
    const Candidate * c = candidates.data();
    layout(anchor_token, [c](int32_t i) { return c[i].token; }, [c](int32_t i) { return c[i].parent; }, order, n, out);
}

void layout_depth_first(int32_t anchor_token, const int32_t * token, const int32_t * parent, const Order & order,
                        int32_t n, Tree & out) noexcept {
    layout(
        anchor_token, [token](int32_t i) { return token[i]; }, [parent](int32_t i) { return parent[i]; }, order, n,
        out);
}

} // namespace adaspark::core
