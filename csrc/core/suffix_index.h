// The request's own text, prompt and reply, indexed by suffix (paper section 3.3, "N-gram candidates"): what followed
// an earlier occurrence of the current context, or else the most frequent follower of the last three tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace adaspark::core {

inline constexpr int32_t kFollowerKey = 3;   // tokens of a follower context
inline constexpr int32_t kFollowers = 4;     // distinct followers remembered of a context; a fifth is ignored
inline constexpr int32_t kCopyKey = 4;       // tokens a copy match needs
inline constexpr int32_t kCopyMost = 64;     // tokens a copy match is measured to
inline constexpr int32_t kCopyLong = 16;     // tokens that make a copy match a long one
inline constexpr int32_t kCopyPositions = 8; // latest earlier occurrences compared
inline constexpr int32_t kFollowerContexts = 65536;

// How strong the evidence for a text candidate is; each has its own measured precision.
inline constexpr int32_t kSlots =
    4; // follower seen once | follower seen more often | copy of 4..15 | copy of 16 or more

struct Proposal {
    int32_t token = -1;
    int32_t slot = -1;    // [0, kSlots), -1 = nothing to propose
    int32_t position = 0; // of `token` in the text, where a copy reads on
    int32_t length = 0;   // tokens matched by a copy, [4, 64]; 0 for a follower
};

inline int32_t copy_slot(int32_t length) noexcept { return length >= kCopyLong ? 3 : 2; }

class SuffixIndex {
  public:
    // Forgets everything and makes room for `capacity` tokens. The only member that allocates.
    void begin(int32_t capacity);

    // Scores what would have been proposed for this token, then appends it. Past the capacity: does nothing.
    void append(int32_t token) noexcept { append({&token, 1}); }

    // The same for several tokens in turn; the tables' lines are fetched ahead. A prompt, or a round's accepted path.
    void append(std::span<const int32_t> tokens) noexcept;

    // What follows a context that ends just before `end` and reaches back at least `available` tokens. The context need
    // not be in the index. A copy match comes first, the longest of the latest kCopyPositions, ties to the latest.
    Proposal propose(const int32_t * end, int32_t available) const noexcept { return propose(end, available, Match{}); }
    // The same for the index's text and one token behind it.
    Proposal propose_behind(const int32_t * end, int32_t available) const noexcept;

    // Bit i: something may have followed tokens i, i + 1 and i + 2. `count` <= 32 contexts. Where it is 0, propose()
    // finds nothing.
    uint32_t may_follow(const int32_t * tokens, int32_t count) const noexcept;

    std::span<const int32_t> tokens() const noexcept { return {tokens_.data(), static_cast<size_t>(size_)}; }

    // Top-1 precision of each slot on this request's committed text: (right + 1) / (proposed + 2).
    double precision(int32_t slot) const noexcept { return (right_[slot] + 1.0) / (proposed_[slot] + 2.0); }
    // Its logit, by slot: ln((right + 1) / (proposed - right + 1)).
    void logit_precision(double * out) const noexcept;

  private:
    // One context of three tokens. Fits a cache line.
    struct alignas(64) Followers {
        uint32_t epoch = 0; // request it belongs to: an entry of an earlier request is free
        int32_t key[kFollowerKey] = {};
        int32_t used = 0;
        int32_t token[kFollowers] = {}; // by decreasing count, then increasing token
        uint32_t count[kFollowers] = {};
    };

    // A copy match of some context: the tokens before `position` are the context's last `length`.
    struct Match {
        int32_t position = -1;    // -1 = none
        int32_t length = 0;       // at most kCopyMost
        int32_t most = kCopyMost; // no match of the context, compared or not, is longer
    };

    // One position's place in its copy bucket.
    struct Link {
        int32_t previous; // the position before it, -1 at the end
        int32_t ordinal;  // positions before it
    };

    uint32_t copy_home(const int32_t * end) const noexcept;
    bool seen(uint64_t hash) const noexcept { // may say yes to a context that never was
        const uint64_t bit = hash >> filter_shift_;
        return (filter_[bit >> 6] >> (bit & 63) & 1U) != 0;
    }
    void append_hashed(int32_t token, uint64_t hash, uint32_t home) noexcept;
    Proposal propose(const int32_t * end, int32_t available, const Match & known) const noexcept;
    Match grown(const int32_t * end, int32_t context) const noexcept;
    bool among_latest(const Match & known, uint32_t home) const noexcept;
    Match longest_copy(const int32_t * end, int32_t available, uint32_t home, const Match & known) const noexcept;
    Match compare_bucket(const int32_t * end, int32_t available, uint32_t home, Match known) const noexcept;
    uint32_t find(const int32_t * end, uint64_t hash) const noexcept;
    void count_follower(Followers & f, const int32_t * end, int32_t token) noexcept;
    static void count_another(Followers & f, int32_t token) noexcept;
    void score(int32_t slot, bool right) noexcept;

    std::vector<int32_t> tokens_; // committed text
    std::vector<Link> link_;      // per position
    std::vector<int32_t> head_;   // per copy bucket: latest position whose kCopyKey predecessors hash here
    std::vector<Followers> followers_;
    // One bit a hashed context of three tokens that has been followed by something. Small enough for the first-level
    // cache, and most contexts a chain asks about have never been seen, by copies (four tokens) no more than by
    // followers.
    std::vector<uint64_t> filter_;
    Match best_;            // the longest copy match of the last scored context
    int32_t best_end_ = -1; // tokens of that context
    int32_t size_ = 0;
    int32_t capacity_ = 0;
    int32_t contexts_ = 0;       // follower contexts in use
    uint32_t head_shift_ = 63;   // 64 - log2(buckets)
    uint32_t filter_shift_ = 63; // 64 - log2(bits of the filter)
    uint32_t follower_mask_ = 0;
    uint32_t epoch_ = 0;
    int32_t right_[kSlots] = {};
    int32_t proposed_[kSlots] = {};
};

} // namespace adaspark::core
