#include "engine/ggml_graph/program.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <ggml-alloc.h>

namespace adaspark::ggml_graph {

namespace {

constexpr std::size_t kInputs = 16; // of one program, at most
constexpr int32_t kRecordingRuns = 2;
constexpr double kForgottenUs = 8e6; // ggml drops a recorded graph that was not used for 10 s

} // namespace

void Program::FreeAllocator::operator()(ggml_gallocr * p) const { ggml_gallocr_free(p); }

Program::Program(Device & device, int32_t nodes) : device_(device), inputs_(new_context(kInputs)) {
    const auto n = static_cast<std::size_t>(nodes);
    ctx_.reset(
        ggml_init({n * ggml_tensor_overhead() + ggml_graph_overhead_custom(n, false), nullptr, /*no_alloc=*/true}));
    graph_ = ggml_new_graph_custom(ctx_.get(), n, /*grads=*/false);
}

Program::~Program() {
    if (device_.abandoned()) {
        static_cast<void>(inputs_.release());
        static_cast<void>(ctx_.release());
        static_cast<void>(input_data_.release());
        static_cast<void>(allocator_.release());
    }
}

ggml_tensor * Program::input(ggml_type type, int64_t ne0, int64_t ne1) const {
    ggml_tensor * t = ggml_new_tensor_2d(inputs_.get(), type, ne0, ne1);
    ggml_set_input(t);
    return t;
}

void Program::add(ggml_tensor * tensor) const { ggml_build_forward_expand(graph_, tensor); }

void Program::output(ggml_tensor * tensor) const {
    ggml_set_output(tensor);
    add(tensor);
}

std::string Program::refusal() const {
    for (int i = 0; i < ggml_graph_n_nodes(graph_); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph_, i);
        if (!device_.runs(node)) {
            const ggml_tensor * source = node->src[0];
            return device_.name() + " cannot run " + ggml_op_desc(node) +
                   (source != nullptr ? std::string(" on ") + ggml_type_name(source->type) : std::string());
        }
    }
    return "";
}

void Program::finish(const std::string & owner) {
    const std::string remedy = "Ask for a shorter context (-c)";
    input_data_ = device_.allocate(inputs_.get(), owner + ": a forward's inputs", remedy);
    ggml_backend_buffer_clear(input_data_.get(), 0);
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(device_.backend())));
    if (!ggml_gallocr_alloc_graph(allocator_.get(), graph_)) {
        throw OutOfMemoryError(owner + ": no memory on " + device_.name() + " for a forward's intermediate rows. " +
                               remedy);
    }
    number_graph(graph_);
}

void Program::run_settled() {
    if (device_.records() && (last_run_us_ == 0.0 || now_us() - last_run_us_ > kForgottenUs)) {
        const SetupTime time(device_);
        for (int32_t i = 0; i < kRecordingRuns; ++i) {
            run();
            device_.wait();
        }
    }
    run();
}

void Program::run() {
    last_run_us_ = now_us();
    const TimeInto time(device_.spent().submit_us);
    const AbortGuard guard;
    ggml_status status = GGML_STATUS_SUCCESS;
    try {
        status = ggml_backend_graph_compute_async(device_.backend(), graph_);
    } catch (const BackendError &) {
        device_.abandon();
        throw;
    }
    if (status != GGML_STATUS_SUCCESS) {
        device_.abandon();
        throw BackendError(device_.name() + " could not run a forward (" + ggml_status_to_string(status) + ": " +
                           AbortGuard::errors() + ")");
    }
}

void Program::write(ggml_tensor * tensor, const void * data, std::size_t bytes) const {
    const TimeInto time(device_.spent().copy_us);
    ggml_backend_tensor_set_async(device_.backend(), tensor, data, 0, bytes);
}

void Program::read(const ggml_tensor * tensor, void * data, std::size_t offset, std::size_t bytes) const {
    const TimeInto time(device_.spent().copy_us);
    ggml_backend_tensor_get_async(device_.backend(), tensor, data, offset, bytes);
}

} // namespace adaspark::ggml_graph
