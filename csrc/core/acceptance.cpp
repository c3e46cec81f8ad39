#include "core/acceptance.h"

#include <algorithm>
#include <cmath>

namespace adaspark::core {

void RequestBias::step(double gradient, double squared_gradient, double cap) noexcept {
    squared = std::min(squared + squared_gradient, cap);
    value =
        std::clamp(value - kPerRequestRate * gradient / (1.0 + std::sqrt(squared)), -kPerRequestBand, kPerRequestBand);
}

AcceptanceModel::AcceptanceModel() noexcept : dense{} {
    // The prior follows from what the features mean: the pick's odds against everything else are the head's; half of
    // the rest is a sibling (ln 2 = -ln(1 - 1/2)), shared out by r.
    dense.prior[0] = 0.69314718055994531;
    dense.prior[1] = 1.0;
    dense.prior[4] = 1.0;
    std::copy(std::begin(dense.prior), std::end(dense.prior), dense.weight);
}

void AcceptanceModel::price(const CandidateSet & set, RoundFeatures & f, RoundPrices & out) const noexcept {
    const int32_t n = set.positions;
    const double context_term = dense.weight[8] * f.context;
    const ScoreTerms terms{dense.weight, context_term + intercept.value, dense.weight[7], set.top_k};
    alignas(32) float group_p[kMaxBlock + 8];
    if (set.proposals == 0) {
        kernels().block_softmax(f.block, terms, nullptr, nullptr, n, out.block, group_p);
        return;
    }
    // Text-only nodes that compete with drafter candidates enter their softmax; the others stand against NONE alone.
    alignas(32) float group_text[kMaxBlock + 8];
    const float beside = static_cast<float>(intercept.value - text_intercept.value);
    for (int32_t t = 0; t < set.text; ++t) {
        const int32_t slot = set.text_slot[t];
        const double own = f.text_base[slot] + bucket_weight[kTextOnly + text_bucket(slot, set.text_run[t])];
        out.text[t] = static_cast<float>(own + context_term + text_intercept.value);
    }
    for (int32_t i = 0; i < n; ++i) {
        const GroupText & g = set.group[i];
        group_text[i] = g.child >= 0 ? out.text[g.child] + beside : kScoreNone;
        if (g.slot < 0) {
            std::fill(std::begin(f.evidence[i]), std::end(f.evidence[i]), 0.0F);
            continue;
        }
        const double strength = std::max(0.0, f.text_base[g.slot]);
        const float sibling = static_cast<float>(bucket_weight[kContraSibling + g.slot] - strength);
        std::fill(std::begin(f.evidence[i]), std::end(f.evidence[i]), sibling);
        f.evidence[i][0] = static_cast<float>(bucket_weight[kContraPick + g.slot] - strength);
        if (g.agreed >= 0) {
            const int32_t family = g.agreed == 0 ? kAgreedPick : kAgreedSibling;
            f.evidence[i][g.agreed] = static_cast<float>(bucket_weight[family + text_bucket(g.slot, g.run)] + strength);
        }
    }
    std::fill_n(group_text + n, 7, kScoreNone);
    kernels().sigmoid(out.text, set.text);
    kernels().block_softmax(f.block, terms, f.evidence, group_text, n, out.block, group_p);
    for (int32_t i = 0; i < n; ++i) {
        if (set.group[i].child >= 0) {
            out.text[set.group[i].child] = group_p[i];
        }
    }
}

void AcceptanceModel::step_bucket(int32_t index, double gradient, uint32_t labels) noexcept {
    bucket_weight[index] = ftrl_gated_step(bucket[index], gradient, bucket_weight[index], 0.0, kBucketRule);
    const uint32_t before = bucket_labels[index];
    bucket_labels[index] = before + labels < before ? UINT32_MAX : before + labels;
}

void AcceptanceModel::learn_evidence(const GroupText & g, int32_t siblings, double e_pick, double e_siblings,
                                     double e_agreed) noexcept {
    const int32_t bucket = text_bucket(g.slot, g.run);
    if (g.agreed == 0) {
        step_bucket(kAgreedPick + bucket, e_pick, 1);
    } else {
        step_bucket(kContraPick + g.slot, e_pick, 1);
    }
    if (g.agreed > 0) {
        step_bucket(kAgreedSibling + bucket, e_agreed, 1);
        e_siblings -= e_agreed;
        --siblings;
    }
    step_bucket(kContraSibling + g.slot, e_siblings, static_cast<uint32_t>(siblings));
}

void AcceptanceModel::learn(const CandidateSet & set, const RoundFeatures & f, const RoundPrices & p,
                            const Labels & labels) noexcept {
    // Every gradient is taken at the round's probabilities, so that none depends on the steps before it.
    alignas(32) double gradient[kMaxRows][kDenseLanes];
    kernels().block_gradients(f.block, p.block, labels.hit, labels.groups, gradient);
    for (int32_t i = 0; i < labels.count; ++i) {
        double all = 0.0; // sum of p - y over the parent's candidates
        if (const int32_t text = labels.text[i]; text >= 0) {
            all = p.text[text] - (labels.text_hit(i) ? 1.0 : 0.0);
            step_bucket(kTextOnly + text_bucket(set.text_slot[text], set.text_run[text]), all, 1);
        }
        double * g = gradient[i];
        if (i < labels.groups) {
            if (const GroupText & text = set.group[i]; text.slot >= 0) {
                const double e_agreed =
                    text.agreed > 0 ? p.block[i][text.agreed] - (labels.hit[i] == text.agreed ? 1.0 : 0.0) : 0.0;
                learn_evidence(text, set.top_k - 1, g[0], g[3], e_agreed);
            }
            all += g[8];
        } else {
            g[9] = g[10] = g[11] = 0.0;
        }
        g[8] = all * f.context;
        (i < labels.groups ? intercept : text_intercept).step(all, all * all, kInterceptCap);
    }
    kernels().ftrl_steps(dense, gradient, labels.groups, 0);
    if (labels.count > labels.groups) { // text-only parents move the context slope alone
        kernels().ftrl_steps(dense, gradient + labels.groups, labels.count - labels.groups, 8);
    }
}

} // namespace adaspark::core
