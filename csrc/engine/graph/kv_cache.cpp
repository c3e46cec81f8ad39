#include "engine/graph/kv_cache.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/graph/lines.h"

#include <cstdlib>
#include <cstring>

namespace adaspark::graph {

void KvCache::Free::operator()(void * p) const { std::free(p); }

KvCache::KvCache(int32_t layers, int32_t heads, int32_t head_dim, int32_t slots, kernels::Cache type,
                 const std::string & owner, const char * flag)
    : layers_(layers), heads_(heads), head_dim_(head_dim),
      slots_((slots + kernels::kSlots - 1) / kernels::kSlots * kernels::kSlots), type_(type),
      group_bytes_(kernels::group_bytes(type, head_dim)),
      plane_bytes_(static_cast<std::size_t>(slots_ / kernels::kSlots) * group_bytes_) {
    const std::size_t bytes = plane(layers_, 0, 0);
    const std::size_t available = memory_available();
    if (available == 0 || bytes < available) {
        // Zeroed, and by the system only where it is used: scores are computed for slots nothing was written to, too.
        std::size_t space = bytes + kLine;
        allocated_.reset(std::calloc(space, 1));
        void * at = allocated_.get();
        data_ = static_cast<uint8_t *>(std::align(kLine, bytes, at, space));
    }
    if (!allocated_) {
        throw OutOfMemoryError(owner + ": a context of " + std::to_string(slots) + " tokens needs " +
                               mebibytes(static_cast<double>(bytes)) + ", " +
                               mebibytes(static_cast<double>(available)) + " are free. Ask for a shorter context (" +
                               flag + ") or a smaller cache type (-ctk, -ctv)");
    }
}

void KvCache::compact(int32_t first, std::span<const int32_t> from) {
    constexpr std::size_t kSlots = kernels::kSlots;
    const auto dim = static_cast<std::size_t>(head_dim_);
    const std::size_t size = kernels::number_bytes(type_);
    const std::size_t front = kernels::scales_bytes(type_, head_dim_);
    const std::size_t blocks = front / kSlots / 2; // scales of a slot
    for (std::size_t i = 0; i < from.size(); ++i) {
        const auto a = static_cast<std::size_t>(from[i]);
        const auto b = static_cast<std::size_t>(first) + i;
        if (a == b) {
            continue;
        }
        // `count` times `bytes`, `step` apart; those of the next slot follow after `apart`
        const auto move = [&](void * plane, std::size_t begin, std::size_t apart, std::size_t count, std::size_t step,
                              std::size_t bytes) {
            auto * p = static_cast<uint8_t *>(plane) + begin;
            const uint8_t * source = p + a / kSlots * group_bytes_ + a % kSlots * apart;
            uint8_t * target = p + b / kSlots * group_bytes_ + b % kSlots * apart;
            for (std::size_t j = 0; j < count; ++j) {
                std::memcpy(target + j * step, source + j * step, bytes);
            }
        };
        for (int32_t layer = 0; layer < layers_; ++layer) {
            for (int32_t head = 0; head < heads_; ++head) {
                move(keys(layer, head), front, size, dim, kSlots * size, size);
                move(values(layer, head), front, dim * size, 1, 0, dim * size);
                move(keys(layer, head), 0, 2, blocks, kSlots * 2, 2);
                move(values(layer, head), 0, blocks * 2, 1, 0, blocks * 2);
            }
        }
    }
}

void KvCache::shift(int32_t count, int32_t used) {
    const auto groups = [&](int32_t slots) {
        return static_cast<std::size_t>((slots + kernels::kSlots - 1) / kernels::kSlots) * group_bytes_;
    };
    for (int32_t layer = 0; layer < layers_; ++layer) {
        for (int32_t head = 0; head < heads_; ++head) {
            for (void * plane : {keys(layer, head), values(layer, head)}) {
                std::memmove(plane, static_cast<uint8_t *>(plane) + groups(count), groups(used - count));
            }
        }
    }
}

} // namespace adaspark::graph
