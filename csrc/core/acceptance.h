// Acceptance of every candidate given its parent's (paper section 3.3, Eq. 6): one softmax over a parent's candidates
// and NONE, learned online from the target's outcomes.
#pragma once

#include "core/candidates.h"
#include "core/ftrl.h"
#include "core/kernels.h"

#include <cstdint>
#include <span>

namespace adaspark::core {

// Coefficients: kDense shared ones (pick: intercept, logit head, logit share; sibling: intercept, log r, logit head,
// logit share; depth slope; context slope), then the buckets of the text.
inline constexpr int32_t kTextOnly = 0;                         // kBuckets: text-only nodes
inline constexpr int32_t kAgreedPick = kBuckets;                // kBuckets
inline constexpr int32_t kAgreedSibling = 2 * kBuckets;         // kBuckets
inline constexpr int32_t kContraPick = 3 * kBuckets;            // kSlots
inline constexpr int32_t kContraSibling = kContraPick + kSlots; // kSlots
inline constexpr int32_t kBucketWeights = kContraSibling + kSlots;

inline constexpr double kAcceptAlpha = 0.05; // rate of the shared coefficients, logits
inline constexpr FtrlRule kBucketRule{.alpha = 0.5};
inline constexpr double kPerRequestRate = 0.15; // AdaGrad rate of the intercept and of the head's offset
inline constexpr double kPerRequestBand = 2.0;  // their clamp, logits
inline constexpr double kInterceptCap = 16.0;   // cap of the intercept's sum of squared gradients
inline constexpr float kScoreNone = -1e30F;     // score of an absent candidate

// One bias adapted by AdaGrad within a request.
struct RequestBias {
    double value = 0.0;   // logits, [-2, 2]
    double squared = 0.0; // sum of squared gradients

    void step(double gradient, double squared_gradient, double cap) noexcept;
};

// Probabilities of one round's candidates, given their parents. Caller-owned; padded to whole vectors.
struct alignas(32) RoundPrices {
    float block[kMaxBlock][kTopK];
    float text[kMaxText + 1]; // by text-only node
};

// Features of one round, frozen when the tree is built and used again for the labels.
struct alignas(32) RoundFeatures {
    BlockFeatures block;
    double text_base[kSlots]; // logit of each slot's precision
    double precision[kSlots]; // of each slot, (0, 1)
    double context = 0.0;     // tokens / 8192
};

// The labelled parents of one round, from the anchor down the accepted path. Parents with drafter children are the
// anchor and picks, so they come first, and the i-th of them is the parent of position i.
struct Labels {
    int32_t count = 0;
    int32_t groups = 0;         // parents with drafter children
    int32_t hit[kMaxRows];      // by position: the accepted lane, -1 = none of them
    int32_t text[kMaxRows];     // by parent: its text-only child, -1 = none
    uint64_t text_accepted = 0; // bit i: the text-only child of parent i was accepted

    bool text_hit(int32_t i) const noexcept { return (text_accepted >> i & 1U) != 0; }
};

class AcceptanceModel {
  public:
    AcceptanceModel() noexcept;

    void begin_request() noexcept { intercept = text_intercept = RequestBias{}; }

    // Prices every candidate, with this round's weights.
    void price(const CandidateSet & set, const RoundFeatures & features, RoundPrices & out) const noexcept;

    // Learns from the labelled parents, one after the other. `p` is what price() gave.
    void learn(const CandidateSet & set, const RoundFeatures & features, const RoundPrices & p,
               const Labels & labels) noexcept;

    alignas(32) FtrlLanes dense;           // kDense lanes in use
    FtrlCoordinate bucket[kBucketWeights]; // prior 0, gated
    double bucket_weight[kBucketWeights] = {};
    uint32_t bucket_labels[kBucketWeights] = {}; // candidates labelled with the term
    // b_req: of parents with drafter candidates, and of those with text alone. With one for both, whichever source has
    // more labels moves it: a stretch decoded from text alone would raise the drafter's prices.
    RequestBias intercept;
    RequestBias text_intercept;

    template <class A> void fields(A & a) {
        for (int32_t i = 0; i < kDense; ++i) {
            a(dense.weight[i], dense.z[i], dense.n[i], dense.root_n[i]);
        }
        for (FtrlCoordinate & c : bucket) {
            a(c.z, c.n, c.root_n);
        }
        a(bucket_weight, bucket_labels);
    }
};

// Bucket of a text-only node, and of an agreed one within its family.
inline int32_t text_bucket(int32_t slot, int32_t run) noexcept { return slot * kRunBins + run; }

} // namespace adaspark::core
