#include "engine/ggml_graph/conv_cache.h"

#include <algorithm>

namespace adaspark::ggml_graph {

namespace {

// Tokens from one window that is kept to the next: going back runs at most so many again, in one forward.
constexpr int32_t kKeep = 64;

} // namespace

ConvCache::ConvCache(Device & device, const graph::ModelSpec & spec, int32_t n_ctx, int32_t max_rows)
    : taps_(spec.conv_taps), ring_(max_rows + taps_ - 1), zeros_(ring_ + (n_ctx / kKeep + 1) * (taps_ - 1)),
      ctx_(new_context(1)) {
    tensor_ = ggml_new_tensor_3d(ctx_.get(), GGML_TYPE_F32, spec.n_embd, spare() + 1, spec.n_conv);
    buffer_ = device.allocate(ctx_.get(),
                              spec.path + ": convolution windows of a context of " + std::to_string(n_ctx) + " tokens",
                              "Ask for a shorter context (-c)");
    ggml_backend_buffer_clear(buffer_.get(), 0);
    mover_ = std::make_unique<SlotMover>(device, tensor_, spare(), spec.path);
}

ggml_tensor * ConvCache::inputs(ggml_context * ctx, int32_t conv) const {
    return ggml_view_2d(ctx, tensor_, tensor_->ne[0], tensor_->ne[1], tensor_->nb[1],
                        static_cast<std::size_t>(conv) * tensor_->nb[2]);
}

int32_t ConvCache::kept(int32_t position, int32_t tap) const { return ring_ + position / kKeep * (taps_ - 1) + tap; }

void ConvCache::commit(std::span<const int32_t> path, int32_t n_past) {
    std::vector<int32_t> from;
    std::vector<int32_t> to;
    for (std::size_t i = 0; i < path.size(); ++i) {
        if (path[i] != static_cast<int32_t>(i)) { // a branch: not more rows than are moved at once
            from.push_back(slot(n_past + path[i]));
            to.push_back(slot(n_past + static_cast<int32_t>(i)));
        }
    }
    mover_->move(from, to);
    from.clear();
    to.clear();
    const int32_t end = n_past + static_cast<int32_t>(path.size());
    for (int32_t position = (n_past / kKeep + 1) * kKeep; position <= end; position += kKeep) {
        for (int32_t tap = 0; tap < taps_ - 1; ++tap) {
            from.push_back(slot(position - (taps_ - 1) + tap));
            to.push_back(kept(position, tap));
        }
    }
    mover_->move(from, to);
}

int32_t ConvCache::rollback_point(int32_t n_past) { return n_past / kKeep * kKeep; }

void ConvCache::rollback(int32_t point) {
    if (point == 0) {
        return; // what is before the text is not looked up
    }
    std::vector<int32_t> from;
    std::vector<int32_t> to;
    for (int32_t tap = 0; tap < taps_ - 1; ++tap) {
        from.push_back(kept(point, tap));
        to.push_back(slot(point - (taps_ - 1) + tap));
    }
    mover_->move(from, to);
}

ConvInputs::ConvInputs(const Program & program, int32_t width, int32_t taps)
    : slots_(program.input(GGML_TYPE_I64, width)), reads_(program.input(GGML_TYPE_I32, int64_t{taps} * width)),
      slot_(static_cast<std::size_t>(width)), read_(static_cast<std::size_t>(taps * width)) {}

void ConvInputs::set(const Program & program, const Rows & rows, const ConvCache & cache) {
    const auto count = static_cast<int32_t>(rows.position.size());
    std::fill(slot_.begin(), slot_.end(), cache.spare());
    std::fill(read_.begin(), read_.end(), cache.zeros());
    const int32_t taps = cache.taps();
    for (int32_t r = 0; r < count; ++r) {
        slot_[static_cast<std::size_t>(r)] = cache.slot(rows.committed + r);
        int32_t at = r; // a row, or from -1 down committed positions
        for (int32_t tap = taps - 1; tap >= 0; --tap) {
            read_[static_cast<std::size_t>(r * taps + tap)] = cache.slot(rows.committed + at);
            at = at > 0 ? rows.parent[static_cast<std::size_t>(at)] : at - 1;
        }
    }
    program.write(slots_, slot_.data(), slot_.size() * sizeof(int64_t));
    program.write(reads_, read_.data(), read_.size() * sizeof(int32_t));
}

} // namespace adaspark::ggml_graph
