// Threads that run one function together and meet at barriers: a forward of a small model is some hundred barriers in a
// few milliseconds, so waiting is spinning. Between two forwards they spin for a moment only, then sleep. Beside a
// target on llama.cpp they are its threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "engine/team.h"
#include "kernels/kernels.h"

namespace adaspark::graph {

class Workers {
  public:
    // The calling thread of run() is one of the `n_threads`. Throws BackendError when threads cannot be started.
    explicit Workers(int32_t n_threads);
    // The team's threads, at most as many as it has. It must outlive the workers.
    Workers(Team & team, int32_t n_threads);
    ~Workers();
    Workers(const Workers &) = delete;
    Workers & operator=(const Workers &) = delete;

    // Of the running job, else the most that a job may have.
    int32_t size() const { return size_.load(std::memory_order_relaxed); }

    // Calls job(thread) on every thread, inside a session of the kernels, thread = 0 .. size() - 1, and returns when
    // all are done. The job must not throw.
    template <typename F> void run(F && job) {
        const auto call = [](void * data, int32_t thread) {
            const kernels::Session session(kernels::kernels_best());
            (*static_cast<std::remove_reference_t<F> *>(data))(thread);
        };
        if (team_ != nullptr) {
            run_on_team(call, &job);
            return;
        }
        start(call, &job);
        call(&job, 0);
        finish();
    }

    // All threads of the running job come here before any goes on.
    void barrier();

    // Calls f(begin, end) for pieces of [0, n), half of what is left at a time and no less than `piece`: a thread takes
    // its even share front to back, then what others have not begun of theirs, so that a thread whose processor is
    // slower or busy does not hold up the rest. Every thread of the job calls it, once between two barriers.
    template <typename F> void spread(int32_t n, int32_t thread, int32_t piece, F && f) {
        const int32_t threads = size();
        if (threads == 1) {
            f(0, n); // a barrier of one counts nothing
            return;
        }
        for (int32_t i = 0; i < threads; ++i) {
            const int64_t owner = (thread + i) % threads;
            const auto begin = static_cast<int32_t>(n * owner / threads);
            const auto end = static_cast<int32_t>(n * (owner + 1) / threads);
            for (int32_t at; (at = begin + take(owner, end - begin, piece)) < end;) {
                f(at, std::min(at + step_of(end - at, piece), end));
            }
        }
    }

  private:
    using Call = void (*)(void *, int32_t);
    // A call of a kernel has a beginning and an end that bring nothing, so pieces are large first and small at the end.
    static int32_t step_of(int32_t rest, int32_t piece) { return std::max(piece, rest / 2); }
    void run_on_team(Call call, void * data);
    void start(Call call, void * data);
    int32_t take(int64_t owner, int32_t share, int32_t piece);
    void finish();
    void stop();
    void loop(int32_t thread);

    int32_t spins_; // turns of waiting before others may have the processor
    int32_t most_;  // threads of a job
    Team * team_ = nullptr;
    std::vector<std::thread> threads_; // without a team
    std::atomic<int32_t> size_;
    Call call_ = nullptr;
    void * data_ = nullptr;
    bool stopping_ = false;
    alignas(64) std::atomic<uint32_t> job_{0};    // number of the job to run
    alignas(64) std::atomic<int32_t> running_{0}; // threads still inside it
    alignas(64) std::atomic<int32_t> arrived_{0}; // threads at the barrier
    alignas(64) std::atomic<uint32_t> phase_{0};  // barriers passed and jobs begun
    // What has been taken of a thread's share, below the phase that it was taken in: one of another phase is none.
    struct alignas(64) Taken {
        std::atomic<uint64_t> count{0};
    };
    std::unique_ptr<Taken[]> taken_;
};

} // namespace adaspark::graph
