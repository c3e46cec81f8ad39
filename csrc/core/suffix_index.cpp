#include "core/suffix_index.h"

#include "core/kernels.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace adaspark::core {

namespace {

constexpr int32_t kBucketSteps = 32; // entries of a copy bucket looked at, other keys' included

uint64_t pair_at(const int32_t * p) noexcept { // to be compared
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

uint64_t word(const int32_t * p) noexcept { // to be hashed
    return static_cast<uint32_t>(p[0]) | static_cast<uint64_t>(static_cast<uint32_t>(p[1])) << 32;
}

uint64_t mix(uint64_t a, uint64_t b) noexcept {
    const uint64_t h = (a * 0x9E3779B97F4A7C15ULL) ^ std::rotl(b * 0xC2B2AE3D27D4EB4FULL, 31);
    return (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9ULL;
}

// The hashes of contexts that follow each other, from registers: a pair loaded over two fresh stores would wait.
struct RollingHash {
    uint64_t last[4] = {}; // tokens, oldest first

    void push(int32_t token) noexcept {
        last[0] = last[1];
        last[1] = last[2];
        last[2] = last[3];
        last[3] = static_cast<uint32_t>(token);
    }
    uint64_t three() const noexcept { return mix(last[1] | last[2] << 32, last[3]); }
    uint64_t four() const noexcept { return mix(last[0] | last[1] << 32, last[2] | last[3] << 32); }
};

uint64_t hash_three(const int32_t * end) noexcept { return mix(word(end - 3), static_cast<uint32_t>(end[-1])); }

// Tokens that agree going back from `a` and `b`, at most `most`.
int32_t match_back(const int32_t * a, const int32_t * b, int32_t most) noexcept {
    int32_t n = 0;
    for (; n + 8 <= most; n += 8) {
        const int32_t * x = a - n - 8;
        const int32_t * y = b - n - 8;
        const uint64_t last = pair_at(x + 6) ^ pair_at(y + 6);
        const uint64_t third = pair_at(x + 4) ^ pair_at(y + 4);
        const uint64_t second = pair_at(x + 2) ^ pair_at(y + 2);
        if ((last | third | second | (pair_at(x) ^ pair_at(y))) != 0) { // how many agree is a toss-up: no branch on it
            n += last != 0 ? 0 : third != 0 ? 2 : second != 0 ? 4 : 6;
            return n + (a[-n - 1] == b[-n - 1] ? 1 : 0);
        }
    }
    while (n < most && a[-n - 1] == b[-n - 1]) {
        ++n;
    }
    return n;
}

} // namespace

void SuffixIndex::begin(int32_t capacity) {
    capacity = std::max(capacity, 64);
    const uint32_t buckets = std::bit_ceil(static_cast<uint32_t>(capacity));
    const uint32_t slots = std::bit_ceil(2U * static_cast<uint32_t>(std::min(capacity, kFollowerContexts)));
    if (static_cast<size_t>(capacity) > tokens_.size()) {
        tokens_.resize(static_cast<size_t>(capacity));
        link_.resize(static_cast<size_t>(capacity));
    }
    head_.assign(buckets, -1);
    const uint32_t bits = std::max(16U * buckets, 4096U);
    filter_.assign(bits / 64, 0);
    filter_shift_ = 64U - static_cast<uint32_t>(std::countr_zero(bits));
    if (slots > followers_.size()) {
        followers_.assign(slots, Followers{});
        epoch_ = 0;
    }
    if (++epoch_ == 0) { // wrapped: entries of four billion requests ago would look alive
        std::fill(followers_.begin(), followers_.end(), Followers{});
        epoch_ = 1;
    }
    head_shift_ = 64U - static_cast<uint32_t>(std::countr_zero(buckets));
    follower_mask_ = slots - 1;
    size_ = 0;
    capacity_ = capacity;
    contexts_ = 0;
    best_ = Match{};
    best_end_ = -1;
    std::fill(std::begin(right_), std::end(right_), 0);
    std::fill(std::begin(proposed_), std::end(proposed_), 0);
}

uint32_t SuffixIndex::copy_home(const int32_t * end) const noexcept {
    return static_cast<uint32_t>(mix(word(end - 4), word(end - 2)) >> head_shift_);
}

// The entry of this context's followers, or the free one where they would go.
inline uint32_t SuffixIndex::find(const int32_t * end, uint64_t hash) const noexcept {
    for (uint32_t i = static_cast<uint32_t>(hash) & follower_mask_;; i = (i + 1) & follower_mask_) {
        const Followers & f = followers_[i]; // the table is at most half full, so a free entry always comes
        if (f.epoch != epoch_ || (f.key[0] == end[-3] && f.key[1] == end[-2] && f.key[2] == end[-1])) {
            return i;
        }
    }
}

// What has become of the last scored context's match in a context of `context` tokens that begins with that one: it
// has grown by the tokens since, or ended. No match grows by more.
inline SuffixIndex::Match SuffixIndex::grown(const int32_t * end, int32_t context) const noexcept {
    const int32_t more = context - best_end_;
    const int32_t at = best_.position + more;
    const int32_t most = std::min(best_.most + more, kCopyMost);
    bool ended = best_.position < 0 || at >= size_;
    for (int32_t i = 1; i <= more && !ended; ++i) {
        ended = tokens_[static_cast<size_t>(at - i)] != end[-i];
    }
    return ended ? Match{-1, 0, most} : Match{at, std::min(best_.length + more, kCopyMost), most};
}

inline bool SuffixIndex::among_latest(const Match & known, uint32_t home) const noexcept {
    const size_t latest = static_cast<size_t>(head_[home]);
    return link_[latest].ordinal - link_[static_cast<size_t>(known.position)].ordinal < kCopyPositions;
}

// The longest of the latest kCopyPositions matches, ties to the latest. `known`: any of the context's, or none, and
// what is known of their length.
inline SuffixIndex::Match SuffixIndex::longest_copy(const int32_t * end, int32_t available, uint32_t home,
                                                    const Match & known) const noexcept {
    // What was the longest of all and has grown is so still, and what was as long as it is earlier still, below the
    // cap. It only has to be among the latest.
    if (known.length == known.most && known.length < kCopyMost && among_latest(known, home)) {
        return known;
    }
    return compare_bucket(end, available, home, known);
}

[[gnu::noinline]] SuffixIndex::Match SuffixIndex::compare_bucket(const int32_t * end, int32_t available, uint32_t home,
                                                                 Match known) const noexcept {
    if (known.most < kCopyKey) {
        return {-1, 0, known.most};
    }
    const Link * link = link_.data();
    const int32_t * text = tokens_.data();
    const int32_t furthest = std::min(kCopyMost, available);
    const uint64_t last[2] = {pair_at(end - 2), pair_at(end - 4)};
    const int32_t limit = known.position >= 0 ? kCopyPositions : kBucketSteps;
    const bool start = known.position >= 0 && among_latest(known, home);
    int32_t best = start ? known.position : -1;
    int32_t length = start ? known.length : 0;
    int32_t longest = length; // of all looked at, also of those too early to be proposed
    int32_t compared = 0;
    int32_t steps = 0;
    int32_t at = head_[home];
    for (; at >= 0 && steps < kBucketSteps; at = link[at].previous, ++steps) {
        const int32_t * earlier = text + at;
        if (((pair_at(earlier - 2) ^ last[0]) | (pair_at(earlier - 4) ^ last[1])) != 0) {
            continue;
        }
        // A look at the token that would make it the longest comes first.
        const int32_t reach = std::min(furthest, at);
        const int32_t needed = longest + (at < best ? 1 : 0);
        if (needed <= reach && at != best && (needed == 0 || earlier[-needed] == end[-needed])) {
            const int32_t agree = match_back(end, earlier, reach);
            longest = std::max(longest, agree);
            if (agree >= needed && compared < kCopyPositions) {
                best = at;
                length = agree;
            }
        }
        ++compared;
        if ((longest == known.most && at <= best) || compared == limit) {
            return {best, length, known.most};
        }
    }
    return {best, length, at < 0 ? std::max(longest, kCopyKey - 1) : known.most}; // none is left, or some are
}

Proposal SuffixIndex::propose(const int32_t * end, int32_t available, const Match & known) const noexcept {
    if (available < kFollowerKey) {
        return {};
    }
    const uint64_t hash = hash_three(end);
    if (!seen(hash)) {
        return {};
    }
    if (available >= kCopyKey) {
        const Match copy = longest_copy(end, available, copy_home(end), known);
        if (copy.position >= 0) {
            return {tokens_[static_cast<size_t>(copy.position)], copy_slot(copy.length), copy.position, copy.length};
        }
    }
    const Followers & f = followers_[find(end, hash)];
    return f.epoch == epoch_ ? Proposal{f.token[0], f.count[0] >= 2 ? 1 : 0, 0, 0} : Proposal{};
}

uint32_t SuffixIndex::may_follow(const int32_t * tokens, int32_t count) const noexcept {
    RollingHash hash;
    hash.push(tokens[0]);
    hash.push(tokens[1]);
    uint32_t may = 0;
    for (int32_t i = 0; i < count; ++i) {
        hash.push(tokens[i + 2]);
        may |= (seen(hash.three()) ? 1U : 0U) << i;
    }
    return may;
}

Proposal SuffixIndex::propose_behind(const int32_t * end, int32_t available) const noexcept {
    return propose(end, available, grown(end, size_ + 1));
}

void SuffixIndex::logit_precision(double * out) const noexcept {
    alignas(32) double odds[kSlots];
    for (int32_t s = 0; s < kSlots; ++s) {
        odds[s] = (right_[s] + 1.0) / (proposed_[s] - right_[s] + 1.0);
    }
    kernels().log(odds, kSlots);
    std::copy(std::begin(odds), std::end(odds), out);
}

inline void SuffixIndex::count_follower(Followers & f, const int32_t * end, int32_t token) noexcept {
    if (f.epoch == epoch_) {
        if (f.token[0] != token || f.count[0] == UINT32_MAX) {
            count_another(f, token);
        } else {
            ++f.count[0];
        }
    } else if (contexts_ < kFollowerContexts && 2 * static_cast<uint32_t>(contexts_ + 1) <= follower_mask_ + 1) {
        ++contexts_;
        f = Followers{};
        f.epoch = epoch_;
        std::copy(end - kFollowerKey, end, f.key);
        f.used = 1;
        f.token[0] = token;
        f.count[0] = 1;
    } // else it is full: contexts already there keep counting
}

void SuffixIndex::count_another(Followers & f, int32_t token) noexcept {
    int32_t k = 0;
    while (k < f.used && f.token[k] != token) {
        ++k;
    }
    if (k == kFollowers) {
        return;
    }
    f.used = std::max(f.used, k + 1);
    f.token[k] = token;
    f.count[k] += f.count[k] < UINT32_MAX ? 1 : 0;
    for (; k > 0 && (f.count[k] > f.count[k - 1] || (f.count[k] == f.count[k - 1] && f.token[k] < f.token[k - 1]));
         --k) {
        std::swap(f.count[k], f.count[k - 1]);
        std::swap(f.token[k], f.token[k - 1]);
    }
}

inline void SuffixIndex::score(int32_t slot, bool right) noexcept {
    proposed_[slot] += 1;
    right_[slot] += right ? 1 : 0;
}

// Of a token that is in its place behind the text.
inline void SuffixIndex::append_hashed(int32_t token, uint64_t hash, uint32_t home) noexcept {
    const int32_t * end = tokens_.data() + size_;
    Link link{-1, 0};
    if (size_ >= kFollowerKey) {
        Followers & f = followers_[find(end, hash)];
        const uint64_t bit = hash >> filter_shift_;
        uint64_t & word = filter_[bit >> 6];
        if ((word >> (bit & 63) & 1U) == 0 || size_ < kCopyKey) {
            best_ = Match{-1, 0, kCopyKey - 1};
        } else {
            best_ = longest_copy(end, size_, home, grown(end, size_));
        }
        best_end_ = size_;
        if (best_.position >= 0) {
            score(copy_slot(best_.length), tokens_[static_cast<size_t>(best_.position)] == token);
        } else if (f.epoch == epoch_) {
            score(f.count[0] >= 2 ? 1 : 0, f.token[0] == token);
        }
        count_follower(f, end, token);
        word |= uint64_t{1} << (bit & 63);
    }
    if (size_ >= kCopyKey) {
        int32_t & head = head_[home];
        link = {head, head >= 0 ? link_[static_cast<size_t>(head)].ordinal + 1 : 0};
        head = size_;
    }
    link_[static_cast<size_t>(size_)] = link;
    ++size_;
}

void SuffixIndex::append(std::span<const int32_t> tokens) noexcept {
    constexpr size_t kAhead = 32;
    uint64_t hash[kAhead];
    uint32_t home[kAhead];
    while (!tokens.empty() && size_ < capacity_) {
        const size_t n = std::min({tokens.size(), kAhead, static_cast<size_t>(capacity_ - size_)});
        int32_t * next = tokens_.data() + size_; // beyond size_, so not yet text
        RollingHash last;
        for (int32_t i = kCopyKey; i > 0; --i) {
            last.push(size_ >= i ? next[-i] : 0);
        }
        for (size_t i = 0; i < n; ++i) { // a text shorter than its keys is not looked up
            hash[i] = last.three();
            home[i] = static_cast<uint32_t>(last.four() >> head_shift_);
            last.push(tokens[i]);
            next[i] = tokens[i];
            __builtin_prefetch(&followers_[static_cast<uint32_t>(hash[i]) & follower_mask_]);
            __builtin_prefetch(&head_[home[i]]);
        }
        for (size_t i = 0; i < n; ++i) {
            append_hashed(tokens[i], hash[i], home[i]);
        }
        tokens = tokens.subspan(n);
    }
}

} // namespace adaspark::core
