#include "core/candidates.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace adaspark::core {

int32_t CandidateSet::text_below(int32_t candidate) const noexcept {
    if (candidate == kAnchor) {
        return group[0].child;
    }
    if (!is_text(candidate) && candidate % kTopK == 0) {
        return group[candidate / kTopK + 1].child;
    }
    return text_child[candidate];
}

void ChainBuilder::set_stop_tokens(std::span<const int32_t> tokens) noexcept {
    stops_ = static_cast<int32_t>(std::min<size_t>(tokens.size(), kStopTokens));
    std::copy_n(tokens.begin(), stops_, stop_);
}

bool ChainBuilder::is_stop(int32_t token) const noexcept {
    return std::find(stop_, stop_ + stops_, token) != stop_ + stops_;
}

void ChainBuilder::begin(const SuffixIndex & index, int32_t anchor) noexcept {
    const std::span<const int32_t> text = index.tokens();
    const size_t held = std::min<size_t>(text.size(), kCopyMost);
    std::memcpy(context_, text.data() + (text.size() - held), held * sizeof(int32_t));
    context_[held] = anchor;
    tail_ = static_cast<int32_t>(held) + 1;
}

namespace {

// Reads one chain on: along the earlier passage while it copies, else by a fresh look at the extended context.
struct Walker {
    Proposal last;

    bool next(const SuffixIndex & index, const int32_t * end, int32_t available) noexcept {
        const std::span<const int32_t> text = index.tokens();
        if (last.length > 0 && static_cast<size_t>(last.position) + 1 < text.size()) {
            ++last.position;
            last.token = text[static_cast<size_t>(last.position)];
            last.length = std::min(last.length + 1, kCopyMost);
            last.slot = copy_slot(last.length);
            return true;
        }
        last = index.propose(end, available);
        return last.slot >= 0;
    }
};

} // namespace

void ChainBuilder::anchor_chain(const SuffixIndex & index, int32_t depth, AnchorChain & out) noexcept {
    out.count = 0;
    Walker walker;
    while (out.count < depth) {
        const int32_t length = tail_ + out.count;
        if (!walker.next(index, context_ + length, length)) {
            return;
        }
        context_[length] = walker.last.token;
        out.token[out.count] = walker.last.token;
        out.slot[out.count] = static_cast<int8_t>(walker.last.slot);
        ++out.count;
        if (is_stop(walker.last.token)) {
            return;
        }
    }
}

void ChainBuilder::take_block(const int32_t * tokens, int32_t positions, int32_t top_k, CandidateSet & out) noexcept {
    assert(positions >= 0 && positions <= kMaxBlock && top_k >= 1 && top_k <= kTopK);
    out.positions = positions;
    out.top_k = top_k;
    out.text = 0;
    out.proposals = 0;
    out.total = positions * kTopK;
    if (positions > 0) {
        std::memcpy(out.token, tokens, sizeof(int32_t) * static_cast<size_t>(out.total));
    }
    const uint8_t unused = static_cast<uint8_t>(0xFFU << top_k);
    for (int32_t i = 0; i < positions; ++i) {
        const int32_t above = i == 0 ? kAnchor : (i - 1) * kTopK;
        for (int32_t l = 0; l < kTopK; ++l) {
            out.parent[i * kTopK + l] = above;
        }
        out.dead[i] = unused;
        out.group[i] = GroupText{};
    }
    // Empty lanes and stop tokens are rare: look for any before looking for where.
    int32_t odd = 0;
    for (int32_t i = 0; i < out.total; ++i) {
        odd |= out.token[i] < 0 ? 1 : 0;
    }
    for (int32_t s = 0; s < stops_; ++s) {
        for (int32_t i = 0; i < out.total; ++i) {
            odd |= out.token[i] == stop_[s] ? 1 : 0;
        }
    }
    for (int32_t i = 0; odd != 0 && i < out.total; ++i) {
        if (out.token[i] < 0 || is_stop(out.token[i])) {
            out.dead[i / kTopK] = static_cast<uint8_t>(out.dead[i / kTopK] | 1U << (i % kTopK));
        }
    }
    out.group[positions] = GroupText{};
    std::memset(out.text_child, 0xFF, sizeof(int16_t) * static_cast<size_t>(out.total));
}

int32_t ChainBuilder::follow(const SuffixIndex & index, const AnchorChain * chain, int32_t start, int32_t depth,
                             CandidateSet & out) noexcept {
    Walker walker;
    int32_t node = start;
    int32_t run = 0;
    int32_t below = start == kAnchor ? 0 : start / kTopK + 1; // rows from the anchor to `node`
    int32_t step = 0;
    while (below < depth) {
        int32_t token;
        int32_t slot;
        if (chain != nullptr) {
            if (step == chain->count) {
                break;
            }
            token = chain->token[step];
            slot = chain->slot[step];
        } else {
            const int32_t length = tail_ + below;
            if (!walker.next(index, context_ + length, length)) {
                break;
            }
            token = walker.last.token;
            slot = walker.last.slot;
            context_[length] = token;
        }
        ++step;
        const bool stop = is_stop(token);
        const bool spine = node == kAnchor || (!out.is_text(node) && node % kTopK == 0);
        const int32_t g = node == kAnchor ? 0 : node / kTopK + 1; // meaningful on the spine
        int32_t lane = -1;
        if (spine && g < out.positions) {
            lane = out.lane_of(g, token);
        }
        if (spine) {
            ++out.proposals;
            out.group[g].slot = static_cast<int8_t>(slot);
            out.group[g].run = static_cast<int8_t>(run_bin(run));
            out.group[g].agreed = static_cast<int8_t>(lane);
        }
        if (lane >= 0) {
            node = g * kTopK + lane;
        } else {
            if (out.text == kMaxText) {
                if (spine) {
                    out.group[g] = GroupText{};
                }
                break;
            }
            const int32_t t = out.text++;
            const int32_t index_of = out.total++;
            out.token[index_of] = token;
            out.parent[index_of] = node;
            out.text_child[index_of] = -1;
            out.text_slot[t] = static_cast<int8_t>(slot);
            out.text_run[t] = static_cast<int8_t>(run_bin(run));
            out.text_depth[t] = static_cast<int8_t>(below + 1);
            out.text_dead[t] = stop;
            if (spine) {
                out.group[g].child = static_cast<int16_t>(t);
            } else {
                out.text_child[node] = static_cast<int16_t>(t);
            }
            node = index_of;
        }
        ++run;
        ++below;
        if (stop) {
            break;
        }
    }
    return step;
}

void ChainBuilder::merge_text(const SuffixIndex & index, const AnchorChain & chain, int32_t depth,
                              CandidateSet & out) noexcept {
    follow(index, &chain, kAnchor, depth, out);
    for (int32_t i = 0; i < out.positions && i + 1 < depth; ++i) {
        if ((out.dead[i] & 1) != 0) {
            break; // the path to this pick and to every later one holds a stop token
        }
        context_[tail_ + i] = out.token[i * kTopK]; // a chain writes below its start only
        if (out.group[i + 1].slot < 0) {
            follow(index, nullptr, i * kTopK, depth, out);
        }
    }
}

} // namespace adaspark::core
