#include "engine/ggml_graph/cache.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace adaspark::ggml_graph {

namespace {

constexpr int32_t kGroup = 256; // slots: CUDA's attention wants multiples of it

} // namespace

Cache::Cache(Device & device, const graph::ModelSpec & spec, int32_t slots, ggml_type type, const char * flag)
    : head_dim_(spec.head_dim), n_head_(spec.n_head_kv), spare_(slots), ctx_(new_context(1)) {
    const int32_t all = (slots + 1 + kGroup - 1) / kGroup * kGroup;
    tensor_ = ggml_new_tensor_3d(ctx_.get(), type, spec.kv_width(), all, int64_t{2} * spec.n_attention);
    buffer_ = device.allocate(ctx_.get(), spec.path + ": keys and values of " + std::to_string(slots) + " tokens",
                              std::string("Ask for a shorter context (") + flag + ")");
    ggml_backend_buffer_clear(buffer_.get(), 0); // slots nobody wrote are read with weight 0: they must be numbers
    mover_ = std::make_unique<SlotMover>(device, tensor_, spare_, spec.path);
}

int32_t Cache::window(int32_t end) const {
    const int32_t step = end <= 2048 ? 512 : end <= 8192 ? 1024 : 2048;
    return std::min((end + step - 1) / step * step, static_cast<int32_t>(tensor_->ne[1]));
}

ggml_tensor * Cache::plane(ggml_context * ctx, int32_t which) const {
    return ggml_view_2d(ctx, tensor_, tensor_->ne[0], tensor_->ne[1], tensor_->nb[1],
                        static_cast<std::size_t>(which) * tensor_->nb[2]);
}

ggml_tensor * Cache::heads(ggml_context * ctx, int32_t which, int32_t slots) const {
    return ggml_view_3d(ctx, tensor_, head_dim_, slots, n_head_, tensor_->nb[1],
                        static_cast<std::size_t>(head_dim_) * ggml_type_size(tensor_->type),
                        static_cast<std::size_t>(which) * tensor_->nb[2]);
}

void Cache::move(std::span<const int32_t> from, int32_t first) {
    std::size_t done = 0;
    while (done < from.size() && from[done] == first + static_cast<int32_t>(done)) {
        ++done; // where it belongs already
    }
    std::vector<int32_t> to(from.size() - done);
    std::iota(to.begin(), to.end(), first + static_cast<int32_t>(done));
    mover_->move(from.subspan(done), to);
}

} // namespace adaspark::ggml_graph
