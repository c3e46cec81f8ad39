#include "engine/graph/kv_cache.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <cstdlib>
#include <cstring>

namespace adaspark::graph {

void KvCache::Free::operator()(uint8_t * p) const { std::free(p); }

KvCache::KvCache(int32_t layers, int32_t heads, int32_t head_dim, int32_t slots, bool half, const std::string & owner,
                 const char * flag)
    : layers_(layers), heads_(heads), head_dim_(head_dim),
      slots_((slots + kernels::kSlots - 1) / kernels::kSlots * kernels::kSlots), half_(half),
      value_bytes_(half ? 2 : 4),
      plane_bytes_(static_cast<std::size_t>(slots_) * static_cast<std::size_t>(head_dim) * value_bytes_) {
    const std::size_t bytes = plane(layers_, 0, 0);
    const std::size_t available = memory_available();
    if (available == 0 || bytes < available) {
        // Zeroed, and by the system only where it is used: scores are computed for slots nothing was written to, too.
        data_.reset(static_cast<uint8_t *>(std::calloc(bytes, 1)));
    }
    if (!data_) {
        throw OutOfMemoryError(owner + ": a context of " + std::to_string(slots) + " tokens needs " +
                               mebibytes(static_cast<double>(bytes)) + ", " +
                               mebibytes(static_cast<double>(available)) + " are free. Ask for a shorter context (" +
                               flag + ") or a smaller cache type (-ctk, -ctv)");
    }
}

void KvCache::compact(int32_t first, std::span<const int32_t> from) {
    const auto dim = static_cast<std::size_t>(head_dim_);
    constexpr std::size_t kSlots = kernels::kSlots;
    const std::size_t group = dim * kSlots * value_bytes_;
    for (std::size_t i = 0; i < from.size(); ++i) {
        const int32_t a = from[i];
        const int32_t b = first + static_cast<int32_t>(i);
        if (a == b) {
            continue;
        }
        for (int32_t layer = 0; layer < layers_; ++layer) {
            for (int32_t head = 0; head < heads_; ++head) {
                auto * k = static_cast<uint8_t *>(keys(layer, head));
                uint8_t * source = k + static_cast<std::size_t>(a) / kSlots * group +
                                   static_cast<std::size_t>(a) % kSlots * value_bytes_;
                uint8_t * target = k + static_cast<std::size_t>(b) / kSlots * group +
                                   static_cast<std::size_t>(b) % kSlots * value_bytes_;
                for (std::size_t d = 0; d < dim; ++d) {
                    std::memcpy(target + d * kSlots * value_bytes_, source + d * kSlots * value_bytes_, value_bytes_);
                }
                auto * v = static_cast<uint8_t *>(values(layer, head));
                std::memcpy(v + static_cast<std::size_t>(b) * dim * value_bytes_,
                            v + static_cast<std::size_t>(a) * dim * value_bytes_, dim * value_bytes_);
            }
        }
    }
}

void KvCache::shift(int32_t count, int32_t used) {
    const std::size_t slot = static_cast<std::size_t>(head_dim_) * value_bytes_; // bytes; groups move whole
    const std::size_t kept =
        static_cast<std::size_t>((used + kernels::kSlots - 1) / kernels::kSlots * kernels::kSlots - count) * slot;
    for (int32_t layer = 0; layer < layers_; ++layer) {
        for (int32_t head = 0; head < heads_; ++head) {
            for (void * plane : {keys(layer, head), values(layer, head)}) {
                std::memmove(plane, static_cast<uint8_t *>(plane) + static_cast<std::size_t>(count) * slot, kept);
            }
        }
    }
}

} // namespace adaspark::graph
