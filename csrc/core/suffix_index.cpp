#include "core/suffix_index.h"

#include "core/kernels.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace adaspark::core {

namespace {

constexpr int32_t kBucketSteps = 32; // entries of a copy bucket looked at, other keys' included

uint64_t pair_at(const int32_t * p) noexcept {
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

uint64_t mix(uint64_t a, uint64_t b) noexcept {
    const uint64_t h = (a * 0x9E3779B97F4A7C15ULL) ^ std::rotl(b * 0xC2B2AE3D27D4EB4FULL, 31);
    return (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9ULL;
}

uint64_t hash_three(const int32_t * end) noexcept { return mix(pair_at(end - 3), static_cast<uint32_t>(end[-1])); }

// Tokens that agree going back from `a` and `b`, at most `most`.
int32_t match_back(const int32_t * a, const int32_t * b, int32_t most) noexcept {
    int32_t n = 0;
    while (n + 8 <= most) {
        const int32_t * x = a - n - 8;
        const int32_t * y = b - n - 8;
        const uint64_t differ = (pair_at(x) ^ pair_at(y)) | (pair_at(x + 2) ^ pair_at(y + 2)) |
                                (pair_at(x + 4) ^ pair_at(y + 4)) | (pair_at(x + 6) ^ pair_at(y + 6));
        if (differ != 0) {
            break;
        }
        n += 8;
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
        previous_.resize(static_cast<size_t>(capacity));
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
    match_[0][0].position = match_[1][0].position = -1;
    matched_end_ = -1;
    std::fill(std::begin(right_), std::end(right_), 0.0);
    std::fill(std::begin(proposed_), std::end(proposed_), 0.0);
}

uint32_t SuffixIndex::copy_home(const int32_t * end) const noexcept {
    return static_cast<uint32_t>(mix(pair_at(end - 4), pair_at(end - 2)) >> head_shift_);
}

const SuffixIndex::Followers * SuffixIndex::find(const int32_t * end, uint64_t hash) const noexcept {
    for (uint32_t i = static_cast<uint32_t>(hash) & follower_mask_;; i = (i + 1) & follower_mask_) {
        const Followers & f = followers_[i];
        if (f.epoch != epoch_) {
            return nullptr; // the table is at most half full, so a free entry always comes
        }
        if (f.key[0] == end[-3] && f.key[1] == end[-2] && f.key[2] == end[-1]) {
            return &f;
        }
    }
}

Proposal SuffixIndex::propose_copy(const int32_t * end, int32_t available, uint32_t home) const noexcept {
    Proposal best;
    int32_t compared = 0;
    int32_t steps = 0;
    for (int32_t at = head_[home]; at >= 0; at = previous_[static_cast<size_t>(at)]) {
        const int32_t * earlier = tokens_.data() + at;
        const int32_t length = match_back(end, earlier, std::min({kCopyMost, available, at}));
        if (length >= kCopyKey) {
            if (length > best.length) {
                best = {tokens_[static_cast<size_t>(at)], copy_slot(length), at, length};
            }
            if (++compared == kCopyPositions || length == kCopyMost) {
                break;
            }
        }
        if (++steps == kBucketSteps) {
            break;
        }
    }
    return best;
}

Proposal SuffixIndex::propose(const int32_t * end, int32_t available) const noexcept {
    return available >= kFollowerKey ? propose(end, available, hash_three(end)) : Proposal{};
}

Proposal SuffixIndex::propose(const int32_t * end, int32_t available, uint64_t hash) const noexcept {
    if (!seen(hash)) {
        return {};
    }
    if (available >= kCopyKey) {
        const Proposal copy = propose_copy(end, available, copy_home(end));
        if (copy.slot >= 0) {
            return copy;
        }
    }
    const Followers * f = find(end, hash);
    return f != nullptr ? Proposal{f->token[0], f->count[0] >= 2 ? 1 : 0, 0, 0} : Proposal{};
}

void SuffixIndex::logit_precision(double * out) const noexcept {
    alignas(32) double odds[kSlots];
    for (int32_t s = 0; s < kSlots; ++s) {
        odds[s] = (right_[s] + 1.0) / (proposed_[s] - right_[s] + 1.0);
    }
    kernels().log(odds, kSlots);
    std::copy(std::begin(odds), std::end(odds), out);
}

void SuffixIndex::count_follower(const int32_t * end, uint64_t hash, int32_t token) noexcept {
    for (uint32_t i = static_cast<uint32_t>(hash) & follower_mask_;; i = (i + 1) & follower_mask_) {
        Followers & f = followers_[i];
        if (f.epoch != epoch_) {
            if (contexts_ >= kFollowerContexts || 2 * static_cast<uint32_t>(contexts_ + 1) > follower_mask_ + 1) {
                return; // full: contexts already there keep counting
            }
            ++contexts_;
            f = Followers{};
            f.epoch = epoch_;
            std::memcpy(f.key, end - kFollowerKey, sizeof f.key);
            f.used = 1;
            f.token[0] = token;
            f.count[0] = 1;
            return;
        }
        if (f.key[0] != end[-3] || f.key[1] != end[-2] || f.key[2] != end[-1]) {
            continue;
        }
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
        return;
    }
}

void SuffixIndex::score(const Proposal & proposal, int32_t token) noexcept {
    if (proposal.slot < 0) {
        return;
    }
    const int32_t s = proposal.slot;
    proposed_[s] += 1.0;
    right_[s] += proposal.token == token ? 1.0 : 0.0;
}

// propose() for the committed text, whose matches one token ago are known: each has grown by one or ended.
Proposal SuffixIndex::propose_next(uint64_t hash, uint32_t home) noexcept {
    const int32_t * end = tokens_.data() + size_;
    const Match * known = match_[matched_now_];
    matched_now_ ^= 1;
    Match * now = match_[matched_now_];
    now[0].position = -1;
    const Match none{-1, 0};
    known = matched_end_ == size_ - 1 ? known : &none;
    matched_end_ = size_;
    if (!seen(hash)) {
        return {};
    }
    if (size_ >= kCopyKey) {
        int32_t longest = 0;
        int32_t from = 0;
        int32_t compared = 0;
        int32_t steps = 0;
        for (int32_t at = head_[home]; at >= 0; at = previous_[static_cast<size_t>(at)]) {
            while (known->position >= at) { // both lists run from the latest to the earliest
                ++known;
            }
            int32_t length;
            if (known->position == at - 1) {
                length = tokens_[static_cast<size_t>(at) - 1] == end[-1] ? std::min(known->length + 1, kCopyMost) : 0;
            } else {
                length = match_back(end, tokens_.data() + at, std::min({kCopyMost, size_, at}));
            }
            if (length >= kCopyKey) {
                from = length > longest ? at : from;
                longest = std::max(longest, length);
                now[compared] = {at, length};
                if (++compared == kCopyPositions || length == kCopyMost) {
                    break;
                }
            }
            if (++steps == kBucketSteps) {
                break;
            }
        }
        now[compared].position = -1;
        if (longest > 0) {
            return {tokens_[static_cast<size_t>(from)], copy_slot(longest), from, longest};
        }
    }
    const Followers * f = find(end, hash);
    return f != nullptr ? Proposal{f->token[0], f->count[0] >= 2 ? 1 : 0, 0, 0} : Proposal{};
}

void SuffixIndex::append_hashed(int32_t token, uint64_t hash, uint32_t home) noexcept {
    const int32_t * end = tokens_.data() + size_;
    previous_[static_cast<size_t>(size_)] = -1;
    if (size_ >= kFollowerKey) {
        score(propose_next(hash, home), token);
        count_follower(end, hash, token);
        const uint64_t bit = hash >> filter_shift_;
        filter_[bit >> 6] |= uint64_t{1} << (bit & 63);
    }
    if (size_ >= kCopyKey) {
        int32_t & head = head_[home];
        previous_[static_cast<size_t>(size_)] = head;
        head = size_;
    }
    tokens_[static_cast<size_t>(size_)] = token;
    ++size_;
}

void SuffixIndex::append(std::span<const int32_t> tokens) noexcept {
    constexpr size_t kAhead = 32;
    uint64_t hash[kAhead];
    uint32_t home[kAhead];
    while (!tokens.empty() && size_ < capacity_) {
        const size_t n = std::min({tokens.size(), kAhead, static_cast<size_t>(capacity_ - size_)});
        int32_t * next = tokens_.data() + size_; // beyond size_, so not yet text
        std::copy_n(tokens.data(), n, next);
        for (size_t i = 0; i < n; ++i) {
            const int32_t before = size_ + static_cast<int32_t>(i);
            hash[i] = before >= kFollowerKey ? hash_three(next + i) : 0;
            home[i] = before >= kCopyKey ? copy_home(next + i) : 0;
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
