// Keys and values of the committed text and of the rows being verified, in the device's memory: one tensor
// [kv width][slots][2 x layers], keys and values of a layer one after the other.
#pragma once

#include <map>
#include <span>
#include <string>

#include "engine/ggml_graph/program.h"
#include "engine/graph/spec.h"

namespace adaspark::ggml_graph {

// Rows of the graphs that are kept: a forward takes the next larger one. Every width up to 8 has its own, because
// products for few columns are made for the number (CUDA); above that a step of a half is at most a third too many.
int32_t padded_rows(int32_t rows);

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
    struct Mover {
        std::unique_ptr<Program> program;
        ggml_tensor *from = nullptr, *to = nullptr;
    };
    ggml_tensor * plane(ggml_context * ctx, int32_t which) const;
    ggml_tensor * heads(ggml_context * ctx, int32_t which, int32_t slots) const;
    Mover & mover(int32_t rows);

    Device & device_;
    std::string owner_;
    int32_t head_dim_;
    int32_t n_head_;
    int32_t spare_;
    Context ctx_;
    Buffer buffer_;
    ggml_tensor * tensor_ = nullptr;
    std::map<int32_t, Mover> movers_; // by rows
};

} // namespace adaspark::ggml_graph
