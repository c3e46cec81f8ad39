// Threads that share out pieces of their work: every piece is done once, whoever does it, in every phase of every job.
#include "check.h"
#include "engine/graph/workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

using adaspark::graph::Workers;

namespace {

constexpr int32_t kPhases = 20;

// Lends fresh threads, `granted` of them at most.
class Lender final : public adaspark::Team {
  public:
    Lender(int32_t size, int32_t granted) : size_(size), granted_(granted) {}
    int32_t size() const override { return size_; }
    void run(int32_t n_threads, Call call, void * data) override {
        const int32_t threads = std::min(n_threads, granted_);
        std::vector<std::thread> others;
        for (int32_t i = 1; i < threads; ++i) {
            others.emplace_back([=] { call(data, i, threads); });
        }
        call(data, 0, threads);
        for (std::thread & other : others) {
            other.join();
        }
    }

  private:
    int32_t size_;
    int32_t granted_;
};

void check_pieces(Workers & workers, int32_t threads) {
    for (const int32_t n : {1, 2, 7, 64, 301}) {
        for (const int32_t piece : {1, 3, 50}) {
            std::vector<std::atomic<int32_t>> done(static_cast<std::size_t>(n));
            std::atomic<int32_t> wrong{0};
            workers.run([&](int32_t thread) {
                for (int32_t phase = 0; phase < kPhases; ++phase) {
                    workers.spread(n, thread, piece, [&](int32_t begin, int32_t end) {
                        wrong += begin < 0 || begin >= end || end > n ? 1 : 0;
                        for (int32_t i = begin; i < end; ++i) {
                            done[static_cast<std::size_t>(i)] += 1;
                        }
                    });
                    workers.barrier();
                    for (int32_t i = thread; i < n; i += threads) {
                        wrong += done[static_cast<std::size_t>(i)] != phase + 1 ? 1 : 0;
                    }
                    workers.barrier();
                }
            });
            CHECK(wrong == 0);
        }
    }
}

TEST(every_piece_is_done_once) {
    for (const int32_t threads : {1, 2, 3}) {
        Workers workers(threads);
        check_pieces(workers, threads);
    }
}

TEST(on_threads_of_a_team) {
    for (const int32_t granted : {1, 2, 3}) {
        Lender team(3, granted);
        Workers workers(team, 8);
        CHECK(workers.size() == 3);
        std::atomic<int32_t> wrong{0};
        std::atomic<int32_t> calls{0};
        workers.run([&](int32_t thread) {
            ++calls;
            wrong += thread < 0 || thread >= granted || workers.size() != granted ? 1 : 0;
        });
        CHECK(calls == granted);
        CHECK(wrong == 0);
        CHECK(workers.size() == 3);
        check_pieces(workers, granted);
    }
}

TEST(others_take_over_from_a_thread_that_is_held_up) {
    Workers workers(2);
    std::atomic<int32_t> done{0};
    std::atomic<bool> waited_in_vain{false};
    workers.run([&](int32_t thread) {
        workers.spread(40, thread, 1, [&](int32_t begin, int32_t end) {
            for (int64_t turn = 0; begin == 0 && done < 40 - (end - begin); ++turn) { // held up in the first piece
                std::this_thread::yield();
                if (turn > 100'000'000) {
                    waited_in_vain = true;
                    break;
                }
            }
            done += end - begin;
        });
    });
    CHECK(done == 40);
    CHECK(!waited_in_vain);
}

TEST(pieces_are_half_of_what_is_left) {
    Workers workers(2);
    std::atomic<int32_t> wrong{0};
    workers.run([&](int32_t thread) {
        workers.spread(80, thread, 3, [&](int32_t begin, int32_t end) {
            const int32_t left = (begin < 40 ? 40 : 80) - begin;
            wrong += end - begin != std::min(std::max(3, left / 2), left) ? 1 : 0;
        });
    });
    CHECK(wrong == 0);
}

// The next job comes at any time: while the threads are awake, while they fall asleep (300 us), after it.
TEST(threads_that_fell_asleep_run_the_next_job) {
    for (const int32_t threads : {1, 2, 3}) {
        Workers workers(threads);
        std::atomic<int32_t> runs{0};
        int32_t expected = 0;
        for (int32_t job = 0; job < 300; ++job) {
            workers.run([&](int32_t) { ++runs; });
            expected += threads;
            CHECK(runs == expected);
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(job % 9 * 50);
            while (std::chrono::steady_clock::now() < until) {
            }
        }
    }
}

} // namespace
