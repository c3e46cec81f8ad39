// Inputs of the short convolutions: those of the rows being verified, the last ones of the committed text, and what
// going back takes. A window is the taps - 1 inputs before a position; positions before the text are zero.
#pragma once

#include "engine/graph/lines.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace adaspark::graph {

class ConvWindows {
  public:
    // `layers` convolutions of `taps` inputs, each [n_embd], for a text of `slots` tokens. Throws OutOfMemoryError.
    ConvWindows(int32_t layers, int32_t taps, int32_t n_embd, int32_t slots, const std::string & owner);

    int32_t taps() const { return taps_; }
    float * row(int32_t layer, int32_t r) { // input of row r of this forward
        return rows_.data() + (static_cast<std::ptrdiff_t>(layer) * max_rows_ + r) * n_embd_;
    }
    const float * committed(int32_t layer, int32_t back) const { // the input `back` (1 .. taps - 1) before the rows
        return window_.data() + (static_cast<std::ptrdiff_t>(layer) + 1) * (taps_ - 1) * n_embd_ -
               static_cast<std::ptrdiff_t>(back) * n_embd_;
    }

    // The rows of `path` (ascending) follow the `n_past` committed positions.
    void commit(std::span<const int32_t> path, int32_t n_past);
    // The last position whose window is kept and that is no later than `n_past`; go back to such a position.
    static int32_t rollback_point(int32_t n_past);
    void rollback(int32_t point);

  private:
    void fill(int32_t layer, int32_t end, std::span<const int32_t> path, int32_t n_past, float * out);

    struct Free {
        void operator()(float * p) const;
    };
    int32_t layers_;
    int32_t taps_;
    int32_t n_embd_;
    int32_t max_rows_;
    std::size_t window_floats_;           // of one window in all layers
    LineVector<float> rows_;              // [layer][row][n_embd]
    LineVector<float> window_;            // [layer][taps - 1][n_embd] before the rows of the next forward
    std::unique_ptr<float[], Free> kept_; // windows of every kKeep-th position, as `window_`
};

} // namespace adaspark::graph
