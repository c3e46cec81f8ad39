#include "engine/threads.h"

#include "engine/error.h"

#include <ggml-cpu.h>
#include <llama.h>

namespace adaspark {

ThreadPool::ThreadPool(int32_t n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    pool_ = ggml_threadpool_new(&params);
    if (pool_ == nullptr) {
        throw BackendError("cannot start " + std::to_string(n_threads) + " threads. Ask for fewer (-t)");
    }
}

ThreadPool::~ThreadPool() { ggml_threadpool_free(pool_); }

void ThreadPool::attach(llama_context * ctx) { llama_attach_threadpool(ctx, pool_, pool_); }

void ThreadPool::attach(ggml_backend * backend, int32_t n_threads) {
    ggml_backend_cpu_set_n_threads(backend, n_threads);
    ggml_backend_cpu_set_threadpool(backend, pool_);
}

void ThreadPool::pause() { ggml_threadpool_pause(pool_); }

OneThread::OneThread(llama_context * ctx)
    : ctx_(ctx), n_threads_(llama_n_threads(ctx)), n_threads_batch_(llama_n_threads_batch(ctx)) {
    llama_set_n_threads(ctx_, 1, 1);
}

OneThread::~OneThread() { llama_set_n_threads(ctx_, n_threads_, n_threads_batch_); }

} // namespace adaspark
