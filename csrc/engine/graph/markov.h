// The end of a DSpark forward: the Markov head walks the block position by position, adding to each row's logits a bias
// that depends on the pick before it; the top K, and how sure the confidence head is of each pick.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/graph/forward.h"

namespace adaspark::graph {

class MarkovChain {
  public:
    // `d2t`: target id of each draft token; empty = the same ids. Ids of `n_vocab` and above are never picked.
    MarkovChain(const DraftWeights & weights, Workers & workers, std::vector<int32_t> d2t, int32_t n_vocab,
                int32_t n_embd);

    // Rows 0 .. positions - 1 of the forward's last head(). ids and values: [positions][k], confidence: [positions].
    // Stops, after two positions at least, where the confidences so far multiply to less than `enough`; returns how
    // many are filled.
    int32_t run(Forward & forward, int32_t anchor, int32_t positions, float enough, std::span<int32_t> ids,
                std::span<float> values, std::span<float> confidence);

  private:
    struct Row { // the row of w1 that belongs to the pick before
        std::vector<float> x;
        std::vector<int8_t> q;
        std::vector<float> d, dsum;
        std::vector<int32_t> minus8, minus8_half;
    };
    struct alignas(64) Best { // of one thread's columns
        int32_t ids[8];
        float values[8];
    };

    void previous(int32_t token);
    void take(int32_t thread, std::span<float> logits);
    int32_t merge(std::span<int32_t> ids, std::span<float> values) const;
    float confidence_of(const float * hidden, std::span<const float> logits, float best) const;

    const DraftWeights & weights_;
    Workers & workers_;
    std::vector<int32_t> d2t_;
    int32_t n_columns_; // draft tokens that can be picked
    int32_t n_embd_;
    Row row_;
    kernels::Activations a_;
    std::vector<float> confidence_weights_;
    std::vector<Best> best_;
};

} // namespace adaspark::graph
