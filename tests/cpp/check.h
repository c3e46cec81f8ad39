// The least a test needs: named cases, checks that say where they failed, and a count of heap allocations.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

namespace check {

struct Case {
    const char * name;
    std::function<void()> run;
};

inline std::vector<Case> & cases() {
    static std::vector<Case> all;
    return all;
}

inline int & failures() {
    static int n = 0;
    return n;
}

struct Register {
    Register(const char * name, std::function<void()> run) { cases().push_back({name, std::move(run)}); }
};

inline void that(bool ok, const char * text, const char * file, int line) {
    if (!ok) {
        std::fprintf(stderr, "%s:%d: %s\n", file, line, text);
        ++failures();
    }
}

// Heap allocations of this thread so far (check.cpp replaces operator new).
int64_t allocations();

} // namespace check

#define TEST(name)                                                                                                     \
    static void name();                                                                                                \
    static const check::Register register_##name{#name, name};                                                         \
    static void name()

#define CHECK(condition) check::that(static_cast<bool>(condition), #condition, __FILE__, __LINE__)
