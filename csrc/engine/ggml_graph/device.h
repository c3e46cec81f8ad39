// The ggml backend a model runs on, and what belongs to it: contexts, buffers, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/clock.h"
#include "engine/target_backend.h"

#include <ggml-backend.h>
#include <ggml.h>

namespace adaspark {
class ThreadPool;
}

namespace adaspark::ggml_graph {

struct FreeContext {
    void operator()(ggml_context * ctx) const { ggml_free(ctx); }
};
struct FreeBuffer {
    void operator()(ggml_backend_buffer * buffer) const { ggml_backend_buffer_free(buffer); }
};
using Context = std::unique_ptr<ggml_context, FreeContext>;
using Buffer = std::unique_ptr<ggml_backend_buffer, FreeBuffer>;

// Room for the descriptions of `tensors` tensors, without data.
Context new_context(std::size_t tensors);

// The first GPU, or the CPU when there is none or `gpu` is false.
ggml_backend_dev_t choose_device(bool gpu);

// Adds the time it lives to a sum.
class TimeInto {
  public:
    explicit TimeInto(double & sum) : sum_(sum), start_(now_us()) {}
    ~TimeInto() { sum_ += now_us() - start_; }
    TimeInto(const TimeInto &) = delete;
    TimeInto & operator=(const TimeInto &) = delete;

  private:
    double & sum_;
    double start_;
};

class Device {
  public:
    Device(ggml_backend_dev_t device, int32_t n_threads);
    ~Device();
    Device(const Device &) = delete;
    Device & operator=(const Device &) = delete;

    ggml_backend_t backend() const { return backend_; }
    std::string name() const { return ggml_backend_dev_name(device_); } // "CPU", "CUDA0", ...
    bool runs(const ggml_tensor * op) const { return ggml_backend_dev_supports_op(device_, op); }
    std::size_t memory_free() const; // bytes; 0 when the device does not tell

    // Memory for all tensors of `ctx`. Throws OutOfMemoryError: "<what> need ..., ... are free. <remedy>".
    Buffer allocate(ggml_context * ctx, const std::string & what, const std::string & remedy) const;

    // It records graphs on their first runs (CUDA), which then take longer.
    bool records() const { return !threads_; }
    // Microseconds spent so far on building graphs and on runs that only record them.
    double setup_us() const { return setup_us_; }
    double & setup_sum() { return setup_us_; }

    // Wait for what was asked for so far.
    void wait() {
        const TimeInto time(spent_.wait_us);
        ggml_backend_synchronize(backend_);
    }
    // Time inside ggml's calls so far, by kind; what else a round takes is host work of our own.
    DeviceTimes & spent() { return spent_; }

    // Threads of a graph that was aborted may still be inside it: never stop or free them.
    void abandon() { abandoned_ = true; }
    bool abandoned() const { return abandoned_; }

  private:
    ggml_backend_dev_t device_;
    std::unique_ptr<ThreadPool> threads_; // CPU only
    ggml_backend_t backend_ = nullptr;
    double setup_us_ = 0.0;
    DeviceTimes spent_;
    bool abandoned_ = false;
};

// Counts the time it lives as set-up.
class SetupTime : TimeInto {
  public:
    explicit SetupTime(Device & device) : TimeInto(device.setup_sum()) {}
};

} // namespace adaspark::ggml_graph
