// A model's weights as ggml tensors in a device's memory, as the file has them.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "engine/ggml_graph/device.h"
#include "engine/graph/spec.h"

namespace adaspark::ggml_graph {

// Names as in graph::BlockSpec; null = the model has none. Matrices of one format that multiply the same rows are one
// tensor, one after the other: fewer and larger products.
struct BlockTensors {
    ggml_tensor * attn_norm;
    ggml_tensor *wqkv, *bqkv; // queries, keys and values, or the first `joined` of the three
    int32_t joined;           // 1 to 3
    ggml_tensor *wk, *wv;     // those that stand alone
    ggml_tensor *bk, *bv;
    ggml_tensor * wo;
    ggml_tensor *q_norm, *k_norm;
    ggml_tensor *conv, *conv_in, *conv_out; // instead of attention; conv: [n_embd][taps]
    ggml_tensor * ffn_norm;
    ggml_tensor * gate_up;  // gate, then up
    ggml_tensor *gate, *up; // instead, where they differ in format or hold experts
    ggml_tensor * down;
    ggml_tensor *router, *router_bias;
};

struct DraftTensors {
    ggml_tensor *fc, *fc_norm;
    ggml_tensor *w1, *w2;   // Markov head: w1 by the target's ids
    ggml_tensor * w1_draft; // w1 by the draft's ids; w1 itself where they are the same
    ggml_tensor *confidence, *confidence_bias;
};

class Model {
  public:
    // Describes the tensors; load() gives them memory and data. `d2t`: target ids of a drafter's reduced vocabulary.
    explicit Model(const graph::ModelSpec & spec, std::vector<int32_t> d2t = {});

    // Throws ModelError (unreadable, stopped by `progress`), OutOfMemoryError.
    void load(const Device & device, const std::function<bool(float)> & progress);

    ggml_tensor * embedding = nullptr; // null: a drafter that uses its target's
    ggml_tensor * output = nullptr;    // the head; the embedding where they are one
    ggml_tensor * output_norm = nullptr;
    ggml_tensor * rope_factors = nullptr;
    std::vector<BlockTensors> blocks;
    DraftTensors draft = {};

  private:
    struct Source {
        ggml_tensor * tensor;
        graph::TensorRef ref;
        std::size_t at;          // bytes into the tensor
        bool transposed = false; // F32
    };
    ggml_tensor * tensor(const graph::TensorRef & ref) { return joined({&ref}, true); }
    ggml_tensor * joined(std::initializer_list<const graph::TensorRef *> refs, bool matrices);
    ggml_tensor * transposed(const graph::TensorRef & ref);
    void attention(const graph::BlockSpec & spec, BlockTensors & out);

    const graph::ModelSpec & spec_;
    std::vector<int32_t> d2t_;
    Context ctx_;
    Buffer buffer_;
    std::vector<Source> sources_;
};

} // namespace adaspark::ggml_graph
