#include "engine/graph/markov.h"

#include "engine/topk.h"

#include <algorithm>
#include <cmath>

namespace adaspark::graph {

namespace {
constexpr int32_t kLeastPositions = 2; // of a block that is cut short
}

MarkovChain::MarkovChain(const DraftWeights & weights, Workers & workers, std::vector<int32_t> d2t, int32_t n_vocab,
                         int32_t n_embd)
    : weights_(weights), workers_(workers), d2t_(std::move(d2t)),
      n_columns_(d2t_.empty() ? std::min(weights.w2.n, n_vocab) : weights.w2.n), n_embd_(n_embd),
      best_(static_cast<std::size_t>(workers.size())) {
    const auto rank = static_cast<std::size_t>(weights.w1.k);
    row_.x.resize(rank);
    row_.q.resize((rank / kernels::kBlock + 1) * kernels::kCodes);
    row_.d.resize(rank / kernels::kBlock);
    row_.dsum.resize(row_.d.size());
    row_.minus8.resize(row_.d.size());
    row_.minus8_half.resize(2 * row_.d.size());
    a_ = {row_.x.data(),
          kernels::first_code(row_.q.data()),
          row_.d.data(),
          row_.dsum.data(),
          row_.minus8.data(),
          row_.minus8_half.data(),
          1};
    if (weights.confidence) {
        confidence_weights_.resize(static_cast<std::size_t>(weights.confidence.k));
        kernels::unpack_column(weights.confidence.format, weights.confidence.k, weights.confidence.data, 0,
                               confidence_weights_.data());
    }
}

void MarkovChain::previous(int32_t token) {
    const Matrix & w1 = weights_.w1;
    kernels::unpack_column(w1.format, w1.k, w1.data, token, row_.x.data());
    kernels::kernels_best().quantize(row_.x.data(), 0, w1.k, 0, a_);
}

// Adds the bias to this thread's columns and finds their top K.
void MarkovChain::take(int32_t thread, std::span<float> logits) {
    const Matrix & w2 = weights_.w2;
    const int32_t begin = static_cast<int32_t>(int64_t{w2.panels()} * thread / workers_.size());
    const int32_t end = static_cast<int32_t>(int64_t{w2.panels()} * (thread + 1) / workers_.size());
    const int32_t first = begin * kernels::kColumns;
    const int32_t count = std::clamp(std::min(end * kernels::kColumns, n_columns_) - first, 0, n_columns_);
    if (begin < end) {
        kernels::kernels_best().gemm(
            {w2.format, w2.data, w2.k, begin, end, a_, 1, logits.data() + first, 0, nullptr, true});
    }
    Best & best = best_[static_cast<std::size_t>(thread)];
    const auto columns = count > 0 ? logits.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count))
                                   : std::span<float>();
    top_k(columns, {}, best.ids, best.values);
    for (int32_t & id : best.ids) {
        id += id >= 0 ? first : 0;
    }
}

// The best of all threads' columns as target ids; returns the pick, -1 when there is none.
int32_t MarkovChain::merge(std::span<int32_t> ids, std::span<float> values) const {
    std::vector<std::size_t> at(best_.size(), 0);
    for (std::size_t k = 0; k < ids.size(); ++k) {
        std::size_t from = 0; // threads hold ascending ids, so a tie stays with the lower one
        for (std::size_t t = 1; t < best_.size(); ++t) {
            from = best_[t].values[at[t]] > best_[from].values[at[from]] ? t : from;
        }
        const int32_t id = best_[from].ids[at[from]];
        values[k] = best_[from].values[at[from]];
        ids[k] = id < 0 || d2t_.empty() ? id : d2t_[static_cast<std::size_t>(id)];
        at[from] += at[from] + 1 < std::size(best_[from].ids) ? 1 : 0;
    }
    return ids[0];
}

float MarkovChain::confidence_of(const float * hidden, std::span<const float> logits, float best) const {
    float out = NAN;
    if (!confidence_weights_.empty()) {
        float sum = weights_.confidence_bias;
        for (int32_t i = 0; i < n_embd_; ++i) {
            sum += confidence_weights_[static_cast<std::size_t>(i)] * hidden[i];
        }
        for (std::size_t i = 0; i < row_.x.size(); ++i) {
            sum += confidence_weights_[static_cast<std::size_t>(n_embd_) + i] * row_.x[i];
        }
        out = 1.0F / (1.0F + std::exp(-sum));
    }
    if (!std::isfinite(out)) { // no head, or a broken one: the pick's share of the whole draft vocabulary
        double sum = 0.0;
        for (const float v : logits.first(static_cast<std::size_t>(n_columns_))) {
            sum += std::exp(static_cast<double>(v) - best);
        }
        out = static_cast<float>(1.0 / sum);
    }
    return std::isfinite(out) ? std::clamp(out, 0.0F, 1.0F) : 0.0F;
}

int32_t MarkovChain::run(Forward & forward, int32_t anchor, int32_t positions, float enough, std::span<int32_t> ids,
                         std::span<float> values, std::span<float> confidence) {
    const std::size_t k = ids.size() / static_cast<std::size_t>(positions);
    int32_t filled = positions; // written by one thread before a barrier, read by all behind it
    float chain = 1.0F;
    previous(anchor);
    workers_.run([&](int32_t thread) {
        for (int32_t i = 0; i < filled; ++i) {
            take(thread, forward.logits(i));
            workers_.barrier();
            if (thread == 0) {
                const std::size_t at = static_cast<std::size_t>(i) * k;
                const int32_t pick = merge(ids.subspan(at, k), values.subspan(at, k));
                confidence[static_cast<std::size_t>(i)] =
                    confidence_of(forward.normed(i), forward.logits(i), values[at]);
                chain *= confidence[static_cast<std::size_t>(i)];
                if (i + 1 >= kLeastPositions && chain < enough) {
                    filled = i + 1;
                } else if (i + 1 < positions) {
                    previous(pick < 0 ? anchor : pick);
                }
            }
            workers_.barrier();
        }
    });
    return filled;
}

} // namespace adaspark::graph
