#include "core/acceptance.h"

#include <algorithm>
#include <cmath>

namespace adaspark::core {

void RequestBias::step(double gradient, double squared_gradient, double cap) noexcept {
    squared = std::min(squared + squared_gradient, cap);
    value =
        std::clamp(value - kPerRequestRate * gradient / (1.0 + std::sqrt(squared)), -kPerRequestBand, kPerRequestBand);
}

namespace {

// Steps of the buckets, one after the other. The state of the one at hand stays in registers: mostly the next step is
// the same bucket's, and waits for this one.
class BucketSteps {
  public:
    BucketSteps(AcceptanceModel & model, int32_t first) noexcept : model_(model) { load(first); }
    BucketSteps(const BucketSteps &) = delete;
    BucketSteps & operator=(const BucketSteps &) = delete;
    ~BucketSteps() { keep(); }

    void step(int32_t index, double gradient, int32_t labels) noexcept {
        if (index != index_) {
            keep();
            load(index);
        }
        weight_ = ftrl_gated_step(at_, gradient, weight_, kBucketRule);
        const uint32_t more = static_cast<uint32_t>(labels);
        labels_ = labels_ + more < labels_ ? UINT32_MAX : labels_ + more;
    }

  private:
    void load(int32_t index) noexcept {
        index_ = index;
        at_ = model_.bucket[index];
        weight_ = model_.bucket_weight[index];
        labels_ = model_.bucket_labels[index];
    }
    void keep() noexcept {
        model_.bucket[index_] = at_;
        model_.bucket_weight[index_] = weight_;
        model_.bucket_labels[index_] = labels_;
    }

    AcceptanceModel & model_;
    int32_t index_ = 0;
    FtrlCoordinate at_;
    double weight_ = 0.0;
    uint32_t labels_ = 0;
};

} // namespace

AcceptanceModel::AcceptanceModel() noexcept : dense{} {
    // The prior follows from what the features mean: the pick's odds against everything else are the head's; half of
    // the rest is a sibling (ln 2 = -ln(1 - 1/2)), shared out by r.
    dense.prior[0] = 0.69314718055994531;
    dense.prior[1] = 1.0;
    dense.prior[4] = 1.0;
    std::copy(std::begin(dense.prior), std::end(dense.prior), dense.weight);
}

void AcceptanceModel::price(const CandidateSet & set, const RoundFeatures & f, RoundPrices & out) const noexcept {
    const int32_t n = set.positions;
    const double context_term = dense.weight[8] * f.context;
    const ScoreTerms terms{dense.weight, context_term + intercept.value, dense.weight[7], set.top_k};
    alignas(32) float group_p[kMaxBlock + 8];
    if (set.proposals == 0) {
        kernels().block_softmax(f.block, terms, nullptr, n, out.block, group_p);
        return;
    }
    // Text-only nodes that compete with drafter candidates enter their softmax; the others stand against NONE alone.
    const float beside = static_cast<float>(intercept.value - text_intercept.value);
    for (int32_t t = 0; t < set.text; ++t) {
        const int32_t slot = set.text_slot[t];
        const double own = f.text_base[slot] + bucket_weight[kTextOnly + text_bucket(slot, set.text_run[t])];
        out.text[t] = static_cast<float>(own + context_term + text_intercept.value);
    }
    // By slot, from 1 on; 0 is for no proposal. Without branches: which picks the text agrees with is a toss-up.
    double strength[kSlots + 1] = {};
    float pick[kSlots + 1] = {};
    float sibling[kSlots + 1] = {};
    for (int32_t slot = 0; slot < kSlots; ++slot) {
        strength[slot + 1] = std::max(0.0, f.text_base[slot]);
        pick[slot + 1] = static_cast<float>(bucket_weight[kContraPick + slot] - strength[slot + 1]);
        sibling[slot + 1] = static_cast<float>(bucket_weight[kContraSibling + slot] - strength[slot + 1]);
    }
    TextEvidence evidence;
    for (int32_t i = 0; i < n; ++i) {
        const GroupText & g = set.group[i];
        const int32_t slot = g.slot + 1;
        const int32_t bucket = text_bucket(std::max<int32_t>(g.slot, 0), g.run);
        const float score = out.text[std::max<int32_t>(g.child, 0)] + beside;
        evidence.pick[i] = pick[slot];
        evidence.sibling[i] = sibling[slot];
        evidence.agreed[i] =
            static_cast<float>(bucket_weight[(g.agreed == 0 ? kAgreedPick : kAgreedSibling) + bucket] + strength[slot]);
        evidence.lane[i] = g.agreed;
        evidence.text[i] = g.child >= 0 ? score : kScoreNone;
    }
    for (int32_t i = n; i % 8 != 0; ++i) { // whole vectors
        evidence.pick[i] = evidence.sibling[i] = evidence.agreed[i] = 0.0F;
        evidence.lane[i] = -1;
        evidence.text[i] = kScoreNone;
    }
    kernels().sigmoid(out.text, set.text);
    kernels().block_softmax(f.block, terms, &evidence, n, out.block, group_p);
    for (int32_t i = 0; i < n; ++i) {
        const int32_t child = set.group[i].child;
        out.text[child >= 0 ? child : kMaxText] = group_p[i]; // the last one is spare
    }
}

void AcceptanceModel::learn(const CandidateSet & set, const RoundFeatures & f, const RoundPrices & p,
                            const Labels & labels) noexcept {
    // Every gradient is taken at the round's probabilities, so that none depends on the steps before it.
    alignas(32) double gradient[kMaxBlock][kGradients];
    double all[kMaxRows]; // by parent: sum of p - y over its candidates; then its gradient of the context slope
    kernels().block_gradients(f.block, p.block, labels.hit, labels.groups, gradient, all);
    {
        BucketSteps steps(*this, kTextOnly);
        const auto text_step = [&](int32_t i, int32_t text) {
            const double e = p.text[text] - (labels.text_hit(i) ? 1.0 : 0.0);
            steps.step(kTextOnly + text_bucket(set.text_slot[text], set.text_run[text]), e, 1);
            return e;
        };
        RequestBias bias = intercept;
        for (int32_t i = 0; i < labels.groups; ++i) {
            const double e = (labels.text[i] >= 0 ? text_step(i, labels.text[i]) : 0.0) + all[i];
            bias.step(e, e * e, kInterceptCap);
            all[i] = e * f.context;
        }
        intercept = bias;
        bias = text_intercept;
        for (int32_t i = labels.groups; i < labels.count; ++i) {
            const double e = text_step(i, labels.text[i]);
            bias.step(e, e * e, kInterceptCap);
            all[i] = e * f.context;
        }
        text_intercept = bias;
    }
    kernels().ftrl_steps(dense, gradient, labels.groups, all, labels.count);
    if (set.proposals == 0) {
        return;
    }
    BucketSteps picks(*this, kAgreedPick); // of two kinds of buckets, so that the steps of one need not wait
    BucketSteps siblings(*this, kAgreedSibling);
    for (int32_t i = 0; i < labels.groups; ++i) {
        const GroupText & t = set.group[i];
        if (t.slot < 0) {
            continue;
        }
        const int32_t bucket = text_bucket(t.slot, t.run);
        picks.step(t.agreed == 0 ? kAgreedPick + bucket : kContraPick + t.slot, gradient[i][0], 1);
        double e = gradient[i][3];
        int32_t others = set.top_k - 1;
        if (t.agreed > 0) {
            const double e_agreed = p.block[i][t.agreed] - (labels.hit[i] == t.agreed ? 1.0 : 0.0);
            siblings.step(kAgreedSibling + bucket, e_agreed, 1);
            e -= e_agreed;
            --others;
        }
        siblings.step(kContraSibling + t.slot, e, others);
    }
}

} // namespace adaspark::core
