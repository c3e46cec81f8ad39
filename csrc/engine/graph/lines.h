// Vectors that begin on a cache line: a load or store of a whole line that straddles two takes twice as long, and two
// threads that write one line hold each other up.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace adaspark::graph {

inline constexpr std::size_t kLine = 64; // bytes

template <typename T> struct LineAllocator {
    using value_type = T;
    LineAllocator() = default;
    template <typename U> LineAllocator(const LineAllocator<U> &) {}
    T * allocate(std::size_t n) { return static_cast<T *>(::operator new(n * sizeof(T), std::align_val_t{kLine})); }
    void deallocate(T * p, std::size_t) { ::operator delete(p, std::align_val_t{kLine}); }
    template <typename U> bool operator==(const LineAllocator<U> &) const { return true; }
};

template <typename T> using LineVector = std::vector<T, LineAllocator<T>>;

} // namespace adaspark::graph
