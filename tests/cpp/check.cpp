#include "check.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {
thread_local int64_t allocated = 0;

void * take(std::size_t bytes, std::size_t alignment) {
    ++allocated;
    void * p = alignment > alignof(std::max_align_t)
                   ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                   : std::malloc(bytes > 0 ? bytes : 1);
    if (p == nullptr) {
        std::abort();
    }
    return p;
}
} // namespace

int64_t check::allocations() { return allocated; }

void * operator new(std::size_t n) { return take(n, 0); }
void * operator new[](std::size_t n) { return take(n, 0); }
void * operator new(std::size_t n, std::align_val_t a) { return take(n, static_cast<std::size_t>(a)); }
void * operator new[](std::size_t n, std::align_val_t a) { return take(n, static_cast<std::size_t>(a)); }
void * operator new(std::size_t n, const std::nothrow_t &) noexcept { return take(n, 0); }
void * operator new[](std::size_t n, const std::nothrow_t &) noexcept { return take(n, 0); }
void operator delete(void * p) noexcept { std::free(p); }
void operator delete[](void * p) noexcept { std::free(p); }
void operator delete(void * p, std::size_t) noexcept { std::free(p); }
void operator delete[](void * p, std::size_t) noexcept { std::free(p); }
void operator delete(void * p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void * p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void * p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void * p, std::size_t, std::align_val_t) noexcept { std::free(p); }

// Runs every test, or those whose name contains the argument.
int main(int argc, char ** argv) {
    int ran = 0;
    for (const check::Case & c : check::cases()) {
        if (argc > 1 && std::strstr(c.name, argv[1]) == nullptr) {
            continue;
        }
        const int before = check::failures();
        c.run();
        ++ran;
        std::printf("%s %s\n", check::failures() == before ? "ok  " : "FAIL", c.name);
    }
    std::printf("%d tests, %d failed checks\n", ran, check::failures());
    return check::failures() == 0 && ran > 0 ? 0 : 1;
}
