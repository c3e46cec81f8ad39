// The candidates of one round: the drafter's block and the text chains merged into it (paper sections 2.2 and 3.3).
// Block candidate (position, lane) has index position * kTopK + lane; lane 0 is the pick. Text-only nodes follow.
#pragma once

#include "core/kernels.h"
#include "core/suffix_index.h"
#include "core/tree.h"

#include <bit>
#include <cstdint>
#include <span>

namespace adaspark::core {

inline constexpr int32_t kChainDepth = 32; // rows below the anchor a chain reaches at most
inline constexpr int32_t kRunBins = 3;     // text nodes directly above: 0 | 1-2 | 3 or more
inline constexpr int32_t kBuckets = kSlots * kRunBins;

inline int32_t run_bin(int32_t run) noexcept { return run == 0 ? 0 : run <= 2 ? 1 : 2; }

// What the text says about the children of one drafter parent: all of them lose to, or agree with, one proposal.
struct GroupText {
    int8_t slot = -1;   // evidence of the proposal; -1 = the text proposes nothing here
    int8_t run = 0;     // run bin of the proposal
    int8_t agreed = -1; // lane of the block candidate that is the proposal, -1 = none
    int16_t child = -1; // text-only node of the proposal (number, from 0), -1 = none
};

// One text chain: what the text says comes next, token after token. A stop token ends it.
struct TextChain {
    int32_t count = 0;
    int32_t token[kChainDepth];
    int8_t slot[kChainDepth];
};

struct CandidateSet {
    int32_t positions = 0; // drafter positions in use, [0, kMaxBlock]
    int32_t top_k = kTopK; // lanes in use
    int32_t text = 0;      // text-only nodes, [0, kMaxText]
    int32_t total = 0;     // positions * kTopK + text
    int32_t proposals = 0; // what the text proposed below the anchor and the picks; 0 = `group` is all empty

    int32_t token[kCandidateSlots];
    int32_t parent[kCandidateSlots];     // candidate index or kAnchor
    int16_t text_child[kCandidateSlots]; // text-only node below a sibling or text node, -1 = none
    uint8_t dead[kMaxBlock];             // bit l: lane l is a stop token (or an unused lane) and never takes a row
    GroupText group[kMaxBlock + 1];      // by position of the children; group[positions] belongs to the last pick

    int8_t text_slot[kMaxText];  // evidence
    int8_t text_run[kMaxText];   // run bin
    int8_t text_depth[kMaxText]; // rows below the anchor, 1..kChainDepth
    bool text_dead[kMaxText];    // a stop token: has a node but no row

    int32_t text_base() const noexcept { return positions * kTopK; }
    bool is_text(int32_t candidate) const noexcept { return candidate >= text_base(); }
    // Position of the drafter candidates below a node, or -1 where it has none.
    int32_t group_below(int32_t candidate) const noexcept {
        if (candidate == kAnchor) {
            return positions > 0 ? 0 : -1;
        }
        return !is_text(candidate) && candidate % kTopK == 0 && candidate / kTopK + 1 < positions
                   ? candidate / kTopK + 1
                   : -1;
    }
    // First lane in use of a drafter group that holds a token, or -1.
    int32_t lane_of(int32_t position, int32_t wanted) const noexcept {
        uint32_t same = 0;
        for (int32_t l = 0; l < kTopK; ++l) {
            same |= (token[position * kTopK + l] == wanted ? 1U : 0U) << l;
        }
        same &= (1U << top_k) - 1U;
        return same != 0 ? std::countr_zero(same) : -1;
    }
    // Text-only node below a node, or -1.
    int32_t text_below(int32_t candidate) const noexcept;
};

// Builds candidate sets over one suffix index. Owns the scratch; no allocation.
class ChainBuilder {
  public:
    void set_stop_tokens(std::span<const int32_t> tokens) noexcept; // at most kStopTokens are kept
    bool is_stop(int32_t token) const noexcept;

    // Starts a round: the context is the index's text and then the anchor.
    void begin(const SuffixIndex & index, int32_t anchor) noexcept;

    // The chain from the anchor; `depth` in [1, kChainDepth].
    void anchor_chain(const SuffixIndex & index, int32_t depth, TextChain & out) noexcept;

    // Takes the drafter's block (tokens [positions][kTopK]); no text yet.
    void take_block(const int32_t * tokens, int32_t positions, int32_t top_k, CandidateSet & out) noexcept;

    // Merges the anchor's chain, then one from every pick that no chain passes.
    void merge_text(const SuffixIndex & index, const TextChain & chain, int32_t depth, CandidateSet & out) noexcept;

    static constexpr int32_t kStopTokens = 16;

  private:
    void read_chain(const SuffixIndex & index, int32_t length, int32_t depth, TextChain & out) noexcept;
    // Merges one chain below `start`.
    void follow(const TextChain & chain, int32_t start, int32_t depth, CandidateSet & out) const noexcept;
    // Text-only nodes, each below the one before, of the chain's nodes [from, from + count); the first lies below
    // `parent`, which is `below` rows from the anchor.
    void add_text(const TextChain & chain, int32_t from, int32_t count, int32_t below, int32_t parent,
                  CandidateSet & out) const noexcept;

    static constexpr int32_t kTail = kCopyMost + 1;
    int32_t context_[kTail + kMaxBlock + kChainDepth + 1]; // committed tail, anchor, path
    int32_t tail_ = 0;                                     // tokens of it up to and with the anchor
    int32_t stop_[kStopTokens] = {};
    int32_t stops_ = 0;
};

} // namespace adaspark::core
