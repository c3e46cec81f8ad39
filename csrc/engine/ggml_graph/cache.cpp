#include "engine/ggml_graph/cache.h"

#include <algorithm>
#include <vector>

namespace adaspark::ggml_graph {

namespace {

constexpr int32_t kGroup = 256;     // slots: CUDA's attention wants multiples of it
constexpr int32_t kMoveAtOnce = 64; // slots

} // namespace

int32_t padded_rows(int32_t rows) {
    if (rows <= 8) {
        return rows;
    }
    int32_t power = 8;
    while (power < rows) {
        power *= 2;
    }
    return power / 4 * 3 >= rows ? power / 4 * 3 : power;
}

Cache::Cache(Device & device, const graph::ModelSpec & spec, int32_t slots, ggml_type type, const char * flag)
    : device_(device), owner_(spec.path), head_dim_(spec.head_dim), n_head_(spec.n_head_kv), spare_(slots),
      ctx_(new_context(1)) {
    const int32_t all = (slots + 1 + kGroup - 1) / kGroup * kGroup;
    tensor_ = ggml_new_tensor_3d(ctx_.get(), type, spec.kv_width(), all, int64_t{2} * spec.n_layer);
    buffer_ = device.allocate(ctx_.get(), owner_ + ": keys and values of " + std::to_string(slots) + " tokens",
                              std::string("Ask for a shorter context (") + flag + ")");
    ggml_backend_buffer_clear(buffer_.get(), 0); // slots nobody wrote are read with weight 0: they must be numbers
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

Cache::Mover & Cache::mover(int32_t rows) {
    Mover & m = movers_[rows];
    if (!m.program) {
        m.program = std::make_unique<Program>(device_, 8);
        const Program & p = *m.program;
        const int64_t planes = tensor_->ne[2];
        m.from = p.input(GGML_TYPE_I32, rows, planes); // the same for every plane
        m.to = p.input(GGML_TYPE_I64, rows);
        ggml_tensor * moved = ggml_get_rows(p.ctx(), tensor_, m.from); // in F32, which holds an F16 exactly
        p.add(ggml_set_rows(p.ctx(), tensor_, moved, m.to));
        m.program->finish(owner_);
    }
    return m;
}

void Cache::move(std::span<const int32_t> from, int32_t first) {
    std::size_t done = 0;
    while (done < from.size() && from[done] == first + static_cast<int32_t>(done)) {
        ++done; // where it belongs already
    }
    while (done < from.size()) {
        const auto n = static_cast<int32_t>(std::min<std::size_t>(kMoveAtOnce, from.size() - done));
        const int32_t rows = padded_rows(n);
        Mover & m = mover(rows);
        const auto planes = static_cast<std::size_t>(tensor_->ne[2]);
        std::vector<int32_t> source(planes * static_cast<std::size_t>(rows), spare_);
        std::vector<int64_t> to(static_cast<std::size_t>(rows), spare_);
        for (int32_t i = 0; i < n; ++i) {
            const auto at = static_cast<std::size_t>(i);
            for (std::size_t plane = 0; plane < planes; ++plane) {
                source[plane * static_cast<std::size_t>(rows) + at] = from[done + at];
            }
            to[at] = int64_t{first} + static_cast<int64_t>(done + at);
        }
        m.program->write(m.from, source.data(), source.size() * sizeof(int32_t));
        m.program->write(m.to, to.data(), to.size() * sizeof(int64_t));
        m.program->run();
        device_.wait(); // what was written from here leaves with this function
        done += static_cast<std::size_t>(n);
    }
}

} // namespace adaspark::ggml_graph
