// A test double of target, drafter and machine with known laws: which candidate is accepted is drawn from a softmax
// with known coefficients, and what a verify takes from a known cost law with jitter, bursts and drift. Everything
// about a request is a function of its seed and the position, so two policies meet the same text and the same drafts.
#pragma once

#include "core/scheduler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bench {

using namespace adaspark::core;

// SplitMix64: small, and good enough to draw outcomes from.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t bits() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
        return z ^ (z >> 31);
    }
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
    double normal() { // sum of uniforms: tails do not matter here
        double s = 0.0;
        for (int i = 0; i < 6; ++i) {
            s += uniform();
        }
        return (s - 3.0) * 1.4142135623730951;
    }
    int32_t below(int32_t n) { return static_cast<int32_t>(bits() % static_cast<uint64_t>(n)); }

  private:
    uint64_t state_;
};

inline uint64_t mix_seed(uint64_t a, uint64_t b) { return Random(a * 0x9E3779B97F4A7C15ULL + b).bits(); }

// How predictable a request is.
struct Workload {
    double pick = 0.7;      // logit of the drafter's first pick, on average
    double decay = 0.25;    // logits lost a position
    double spread = 1.3;    // standard deviation of the logit
    double repeat = 0.01;   // chance a token that an earlier passage starts again
    double length = 12;     // tokens of a repeated passage, on average
    double head_bias = 0.4; // what the confidence head adds to the logit it reports
};

inline Workload workload(const std::string & name) {
    if (name == "hard") {
        return {-0.9, 0.35, 1.2, 0.005, 8, 0.5};
    }
    if (name == "prose") {
        return {0.4, 0.25, 1.4, 0.010, 10, 0.4};
    }
    if (name == "code") {
        return {1.3, 0.12, 1.6, 0.030, 14, 0.3};
    }
    return {0.6, 0.25, 1.4, 0.060, 30, 0.4}; // "copy"
}

// One request: prompt and reply as a fixed text.
struct Request {
    uint64_t seed = 0;
    Workload work;
    std::vector<int32_t> text;
    int32_t prompt = 0; // tokens of it

    Request(uint64_t seed_, const Workload & w, int32_t prompt_tokens, int32_t reply_tokens)
        : seed(seed_), work(w), prompt(prompt_tokens) {
        Random r(seed);
        const int32_t total = prompt_tokens + reply_tokens + 64;
        text.reserve(static_cast<size_t>(total));
        int32_t copy_from = -1;
        int32_t copy_left = 0;
        while (static_cast<int32_t>(text.size()) < total) {
            const int32_t n = static_cast<int32_t>(text.size());
            if (copy_left == 0 && n > 40 && r.uniform() < w.repeat) {
                copy_left = 4 + static_cast<int32_t>(-w.length * std::log(1.0 - r.uniform()));
                copy_from = r.below(n - 20);
            }
            if (copy_left > 0 && copy_from < n) {
                text.push_back(text[static_cast<size_t>(copy_from++)]);
                --copy_left;
            } else {
                copy_left = 0;
                // A few thousand tokens, some much more frequent than others.
                text.push_back(static_cast<int32_t>(4000 * std::pow(r.uniform(), 3)));
            }
        }
    }
    int32_t reply() const { return static_cast<int32_t>(text.size()) - 64 - prompt; }
};

// True law of the drafter's outcomes, in the form of Eq. (6) but not at its prior.
struct TrueLaw {
    double pick[3] = {0.35, 0.55, 0.45}; // intercept, logit head, logit share
    double sibling[4] = {-0.45, 0.9, -0.05, -0.2};
    double depth = -0.06;
};

struct BlockDraw {
    int32_t tokens[kMaxBlock * kTopK];
    float logits[kMaxBlock * kTopK];
    float confidence[kMaxBlock];
    double truth[kMaxBlock][kTopK]; // true P(lane | parent accepted), the text apart
};

// The drafter at position `at` (index of the anchor in the text).
inline void draw_block(const Request & request, int32_t at, int32_t positions, const TrueLaw & law, BlockDraw & out) {
    for (int32_t i = 0; i < positions; ++i) {
        Random r(mix_seed(request.seed ^ 0xB10CULL, static_cast<uint64_t>(at) * 64 + static_cast<uint64_t>(i)));
        const double skill = request.work.pick - request.work.decay * i + request.work.spread * r.normal();
        out.confidence[i] =
            static_cast<float>(1.0 / (1.0 + std::exp(-(skill + request.work.head_bias + 0.7 * r.normal()))));
        const double sharp = 1.4 * skill + 0.9 * r.normal();
        float * v = out.logits + i * kTopK;
        v[0] = static_cast<float>(sharp * 0.5 + 3.0);
        for (int32_t l = 1; l < kTopK; ++l) {
            v[l] = static_cast<float>(2.0 - 0.35 * l + 0.8 * r.normal() - 0.5 * sharp);
        }
        std::sort(v, v + kTopK, [](float a, float b) { return a > b; });
        double total = 0.0;
        for (int32_t l = 1; l < kTopK; ++l) {
            total += std::exp(v[l] - v[0]);
        }
        const double lse = std::log(total);
        const double head = std::log(out.confidence[i] / (1.0 - out.confidence[i]));
        double e[kTopK];
        double sum = 1.0;
        for (int32_t l = 0; l < kTopK; ++l) {
            double s = law.depth * i;
            s += l == 0 ? law.pick[0] + law.pick[1] * head - law.pick[2] * lse
                        : law.sibling[0] + law.sibling[1] * (v[l] - v[0] - lse) + law.sibling[2] * head -
                              law.sibling[3] * lse;
            e[l] = std::exp(s);
            sum += e[l];
        }
        double u = r.uniform() * sum;
        int32_t hit = -1;
        for (int32_t l = 0; l < kTopK; ++l) {
            out.truth[i][l] = e[l] / sum;
            if (hit < 0 && u < e[l]) {
                hit = l;
            }
            u -= e[l];
        }
        const size_t position = static_cast<size_t>(at + 1 + i);
        const int32_t target = position < request.text.size() ? request.text[position] : 3;
        int32_t * token = out.tokens + i * kTopK;
        for (int32_t l = 0; l < kTopK; ++l) {
            // Distinct, and never the target's token but on the lane that hits.
            token[l] = l == hit ? target : 100000 + l * 4096 + static_cast<int32_t>(r.bits() & 4095);
        }
    }
}

// Microseconds of a verify and of the drafter.
struct CostLaw {
    std::vector<std::pair<int32_t, std::array<double, 2>>> points; // rows: milliseconds at context 0, per 1,000 tokens
    double draft = 7.0;                                            // milliseconds
    bool steps = false; // constant between points (the price of the next one), else linear
    double jitter = 0.01;
    double burst = 0.04; // chance of a slow round
    double change = 0.0; // milliseconds more where the round before had other rows: llama.cpp builds its graph anew

    double at(const std::pair<int32_t, std::array<double, 2>> & p, double context) const {
        return p.second[0] + p.second[1] * context / 1000.0;
    }
    double verify(int32_t rows, double context) const {
        if (rows <= points.front().first) {
            return 1e3 * at(points.front(), context);
        }
        for (size_t i = 1; i < points.size(); ++i) {
            if (rows <= points[i].first) {
                const double high = at(points[i], context);
                const double low = at(points[i - 1], context);
                const double share =
                    static_cast<double>(rows - points[i - 1].first) / (points[i].first - points[i - 1].first);
                return 1e3 * (steps ? high : low + (high - low) * share);
            }
        }
        const double last = at(points.back(), context);
        return 1e3 * last * rows / points.back().first;
    }
};

CostLaw cost_law(const std::string & name);
std::vector<std::string> cost_law_names();

// Walks the tree as a greedy target whose text is `request`.
inline void walk(const Request & request, int32_t at, const Tree & tree, int32_t limit, std::vector<int32_t> & path) {
    path.assign(1, 0);
    int32_t row = 0;
    while (static_cast<int32_t>(path.size()) < limit) {
        const int32_t target = request.text[static_cast<size_t>(at) + path.size()];
        int32_t next = -1;
        for (int32_t r = row + 1; r < tree.rows && next < 0; ++r) {
            next = tree.parent[r] == row && tree.token[r] == target ? r : -1;
        }
        if (next < 0) {
            return;
        }
        path.push_back(next);
        row = next;
    }
}

} // namespace bench
