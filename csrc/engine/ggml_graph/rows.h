// The rows of a forward as its graph wants them: positions, slots of the cache, and who sees what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ggml_graph/program.h"

namespace adaspark::ggml_graph {

struct Rows {
    int32_t committed = 0;             // slots before the rows; every row sees all of them
    std::span<const int32_t> position; // of each row
    std::span<const int32_t> parent;   // an earlier row, or -1: a row sees itself, its parent and what that sees
    bool all = false;                  // every row sees every row instead
};

class RowInputs {
  public:
    // `width`: rows of the graph; `window`: slots it looks at, 0 for a graph without attention.
    RowInputs(const Program & program, int32_t width, int32_t window);

    ggml_tensor * positions() const { return positions_; } // I32 [width]
    ggml_tensor * slots() const { return slots_; }         // I64 [width]
    ggml_tensor * mask() const { return mask_; }           // F16 [width][window]
    int32_t width() const { return static_cast<int32_t>(positions_->ne[0]); }
    int32_t window() const { return window_; }

    // Row r goes to slot committed + r; rows that pad the graph go to `spare`. What is sent must stay until the device
    // was waited for: it lies in this object.
    void set(const Program & program, const Rows & rows, int32_t spare);

  private:
    void set_mask(const Program & program, const Rows & rows);

    int32_t window_;
    ggml_tensor *positions_, *slots_, *mask_;
    std::vector<int32_t> position_;
    std::vector<int64_t> slot_;
    std::vector<ggml_fp16_t> visible_; // the mask as the device has it
    int32_t committed_ = 0;            // of the last forward
    int32_t end_ = 0;                  // slots behind it are hidden from every row; 0 = nothing was sent
};

} // namespace adaspark::ggml_graph
