// Threads that somebody else owns and lends for one call.
#pragma once

#include <cstdint>

namespace adaspark {

class Team {
  public:
    virtual ~Team() = default;

    virtual int32_t size() const = 0; // threads, the calling one among them

    // Calls call(data, thread, threads) on `n_threads` threads at once, at most size(), the calling one among them, and
    // returns when all are done. `threads`: how many there are, 1 .. n_threads. The call must not throw.
    using Call = void (*)(void * data, int32_t thread, int32_t threads);
    virtual void run(int32_t n_threads, Call call, void * data) = 0;
};

} // namespace adaspark
