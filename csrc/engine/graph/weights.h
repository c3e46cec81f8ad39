// A model's weights in memory, packed for our kernels: one copy, read once from the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/graph/spec.h"
#include "kernels/kernels.h"

namespace adaspark::graph {

struct Matrix {
    kernels::Format format = kernels::Format::f32;
    int32_t k = 0; // inputs
    int32_t n = 0; // columns; 0 = the model has no such matrix
    const uint8_t * data = nullptr;

    int32_t panels() const { return kernels::panels(n); }
    bool quantized() const { return kernels::is_quantized(format); }
    explicit operator bool() const { return n > 0; }

    // Matrix `i` of `count` that lie behind one another as columns of this one.
    Matrix part(int32_t i, int32_t count) const {
        const std::size_t bytes =
            static_cast<std::size_t>(kernels::panels(n / count)) * kernels::panel_bytes(format, k);
        return {format, k, n / count, data + static_cast<std::size_t>(i) * bytes};
    }
};

struct BlockWeights {
    const float * attn_norm = nullptr;
    Matrix wq, wk, wv, wo;
    const float *bq = nullptr, *bk = nullptr, *bv = nullptr;
    const float *q_norm = nullptr, *k_norm = nullptr;
    const float * conv = nullptr; // [tap][n_embd], the oldest input first; null = attention
    Matrix conv_in, conv_out;
    int32_t state = 0; // which of the cache's layers or of the convolution windows is this block's
    const float * ffn_norm = nullptr;
    Matrix gate, up, down; // of a routed block: all experts (Matrix::part)
    Matrix router;         // none = a dense block
    const float * router_bias = nullptr;
};

struct DraftWeights {
    Matrix fc, w1, w2, confidence;
    const float * fc_norm = nullptr;
    float confidence_bias = 0.0F;
};

class Weights {
  public:
    // Throws ModelError (unreadable, stopped by `progress`), OutOfMemoryError.
    Weights(const ModelSpec & spec, const std::function<bool(float)> & progress);

    std::size_t bytes() const { return size_; }

    Matrix embedding;
    Matrix output; // the head; the embedding where they are one
    const float * output_norm = nullptr;
    const float * rope_factors = nullptr;
    std::vector<BlockWeights> blocks;
    DraftWeights draft;

  private:
    struct Free {
        void operator()(uint8_t * p) const;
    };
    struct Loader;

    std::size_t size_ = 0; // bytes
    std::unique_ptr<uint8_t[], Free> arena_;
};

} // namespace adaspark::graph
