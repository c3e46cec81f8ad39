// ggml's CPU thread pool, kept for the life of a target: without one, ggml starts its threads anew for every graph.
#pragma once

#include "engine/team.h"

#include <cstdint>

struct ggml_backend;
struct ggml_cgraph;
struct ggml_context;
struct ggml_threadpool;
struct llama_context;

namespace adaspark {

class ThreadPool final : public Team {
  public:
    explicit ThreadPool(int32_t n_threads);
    ~ThreadPool() override;
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool & operator=(const ThreadPool &) = delete;

    // Let `ctx` decode with this pool. The pool must outlive the context.
    void attach(llama_context * ctx);
    // The same for a CPU backend of ggml without llama.cpp.
    void attach(ggml_backend * backend, int32_t n_threads);

    int32_t size() const override { return n_threads_; }

    // With OpenMP it may be fewer threads. A second set of threads would have to be woken, on processors where these
    // poll for 0.1 to 0.9 s after each graph.
    void run(int32_t n_threads, Call call, void * data) override;

  private:
    int32_t n_threads_;
    ggml_threadpool * pool_ = nullptr;
    ggml_context * context_ = nullptr; // of a graph of one operation, which is the call
    ggml_cgraph * graph_ = nullptr;
    Call call_ = nullptr;
    void * data_ = nullptr;
};

// Lets a context decode on the calling thread alone while this lives: an abort on any other ends the process.
class OneThread {
  public:
    explicit OneThread(llama_context * ctx);
    ~OneThread();
    OneThread(const OneThread &) = delete;
    OneThread & operator=(const OneThread &) = delete;

  private:
    llama_context * ctx_;
    int32_t n_threads_;
    int32_t n_threads_batch_;
};

} // namespace adaspark
