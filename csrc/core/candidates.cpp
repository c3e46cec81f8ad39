#include "core/candidates.h"

#include <algorithm>
#include <bit>
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

// Reads a chain below the context of `length` tokens: along an earlier passage while it copies, else by a fresh look at
// the extended context, up to `depth` tokens or a stop token. Writes its tokens behind the context.
void ChainBuilder::read_chain(const SuffixIndex & index, int32_t length, int32_t depth, TextChain & out) noexcept {
    const std::span<const int32_t> text = index.tokens();
    int32_t n = 0;
    while (n < depth) {
        const int32_t * end = context_ + length + n;
        const Proposal found = length + n == tail_ ? index.propose_behind(end, length) : index.propose(end, length + n);
        if (found.slot < 0) {
            break;
        }
        // A follower is one token; a copy goes on to the end of the text.
        const int32_t copied =
            found.length > 0 ? std::min(depth - n, static_cast<int32_t>(text.size()) - found.position) : 1;
        if (found.length > 0) {
            const int32_t * passage = text.data() + found.position;
            for (int32_t i = 0; i < copied; ++i) {
                out.token[n + i] = context_[length + n + i] = passage[i];
                out.slot[n + i] = static_cast<int8_t>(copy_slot(found.length + i));
            }
        } else {
            out.token[n] = context_[length + n] = found.token;
            out.slot[n] = static_cast<int8_t>(found.slot);
        }
        const int32_t * stop =
            stops_ == 0 ? nullptr
                        : std::find_if(out.token + n, out.token + n + copied, [&](int32_t t) { return is_stop(t); });
        if (stop != nullptr && stop != out.token + n + copied) {
            out.count = static_cast<int32_t>(stop - out.token) + 1;
            return;
        }
        n += copied;
    }
    out.count = n;
}

void ChainBuilder::anchor_chain(const SuffixIndex & index, int32_t depth, TextChain & out) noexcept {
    read_chain(index, tail_, depth, out);
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

void ChainBuilder::follow(const TextChain & chain, int32_t start, int32_t depth, CandidateSet & out) const noexcept {
    int32_t node = start;
    int32_t below = start == kAnchor ? 0 : start / kTopK + 1; // rows from the anchor to `node`
    const int32_t count = std::min(chain.count, depth - below);
    int32_t step = 0; // nodes of the chain so far: all of them are text nodes directly above
    // Along the picks, and off them where the drafter says something else or nothing.
    for (; step < count && (node == kAnchor || (!out.is_text(node) && node % kTopK == 0)); ++step, ++below) {
        const int32_t token = chain.token[step];
        const int32_t g = node == kAnchor ? 0 : node / kTopK + 1;
        const int32_t lane = g < out.positions ? out.lane_of(g, token) : -1;
        if (lane < 0 && out.text == kMaxText) {
            ++out.proposals;
            out.group[g] = GroupText{};
            return;
        }
        ++out.proposals;
        out.group[g].slot = chain.slot[step];
        out.group[g].run = static_cast<int8_t>(run_bin(step));
        out.group[g].agreed = static_cast<int8_t>(lane);
        if (lane >= 0) {
            node = g * kTopK + lane;
            continue;
        }
        out.group[g].child = static_cast<int16_t>(out.text);
        const int32_t above = node;
        node = out.total;
        add_text(chain, step, 1, below, above, out);
    }
    // Below a sibling or a text node there is text alone.
    const int32_t rest = std::min(count - step, kMaxText - out.text);
    if (rest > 0) {
        out.text_child[node] = static_cast<int16_t>(out.text);
        add_text(chain, step, rest, below, node, out);
    }
}

void ChainBuilder::add_text(const TextChain & chain, int32_t from, int32_t count, int32_t below, int32_t parent,
                            CandidateSet & out) const noexcept {
    const int32_t t = out.text;
    const int32_t c = out.total;
    for (int32_t i = 0; i < count; ++i) {
        out.token[c + i] = chain.token[from + i];
        out.parent[c + i] = c + i - 1;
        out.text_child[c + i] = static_cast<int16_t>(t + i + 1);
        out.text_slot[t + i] = chain.slot[from + i];
        out.text_run[t + i] = static_cast<int8_t>(run_bin(from + i));
        out.text_depth[t + i] = static_cast<int8_t>(below + i + 1);
        out.text_dead[t + i] = false;
    }
    out.parent[c] = parent;
    out.text_child[c + count - 1] = -1;
    out.text_dead[t + count - 1] = is_stop(out.token[c + count - 1]); // a stop token is the last of its chain
    out.text += count;
    out.total += count;
}

void ChainBuilder::merge_text(const SuffixIndex & index, const TextChain & chain, int32_t depth,
                              CandidateSet & out) noexcept {
    follow(chain, kAnchor, depth, out);
    int32_t picks = 0;
    for (; picks < out.positions && picks + 1 < depth; ++picks) {
        if ((out.dead[picks] & 1) != 0) {
            break; // the path to this pick and to every later one holds a stop token
        }
        context_[tail_ + picks] = out.token[picks * kTopK];
    }
    if (tail_ < 2) {
        return; // no text yet
    }
    // Most of these contexts are new: one look at all of them.
    for (uint32_t may = index.may_follow(context_ + tail_ - 2, picks); may != 0; may &= may - 1) {
        const int32_t i = std::countr_zero(may);
        if (out.group[i + 1].slot < 0) {
            for (int32_t above = 0; above <= i; ++above) { // the chain before may have written over it
                context_[tail_ + above] = out.token[above * kTopK];
            }
            TextChain below;
            read_chain(index, tail_ + i + 1, depth - i - 1, below);
            follow(below, i * kTopK, depth, out);
        }
    }
}

} // namespace adaspark::core
