#include "engine/graph/conv_windows.h"

#include "core/tree.h"
#include "engine/backend.h"
#include "engine/error.h"

#include <algorithm>
#include <cstdlib>

namespace adaspark::graph {

namespace {

// Tokens from one window that is kept to the next: going back runs at most so many again, in one forward; what is kept
// is a small part of the keys and values of as many tokens.
constexpr int32_t kKeep = 64;

} // namespace

void ConvWindows::Free::operator()(float * p) const { std::free(p); }

ConvWindows::ConvWindows(int32_t layers, int32_t taps, int32_t n_embd, int32_t slots, const std::string & owner)
    : layers_(layers), taps_(taps), n_embd_(n_embd), max_rows_(core::kMaxRows),
      window_floats_(static_cast<std::size_t>(layers) * static_cast<std::size_t>(taps - 1) *
                     static_cast<std::size_t>(n_embd)),
      rows_(static_cast<std::size_t>(layers * max_rows_) * static_cast<std::size_t>(n_embd)), window_(window_floats_) {
    const std::size_t count = (static_cast<std::size_t>(slots / kKeep) + 1) * window_floats_;
    const std::size_t available = memory_available();
    if (available == 0 || count * sizeof(float) < available) { // taken by the system only where it is used
        kept_.reset(static_cast<float *>(std::calloc(count, sizeof(float))));
    }
    if (!kept_) {
        throw OutOfMemoryError(owner + ": convolution windows of a context of " + std::to_string(slots) +
                               " tokens need " + mebibytes(static_cast<double>(count * sizeof(float))) +
                               ". Ask for a shorter context (-c)");
    }
}

// The window before position `end` of the committed text followed by `path`.
void ConvWindows::fill(int32_t layer, int32_t end, std::span<const int32_t> path, int32_t n_past, float * out) {
    for (int32_t at = end - (taps_ - 1); at < end; ++at, out += n_embd_) { // ascending: `out` may be the window itself
        const float * in =
            at < n_past ? committed(layer, n_past - at) : row(layer, path[static_cast<std::size_t>(at - n_past)]);
        if (in != out) {
            std::copy_n(in, n_embd_, out);
        }
    }
}

void ConvWindows::commit(std::span<const int32_t> path, int32_t n_past) {
    const int32_t end = n_past + static_cast<int32_t>(path.size());
    const std::size_t layer_floats = window_floats_ / static_cast<std::size_t>(layers_);
    for (int32_t layer = 0; layer < layers_; ++layer) {
        const std::size_t first = static_cast<std::size_t>(layer) * layer_floats;
        for (int32_t keep = (n_past / kKeep + 1) * kKeep; keep <= end; keep += kKeep) {
            fill(layer, keep, path, n_past,
                 kept_.get() + static_cast<std::size_t>(keep / kKeep) * window_floats_ + first);
        }
        fill(layer, end, path, n_past, window_.data() + first);
    }
}

int32_t ConvWindows::rollback_point(int32_t n_past) { return n_past / kKeep * kKeep; }

void ConvWindows::rollback(int32_t point) {
    std::copy_n(kept_.get() + static_cast<std::size_t>(point / kKeep) * window_floats_, window_floats_, window_.data());
}

} // namespace adaspark::graph
