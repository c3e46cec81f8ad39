// Inputs of the short convolutions, in the device's memory: one tensor [n_embd][slots][convolutions]. Those of the last
// positions lie in a ring; behind it, for going back, the windows before some positions. A window is the taps - 1
// inputs before a position; those before the text are zero.
#pragma once

#include <span>
#include <vector>

#include "engine/ggml_graph/mover.h"
#include "engine/ggml_graph/rows.h"
#include "engine/graph/spec.h"

namespace adaspark::ggml_graph {

class ConvCache {
  public:
    // For texts of `n_ctx` tokens and forwards of at most `max_rows`. Throws OutOfMemoryError.
    ConvCache(Device & device, const graph::ModelSpec & spec, int32_t n_ctx, int32_t max_rows);

    int32_t taps() const { return taps_; }
    // Row r behind n committed positions has the slot of position n + r, wherever in the tree it stands.
    int32_t slot(int32_t position) const { return position < 0 ? zeros_ : position % ring_; }
    int32_t zeros() const { return zeros_; }     // never written
    int32_t spare() const { return zeros_ + 1; } // never read: for rows that pad a forward
    // The inputs of convolution `conv`, [n_embd][slots].
    ggml_tensor * inputs(ggml_context * ctx, int32_t conv) const;

    // The rows of `path` (ascending) follow the `n_past` committed positions.
    void commit(std::span<const int32_t> path, int32_t n_past);
    // The last position whose window is kept and that is no later than `n_past`; go back to such a position.
    static int32_t rollback_point(int32_t n_past);
    void rollback(int32_t point);

  private:
    int32_t kept(int32_t position, int32_t tap) const; // slot

    int32_t taps_;
    int32_t ring_; // slots
    int32_t zeros_;
    Context ctx_;
    Buffer buffer_;
    ggml_tensor * tensor_ = nullptr; // F32
    std::unique_ptr<SlotMover> mover_;
};

// Where the rows of a forward put their inputs, and which ones each of them reads.
class ConvInputs {
  public:
    ConvInputs(const Program & program, int32_t width, int32_t taps);

    ggml_tensor * slots() const { return slots_; } // I64 [width]
    ggml_tensor * reads() const { return reads_; } // I32 [taps x width]: of each row the oldest first, its own last

    // As RowInputs::set().
    void set(const Program & program, const Rows & rows, const ConvCache & cache);

  private:
    ggml_tensor *slots_, *reads_;
    std::vector<int64_t> slot_;
    std::vector<int32_t> read_;
};

} // namespace adaspark::ggml_graph
