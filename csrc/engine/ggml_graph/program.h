// A ggml graph built once and run many times: its inputs lie in memory of their own, so that they keep what was put
// into them, and its tensors never move, so that a backend that records graphs (CUDA) replays the same one.
#pragma once

#include <string>

#include "engine/ggml_graph/device.h"

struct ggml_gallocr;

namespace adaspark::ggml_graph {

class Program {
  public:
    // `nodes`: operations and views, at most.
    Program(Device & device, int32_t nodes);
    ~Program();
    Program(const Program &) = delete;
    Program & operator=(const Program &) = delete;

    ggml_context * ctx() const { return ctx_.get(); }
    Device & device() const { return device_; }
    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1 = 1) const;
    void add(ggml_tensor * tensor) const;    // runs behind what was added before
    void output(ggml_tensor * tensor) const; // as add(), and its data stays until the next run

    // The first operation the device cannot run, in words; empty when it runs all.
    std::string refusal() const;
    // Memory for everything. Throws OutOfMemoryError naming `owner`.
    void finish(const std::string & owner);

    // Start it; Device::wait() ends it. An abort inside ggml throws BackendError and abandons the device.
    void run();
    // run() of a program that may as well run thrice. Where the device records graphs, the runs that record come first
    // and count as set-up: a time that is measured (and learned from) is that of a replay.
    void run_settled();
    double last_run_us() const { return last_run_us_; } // by now_us(); 0 = never
    // Copies to and from tensors, in the order of the runs; `data` of a read is there after Device::wait().
    void write(ggml_tensor * tensor, const void * data, std::size_t bytes) const;
    void read(const ggml_tensor * tensor, void * data, std::size_t offset, std::size_t bytes) const;

  private:
    struct FreeAllocator {
        void operator()(ggml_gallocr * p) const;
    };
    Device & device_;
    Context inputs_;
    Context ctx_;
    Buffer input_data_;
    std::unique_ptr<ggml_gallocr, FreeAllocator> allocator_;
    ggml_cgraph * graph_ = nullptr;
    double last_run_us_ = 0.0;
};

// Gives a graph that will not change any more a number of its own: CUDA then knows it without comparing every node
// with what it recorded, which takes longer than launching it.
void number_graph(ggml_cgraph * graph);

} // namespace adaspark::ggml_graph
