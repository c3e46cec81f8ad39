#include "engine/ggml_graph/rows.h"

#include <algorithm>

namespace adaspark::ggml_graph {

namespace {

constexpr ggml_fp16_t kSeen = 0;        // added to a score: 0
constexpr ggml_fp16_t kHidden = 0xFC00; // minus infinity

} // namespace

RowInputs::RowInputs(const Program & program, int32_t width, int32_t window)
    : window_(window), positions_(program.input(GGML_TYPE_I32, width)), slots_(program.input(GGML_TYPE_I64, width)),
      mask_(window > 0 ? program.input(GGML_TYPE_F16, window, width) : nullptr),
      position_(static_cast<std::size_t>(width)), slot_(position_.size()),
      visible_(static_cast<std::size_t>(width) * static_cast<std::size_t>(window), kHidden) {}

void RowInputs::set(const Program & program, const Rows & rows, int32_t spare) {
    const auto count = static_cast<int32_t>(rows.position.size());
    const int32_t first = rows.committed;
    for (int32_t r = 0; r < width(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        position_[i] = r < count ? rows.position[i] : rows.position[0];
        slot_[i] = r < count ? first + r : spare;
    }
    program.write(positions_, position_.data(), position_.size() * sizeof(int32_t));
    program.write(slots_, slot_.data(), slot_.size() * sizeof(int64_t));
    if (window_ > 0) {
        set_mask(program, rows);
    }
}

void RowInputs::set_mask(const Program & program, const Rows & rows) {
    const auto count = static_cast<int32_t>(rows.position.size());
    const int32_t first = rows.committed;
    // Only the part of the mask that changed since the last forward is made and sent anew.
    const bool fresh = end_ == 0;
    const int32_t begin = fresh ? 0 : std::min(committed_, first);
    const int32_t end = fresh ? window() : std::max(end_, first + count);
    for (int32_t r = 0; r < width(); ++r) {
        const auto i = static_cast<std::size_t>(r);
        ggml_fp16_t * row = visible_.data() + i * static_cast<std::size_t>(window());
        std::fill(row + begin, row + first, kSeen);
        std::fill(row + first, row + end, kHidden);
        if (r >= count) {
            row[first] = kSeen; // a padding row sees something, or its softmax were not a number
        } else if (rows.all) {
            std::fill_n(row + first, count, kSeen);
        } else {
            if (const int32_t parent = rows.parent[i]; parent >= 0) {
                const ggml_fp16_t * above =
                    visible_.data() + static_cast<std::size_t>(parent) * static_cast<std::size_t>(window());
                std::copy(above + first, above + first + r, row + first);
            }
            row[first + r] = kSeen;
        }
    }
    committed_ = first;
    end_ = first + count;
    const TimeInto time(program.device().spent().copy_us);
    ggml_backend_tensor_set_2d_async(program.device().backend(), mask_, visible_.data() + begin,
                                     static_cast<std::size_t>(begin) * sizeof(ggml_fp16_t),
                                     static_cast<std::size_t>(end - begin) * sizeof(ggml_fp16_t),
                                     static_cast<std::size_t>(width()), mask_->nb[1], mask_->nb[1]);
}

} // namespace adaspark::ggml_graph
