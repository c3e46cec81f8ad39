// Threads that share out pieces of their work: every piece is done once, whoever does it, in every phase of every job.
#include "check.h"
#include "engine/graph/workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

using adaspark::graph::Workers;

namespace {

constexpr int32_t kPhases = 20;

TEST(every_piece_is_done_once) {
    for (const int32_t threads : {1, 2, 3}) {
        Workers workers(threads);
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

// The next job comes at any time: before the threads have seen that they may sleep, while they fall asleep, after it.
TEST(threads_that_were_let_rest_run_the_next_job) {
    for (const int32_t threads : {1, 2, 3}) {
        Workers workers(threads);
        std::atomic<int32_t> runs{0};
        int32_t expected = 0;
        for (int32_t job = 0; job < 300; ++job) {
            workers.run([&](int32_t) { ++runs; });
            expected += threads;
            CHECK(runs == expected);
            if (job % 3 != 0) {
                workers.rest();
            }
            const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(job % 7 * 20);
            while (std::chrono::steady_clock::now() < until) {
            }
        }
    }
}

} // namespace
