// Keys and values of the committed text and of the rows being verified, in the device's memory: one tensor
// [kv width][slots][2 x layers], keys and values of a layer one after the other. `layer` counts those with attention.
#pragma once

#include <span>
#include <string>

#include "engine/ggml_graph/mover.h"
#include "engine/graph/spec.h"

namespace adaspark::ggml_graph {

class Cache {
  public:
    // Throws OutOfMemoryError naming `flag` as the remedy.
    Cache(Device & device, const graph::ModelSpec & spec, int32_t slots, ggml_type type, const char * flag);

    ggml_type type() const { return tensor_->type; }
    // A slot that no row sees: where rows that pad a forward are put.
    int32_t spare() const { return spare_; }
    // Slots a forward looks at whose rows end at slot `end`. Few different numbers: each needs a graph of its own.
    int32_t window(int32_t end) const;

    // Where a layer's keys and values are written, [kv width][slots].
    ggml_tensor * keys(ggml_context * ctx, int32_t layer) const { return plane(ctx, 2 * layer); }
    ggml_tensor * values(ggml_context * ctx, int32_t layer) const { return plane(ctx, 2 * layer + 1); }
    // The first `slots` of them as attention reads them, [head dim][slots][heads].
    ggml_tensor * key_heads(ggml_context * ctx, int32_t layer, int32_t slots) const {
        return heads(ctx, 2 * layer, slots);
    }
    ggml_tensor * value_heads(ggml_context * ctx, int32_t layer, int32_t slots) const {
        return heads(ctx, 2 * layer + 1, slots);
    }

    // Move the slots `from` (ascending) to `first`, `first` + 1, ... in every layer, in the device's memory.
    // from[i] >= first + i.
    void move(std::span<const int32_t> from, int32_t first);

  private:
    ggml_tensor * plane(ggml_context * ctx, int32_t which) const;
    ggml_tensor * heads(ggml_context * ctx, int32_t which, int32_t slots) const;

    int32_t head_dim_;
    int32_t n_head_;
    int32_t spare_;
    Context ctx_;
    Buffer buffer_;
    ggml_tensor * tensor_ = nullptr;
    std::unique_ptr<SlotMover> mover_;
};

} // namespace adaspark::ggml_graph
