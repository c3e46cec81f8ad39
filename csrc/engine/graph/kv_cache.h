// Keys and values of the committed text and of the rows being verified, in the layout of kernels.h.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"

namespace adaspark::graph {

class KvCache {
  public:
    // `slots` positions for each of `layers` x `heads`. Throws OutOfMemoryError naming `flag` as the remedy.
    KvCache(int32_t layers, int32_t heads, int32_t head_dim, int32_t slots, kernels::Cache type,
            const std::string & owner, const char * flag);

    kernels::Cache type() const { return type_; }
    int32_t slots() const { return slots_; }
    void * keys(int32_t layer, int32_t head) const { return data_ + plane(layer, head, 0); }
    const void * key_slot(int32_t layer, int32_t head, int32_t slot) const { // first of a group of slots
        return data_ + plane(layer, head, 0) + static_cast<std::size_t>(slot / kernels::kSlots) * group_bytes_;
    }
    void * values(int32_t layer, int32_t head) const { return data_ + plane(layer, head, 1); }

    // Move the slots `from` (ascending) to `first`, `first` + 1, ...: what a verify leaves of its rows. from[i] >=
    // first + i.
    void compact(int32_t first, std::span<const int32_t> from);
    // Forget the slots below `count`, a multiple of kSlots; `used` slots in all move down.
    void shift(int32_t count, int32_t used);

  private:
    std::size_t plane(int32_t layer, int32_t head, int32_t which) const {
        return ((static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads_) + static_cast<std::size_t>(head)) *
                    2 +
                static_cast<std::size_t>(which)) *
               plane_bytes_;
    }

    int32_t layers_;
    int32_t heads_;
    int32_t head_dim_;
    int32_t slots_;
    kernels::Cache type_;
    std::size_t group_bytes_; // of 16 slots
    std::size_t plane_bytes_; // keys (or values) of one head in one layer
    struct Free {
        void operator()(void * p) const;
    };
    std::unique_ptr<void, Free> allocated_;
    uint8_t * data_ = nullptr; // on a cache line
};

} // namespace adaspark::graph
