#include "engine/threads.h"

#include "engine/error.h"

#include <algorithm>
#include <string>

#include <ggml-cpu.h>
#include <llama.h>

namespace adaspark {

ThreadPool::ThreadPool(int32_t n_threads) : n_threads_(n_threads) {
    ggml_threadpool_params params = ggml_threadpool_params_default(n_threads);
    pool_ = ggml_threadpool_new(&params);
    if (pool_ == nullptr) {
        throw BackendError("cannot start " + std::to_string(n_threads) + " threads. Ask for fewer (-t)");
    }
    constexpr std::size_t kNodes = 1;
    context_ =
        ggml_init({ggml_tensor_overhead() + ggml_graph_overhead_custom(kNodes, false), nullptr, /*no_alloc=*/true});
    graph_ = ggml_new_graph_custom(context_, kNodes, false);
    const auto operation = [](ggml_tensor *, int thread, int threads, void * pool) {
        const auto & self = *static_cast<ThreadPool *>(pool);
        self.call_(self.data_, thread, threads);
    };
    ggml_build_forward_expand(
        graph_, ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, operation, GGML_N_TASKS_MAX, this));
}

ThreadPool::~ThreadPool() {
    ggml_threadpool_free(pool_);
    ggml_free(context_);
}

void ThreadPool::run(int32_t n_threads, Call call, void * data) {
    call_ = call;
    data_ = data;
    ggml_cplan plan = ggml_graph_plan(graph_, std::min(n_threads, n_threads_), pool_);
    ggml_graph_compute(graph_, &plan);
}

void ThreadPool::attach(llama_context * ctx) { llama_attach_threadpool(ctx, pool_, pool_); }

void ThreadPool::attach(ggml_backend * backend, int32_t n_threads) {
    ggml_backend_cpu_set_n_threads(backend, n_threads);
    ggml_backend_cpu_set_threadpool(backend, pool_);
}

OneThread::OneThread(llama_context * ctx)
    : ctx_(ctx), n_threads_(llama_n_threads(ctx)), n_threads_batch_(llama_n_threads_batch(ctx)) {
    llama_set_n_threads(ctx_, 1, 1);
}

OneThread::~OneThread() { llama_set_n_threads(ctx_, n_threads_, n_threads_batch_); }

} // namespace adaspark
