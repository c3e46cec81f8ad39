// ggml's CPU thread pool, kept for the life of a target: without one, ggml starts its threads anew for every graph.
#pragma once

#include <cstdint>

struct ggml_backend;
struct ggml_threadpool;
struct llama_context;

namespace adaspark {

class ThreadPool {
  public:
    explicit ThreadPool(int32_t n_threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool & operator=(const ThreadPool &) = delete;

    // Let `ctx` decode with this pool. The pool must outlive the context.
    void attach(llama_context * ctx);
    // The same for a CPU backend of ggml without llama.cpp.
    void attach(ggml_backend * backend, int32_t n_threads);
    // Let its threads sleep until the next graph, which wakes them by itself: left alone they poll for some 100 ms
    // after each, on the processors that other threads need.
    void pause();

  private:
    ggml_threadpool * pool_ = nullptr;
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
