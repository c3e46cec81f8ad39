// Moves slots of a tensor [width][slots][planes] in every plane alike, in the device's memory.
#pragma once

#include <map>
#include <span>
#include <string>

#include "engine/ggml_graph/program.h"

namespace adaspark::ggml_graph {

// Rows of the graphs that are kept: a forward takes the next larger one. Every width up to 8 has its own, because
// products for few columns are made for the number (CUDA); above that a step of a half is at most a third too many.
int32_t padded_rows(int32_t rows);

class SlotMover {
  public:
    static constexpr std::size_t kAtOnce = 64; // slots

    // `spare`: a slot that may hold anything. Both must outlive this object.
    SlotMover(Device & device, ggml_tensor * tensor, int32_t spare, std::string owner)
        : device_(device), tensor_(tensor), spare_(spare), owner_(std::move(owner)) {}

    // Slot from[i] to slot to[i]. All of kAtOnce are read before one is written; more go one such group after the
    // other.
    void move(std::span<const int32_t> from, std::span<const int32_t> to);

  private:
    struct Step {
        std::unique_ptr<Program> program;
        ggml_tensor *from = nullptr, *to = nullptr;
    };
    Step & step(int32_t rows);

    Device & device_;
    ggml_tensor * tensor_;
    int32_t spare_;
    std::string owner_;
    std::map<int32_t, Step> steps_; // by rows
};

} // namespace adaspark::ggml_graph
