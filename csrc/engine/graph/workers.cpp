#include "engine/graph/workers.h"

#include "engine/error.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <system_error>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace adaspark::graph {

namespace {

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// Turns of waiting before the processor is offered to others, who then keep it for milliseconds: about 2 ms where every
// thread can have a processor, at once where they must share.
constexpr int32_t kPatient = 100000;
constexpr int32_t kShared = 50;
constexpr std::chrono::microseconds kAwake{300}; // spinning after a job, in case the next one comes at once

template <typename Done> void spin_until(int32_t spins, Done && done) {
    for (int32_t i = 0; !done(); ++i) {
        relax();
        if (i >= spins) {
            std::this_thread::yield();
        }
    }
}

int32_t patience(int32_t n_threads) {
    return n_threads <= static_cast<int32_t>(std::thread::hardware_concurrency()) ? kPatient : kShared;
}

} // namespace

Workers::Workers(int32_t n_threads)
    : spins_(patience(n_threads)), most_(n_threads), size_(n_threads),
      taken_(std::make_unique<Taken[]>(static_cast<std::size_t>(n_threads))) {
    try {
        for (int32_t i = 1; i < n_threads; ++i) {
            threads_.emplace_back([this, i] { loop(i); });
        }
    } catch (const std::system_error & error) {
        const std::string why = error.what();
        stop();
        throw BackendError("cannot start " + std::to_string(n_threads) + " threads (" + why + "). Ask for fewer (-t)");
    }
}

Workers::Workers(Team & team, int32_t n_threads)
    : spins_(patience(std::min(n_threads, team.size()))), most_(std::min(n_threads, team.size())), team_(&team),
      size_(most_), taken_(std::make_unique<Taken[]>(static_cast<std::size_t>(most_))) {}

Workers::~Workers() { stop(); }

void Workers::stop() {
    stopping_ = true;
    job_.fetch_add(1, std::memory_order_release);
    job_.notify_all();
    for (std::thread & thread : threads_) {
        thread.join();
    }
    threads_.clear();
}

void Workers::run_on_team(Call call, void * data) {
    call_ = call;
    data_ = data;
    phase_.store(phase_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    const auto enter = [](void * workers, int32_t thread, int32_t threads) {
        auto & self = *static_cast<Workers *>(workers);
        self.size_.store(threads, std::memory_order_relaxed); // all store the same
        self.call_(self.data_, thread);
    };
    team_->run(most_, enter, this);
    size_.store(most_, std::memory_order_relaxed);
}

void Workers::start(Call call, void * data) {
    call_ = call;
    data_ = data;
    running_.store(static_cast<int32_t>(threads_.size()), std::memory_order_relaxed);
    phase_.store(phase_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    job_.fetch_add(1, std::memory_order_release);
    job_.notify_all();
}

void Workers::finish() {
    spin_until(spins_, [&] { return running_.load(std::memory_order_acquire) == 0; });
}

// Where the next piece of an owner's share begins in it; `share` or more when all is taken. What the pieces write is
// handed on by barriers, so nothing is ordered here.
int32_t Workers::take(int64_t owner, int32_t share, int32_t piece) {
    std::atomic<uint64_t> & count = taken_[static_cast<std::size_t>(owner)].count;
    const uint64_t phase = uint64_t{phase_.load(std::memory_order_relaxed)} << 32;
    uint64_t seen = count.load(std::memory_order_relaxed);
    for (;;) {
        const auto taken = seen >> 32 == phase >> 32 ? static_cast<int32_t>(seen & UINT32_MAX) : 0;
        const auto after = static_cast<uint32_t>(taken + step_of(share - taken, piece));
        if (taken >= share || count.compare_exchange_weak(seen, phase | after, std::memory_order_relaxed)) {
            return taken;
        }
    }
}

void Workers::barrier() {
    const int32_t all = size();
    if (all == 1) {
        return;
    }
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == all - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    spin_until(spins_, [&] { return phase_.load(std::memory_order_acquire) != phase; });
}

void Workers::loop(int32_t thread) {
    uint32_t seen = 0;
    for (;;) {
        const auto asleep_at = std::chrono::steady_clock::now() + kAwake;
        while (job_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < asleep_at) {
            relax();
        }
        job_.wait(seen, std::memory_order_acquire);
        ++seen;
        if (stopping_) {
            return;
        }
        call_(data_, thread);
        running_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

} // namespace adaspark::graph
