#include "engine/ggml_graph/device.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/threads.h"

#include <ggml-alloc.h>

namespace adaspark::ggml_graph {

Context new_context(std::size_t tensors) {
    return Context(ggml_init({tensors * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
}

ggml_backend_dev_t choose_device(bool gpu) {
    ggml_backend_dev_t device = gpu ? ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) : nullptr;
    if (gpu && device == nullptr) {
        device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU);
    }
    return device != nullptr ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

Device::Device(ggml_backend_dev_t device, int32_t n_threads) : device_(device) {
    if (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        threads_ = std::make_unique<ThreadPool>(n_threads);
    }
    backend_ = ggml_backend_dev_init(device, nullptr);
    if (backend_ == nullptr) {
        throw BackendError("the device " + name() + " cannot be opened");
    }
    if (threads_) {
        threads_->attach(backend_, n_threads);
    }
}

Device::~Device() {
    if (abandoned_) {
        threads_.release();
        return;
    }
    ggml_backend_free(backend_);
}

std::size_t Device::memory_free() const {
    if (threads_) {
        return memory_available();
    }
    std::size_t free = 0;
    std::size_t total = 0;
    ggml_backend_dev_memory(device_, &free, &total);
    return free;
}

Buffer Device::allocate(ggml_context * ctx, const std::string & what, const std::string & remedy) const {
    const std::size_t needed =
        ggml_backend_alloc_ctx_tensors_from_buft_size(ctx, ggml_backend_get_default_buffer_type(backend_));
    const std::size_t free = memory_free();
    Buffer out;
    if (free == 0 || needed < free) {
        out.reset(ggml_backend_alloc_ctx_tensors(ctx, backend_));
    }
    if (!out) {
        throw OutOfMemoryError(what + " need " + mebibytes(static_cast<double>(needed)) + " on " + name() + ", " +
                               mebibytes(static_cast<double>(free)) + " are free. " + remedy);
    }
    return out;
}

} // namespace adaspark::ggml_graph
