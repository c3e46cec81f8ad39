// The few loops worth vectorising, compiled for the baseline and, on x86-64, for AVX2 + FMA (x86-64-v3) and AVX-512
// (x86-64-v4); the widest the machine runs is picked once at load. NEON is the baseline of arm64. All arrays are padded
// to whole vectors. The two x86-64 variants give the same bits, so learned state does not depend on which one ran.
#pragma once

#include <cstdint>

namespace adaspark::core {

inline constexpr int32_t kTopK = 8;       // K: lanes of one drafter position (paper section 2.2)
inline constexpr int32_t kMaxBlock = 32;  // B: drafter positions at most
inline constexpr int32_t kMaxText = 63;   // text-only nodes of one round
inline constexpr int32_t kMaxWidths = 24; // widths the cost model may learn (paper Table 14)
inline constexpr int32_t kBasis = 5;      // terms of the context basis, Eq. (4)
inline constexpr int32_t kBasisLanes = 8; // the same in whole vectors; the rest are zero
inline constexpr int32_t kDense = 9;      // acceptance coefficients that are not buckets
inline constexpr int32_t kGradients = 8;  // those of drafter candidates; the last one is the slope in context
inline constexpr int32_t kDenseLanes = 12;

// Features of one drafter block, by position and lane. Lane 0 is the pick. Logits are natural. Floats: the drafter's
// logits are, and eight lanes are one vector; the learned state they meet is in doubles.
struct alignas(32) BlockFeatures {
    float log_r[kMaxBlock][kTopK]; // log of a sibling's share of the siblings' total, [-30, 0]; lane 0 is 0
    float share[kMaxBlock][kTopK]; // softmax share among the K, [0, 1]
    float log_r_by_lane[kMaxBlock / 8][kTopK][8]; // log_r by lane and then position, eight positions a block
    float logit_head[kMaxBlock];                  // logit of the confidence head
    float logit_share[kMaxBlock];                 // logit of the pick's share
    float head[kMaxBlock];                        // the head itself, clipped to [1e-7, 1 - 1e-7]
};

// What the score of Eq. (6) needs of the model, resolved for one round.
struct ScoreTerms {
    const double * weight; // the kDense coefficients
    double context_term;   // context slope * context / 8192 + request intercept
    double depth_slope;    // per row below the first
    int32_t top_k;         // lanes in use
};

// What the text adds to the scores of Eq. (6), by position; zero where it proposes nothing.
struct alignas(32) TextEvidence {
    float pick[kMaxBlock]; // to the pick's score
    float sibling[kMaxBlock];
    float agreed[kMaxBlock]; // to that of the lane below, instead
    int32_t lane[kMaxBlock]; // that the text agrees with, -1 = none
    float text[kMaxBlock];   // score of the position's text-only candidate, below -1e29 = none
};

// Weights of the width table, one lane a width, sorted by width.
struct alignas(32) WidthLanes {
    double weight[kBasis][kMaxWidths]; // normalised law
    double low[kMaxWidths];            // clamp of the law, normalised
    double high[kMaxWidths];
    double scale[kMaxWidths]; // microseconds of one normalised unit, times level
    double price[kMaxWidths]; // result, microseconds
};

// FTRL-Proximal state of a context law. Lane 0 is the intercept.
struct alignas(32) LawLanes {
    double weight[kBasisLanes] = {};
    double z[kBasisLanes] = {};
    double n[kBasisLanes] = {};      // sum of squared gradients, capped
    double root_n[kBasisLanes] = {}; // its square root
};

// FTRL-Proximal state of the dense acceptance coefficients (or any 12 lanes).
struct alignas(32) FtrlLanes {
    double weight[kDenseLanes];
    double z[kDenseLanes];
    double n[kDenseLanes];      // sum of squared gradients, capped
    double root_n[kDenseLanes]; // its square root
    double prior[kDenseLanes];
};

struct Kernels {
    const char * name;

    // Indices of the `limit` largest positive keys, largest first, ties to the lower index; returns how many.
    // `key` is zero from n up to n rounded up to 8; `index` has room for limit + 1. `guess`: a number that the keys
    // wanted may well reach, > 0; it changes how long this takes, not what comes out.
    int32_t (*rank_descending)(const float * key, int32_t n, int32_t limit, float guess, int32_t * index) noexcept;

    // `logits` [n][kTopK], largest first, unused lanes -inf; `head` [n] in [0, 1].
    void (*block_features)(const float * logits, const float * head, int32_t n, BlockFeatures & out) noexcept;

    // Eq. (6) over a block; `evidence` null where the text says nothing. Results: `p` [n][kTopK] and `text_p` [n], the
    // position's text-only candidate (0 where none). Arrays are padded to a multiple of 8 positions.
    void (*block_softmax)(const BlockFeatures & features, const ScoreTerms & terms, const TextEvidence * evidence,
                          int32_t n, float (*p)[kTopK], float * text_p) noexcept;

    // In place: x -> 1 / (1 + exp(-x)). `x` is padded to a multiple of 8.
    void (*sigmoid)(float * x, int32_t n) noexcept;

    // In place: x -> ln x for positive normal x. `x` is padded to a multiple of 4.
    void (*log)(double * x, int32_t n) noexcept;

    // price = clamp(weight . phi, low, high) * scale * clock, for the first n widths.
    void (*price_widths)(WidthLanes & lanes, const double * phi, double clock, int32_t n) noexcept;

    // phi(u) of Eq. (4), [kBasisLanes]: 1, u, u^2, sqrt u and `log`, which is ln(1 + u); the rest 0. In whole vectors:
    // law_step() reads it in whole vectors right after, and what was written in smaller pieces would have to reach
    // memory first.
    void (*context_basis)(double u, double log, double * phi) noexcept;

    // One FTRL-Proximal step of a context law with gradient factor * phi: elastic net around zero, the weights of
    // context kept non-negative (the rule and the L1 weight of context_law.h). `phi` has kBasisLanes entries.
    void (*law_step)(LawLanes & lanes, const double * phi, double factor) noexcept;

    // FTRL-Proximal steps around the prior, one after the other (ftrl_step in ftrl.h); a zero gradient changes nothing.
    // The first kGradients lanes take `count` steps, the one after them `slopes` steps.
    void (*ftrl_steps)(FtrlLanes & lanes, const double (*gradient)[kGradients], int32_t count, const double * slope,
                       int32_t slopes) noexcept;

    // For each of the first n positions the product over its first `top_k` lanes of p (lane hit[i]) or 1 - p (the
    // others), each clipped to [1e-7, 1 - 1e-7]. `hit` outside the lanes: none.
    void (*block_likelihood)(const float (*p)[kTopK], int32_t top_k, const int32_t * hit, int32_t n,
                             double * out) noexcept;

    // For each of the first n positions, with e = p - [lane is hit[i]]: the gradients of the first kGradients
    // coefficients, and the sum of all e. Unused lanes have p = 0.
    void (*block_gradients)(const BlockFeatures & features, const float (*p)[kTopK], const int32_t * hit, int32_t n,
                            double (*gradient)[kGradients], double * all) noexcept;

    // The head-based estimate of the first n positions: the head for the pick, shares for the siblings, all with their
    // odds times `factor`.
    void (*head_estimate)(const BlockFeatures & features, float factor, int32_t n, float (*p)[kTopK]) noexcept;

    // path_q[i][lane] = (Q of the pick above) * p, down the block; bit l of dead[i] clears lane l.
    void (*block_path_q)(const float (*p)[kTopK], const uint8_t * dead, int32_t n, float * path_q) noexcept;
};

const Kernels & kernels_generic() noexcept;
const Kernels &
kernels_x86_v3() noexcept; // this and the next: the generic ones where the compiler does not target x86-64
const Kernels & kernels_x86_v4() noexcept;

inline constexpr int32_t kKernelVariants = 3;
// The variants this machine runs, the fastest last. Returns how many.
int32_t runnable_kernels(const Kernels * (&out)[kKernelVariants]) noexcept;

namespace detail {
const Kernels & select_kernels() noexcept;
inline const Kernels * const active_kernels = &select_kernels();
} // namespace detail

inline const Kernels & kernels() noexcept { return *detail::active_kernels; }

} // namespace adaspark::core
