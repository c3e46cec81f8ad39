// The blocks of graph/spec.h in ggml's operations, in an order in which ggml's CUDA backend fuses what can be fused.
#pragma once

#include "engine/ggml_graph/cache.h"
#include "engine/ggml_graph/conv_cache.h"
#include "engine/ggml_graph/model.h"
#include "engine/ggml_graph/rows.h"

namespace adaspark::ggml_graph {

// Operations and views of one block, at most; of everything around the blocks.
inline constexpr int32_t kNodesOfBlock = 96;
inline constexpr int32_t kNodesAround = 64;

class Layers {
  public:
    // `flash`: fused attention, which rounds to F16 on the way; else the plain one. Everything must outlive this
    // object. `conv`, `conv_rows`: of a model with short convolutions.
    Layers(const Program & program, const graph::ModelSpec & spec, const Model & model, const Cache & cache,
           const RowInputs & rows, bool flash, const ConvCache * conv = nullptr, const ConvInputs * conv_rows = nullptr)
        : p_(program), ctx_(program.ctx()), spec_(spec), model_(model), cache_(cache), rows_(rows), flash_(flash),
          conv_(conv), conv_rows_(conv_rows) {}

    // x [n_embd][rows] through block `layer`.
    ggml_tensor * block(ggml_tensor * x, int32_t layer) const;
    // Keys and values of ready rows `g` [n_embd][rows] into the cache of `layer`.
    void store(ggml_tensor * g, int32_t layer) const;
    ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight) const;

  private:
    struct Projected { // [head dim][heads][rows]
        ggml_tensor *q, *k, *v;
    };
    ggml_tensor * project(ggml_tensor * w, ggml_tensor * bias, ggml_tensor * x) const;
    ggml_tensor * columns(ggml_tensor * w, int64_t first, int64_t count) const;
    ggml_tensor * heads(ggml_tensor * projected, int64_t first, int32_t count) const;
    Projected projected(ggml_tensor * x, const BlockTensors & b, bool queries) const;
    ggml_tensor * rotate(ggml_tensor * heads, ggml_tensor * norm_weight) const;
    void store(const Projected & p, const BlockTensors & b, int32_t state) const;
    void store_rows(ggml_tensor * plane, ggml_tensor * rows) const;
    ggml_tensor * attention(ggml_tensor * q, int32_t state) const;
    ggml_tensor * short_convolution(ggml_tensor * x, const BlockTensors & b, int32_t state) const;
    ggml_tensor * feed_forward(ggml_tensor * x, const BlockTensors & b) const;
    ggml_tensor * routed(ggml_tensor * x, const BlockTensors & b) const;

    const Program & p_;
    ggml_context * ctx_;
    const graph::ModelSpec & spec_;
    const Model & model_;
    const Cache & cache_;
    const RowInputs & rows_;
    bool flash_;
    const ConvCache * conv_;
    const ConvInputs * conv_rows_;
};

} // namespace adaspark::ggml_graph
