#include "engine/own_target.h"

#include "engine/backend.h"
#include "engine/gguf_file.h"
#include "engine/load_error.h"
#include "engine/target.h"

#include <algorithm>
#include <numeric>

#include <llama.h>

namespace adaspark {

namespace {

kernels::Cache cache_named(const std::string & name) {
    return name == "f32" ? kernels::Cache::f32 : name == "f16" ? kernels::Cache::f16 : kernels::Cache::q8_0;
}

} // namespace

OwnTarget::OwnTarget(const GgufFile & file, graph::ModelSpec spec, const TargetOptions & options,
                     const LoadProgress & progress)
    : spec_(std::move(spec)), description_(file.description()) {
    shape_.n_ctx = options.n_ctx > 0 ? options.n_ctx : spec_.n_ctx_train;
    shape_.n_batch = std::min({options.n_batch, graph::kMaxRows, shape_.n_ctx});
    shape_.n_embd = spec_.n_embd;
    shape_.n_layer = spec_.n_layer;
    shape_.n_threads = options.n_threads > 0 ? options.n_threads : physical_cores();
    shape_.max_rows = std::min(options.max_rows, shape_.n_ctx);
    shape_.max_chain = shape_.max_rows - 1;

    // The cache first: whether it fits is known at once, reading weights takes a while.
    cache_ = std::make_unique<graph::KvCache>(spec_.n_attention, spec_.n_head_kv, spec_.head_dim, shape_.n_ctx,
                                              cache_named(options.cache_type_k), spec_.path, "-c");
    if (spec_.n_conv > 0) {
        windows_ =
            std::make_unique<graph::ConvWindows>(spec_.n_conv, spec_.conv_taps, spec_.n_embd, shape_.n_ctx, spec_.path);
    }
    workers_ = std::make_unique<graph::Workers>(shape_.n_threads);
    weights_ = std::make_unique<graph::Weights>(spec_, progress);
    forward_ = std::make_unique<graph::Forward>(spec_, *weights_, *workers_, *cache_, windows_.get());
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.n_gpu_layers = 0;
    model_ = model_load(spec_.path, params, {});
}

OwnTarget::~OwnTarget() { llama_model_free(model_); }

std::string OwnTarget::kernels() const { return std::string("own/") + kernels::kernels_best().name; }

void OwnTarget::prefill(std::span<const int32_t> tokens, int32_t n_past, bool last) {
    const auto n = static_cast<int32_t>(tokens.size());
    rows_.count = n;
    rows_.committed = n_past;
    for (int32_t r = 0; r < n; ++r) {
        rows_.position[r] = n_past + r;
        rows_.visible[r] = ~uint64_t{0} >> (63 - r);
    }
    forward_->embed(weights_->embedding, tokens);
    forward_->run(rows_, taps_);
    if (last) {
        forward_->head(weights_->output, n - 1, 1, false);
    }
    if (windows_) {
        int32_t all[graph::kMaxRows];
        std::iota(all, all + n, 0);
        windows_->commit({all, tokens.size()}, n_past);
    }
    used_ = n_past + n;
}

void OwnTarget::verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) {
    const auto n = static_cast<int32_t>(tokens.size());
    rows_.count = n;
    rows_.committed = n_past;
    for (int32_t r = 0; r < n; ++r) {
        const int32_t parent = parents[static_cast<std::size_t>(r)];
        rows_.position[r] = parent < 0 ? n_past : rows_.position[parent] + 1;
        rows_.visible[r] = (parent < 0 ? 0 : rows_.visible[parent]) | uint64_t{1} << r;
    }
    forward_->embed(weights_->embedding, tokens);
    forward_->run(rows_, taps_);
    forward_->head(weights_->output, 0, n, true);
    used_ = n_past + n;
}

void OwnTarget::commit(std::span<const int32_t> path, int32_t n_past) {
    int32_t slots[graph::kMaxRows];
    std::transform(path.begin(), path.end(), slots, [&](int32_t row) { return n_past + row; });
    cache_->compact(n_past, {slots, path.size()});
    if (windows_) {
        windows_->commit(path, n_past);
    }
    used_ = n_past + static_cast<int32_t>(path.size());
}

int32_t OwnTarget::rollback_point(int32_t n_past) const {
    return windows_ ? graph::ConvWindows::rollback_point(n_past) : n_past;
}

void OwnTarget::rollback(int32_t n_past) {
    if (windows_) {
        windows_->rollback(n_past);
    }
    used_ = n_past;
}

void OwnTarget::tap(int32_t layer) {
    if (std::find(taps_.begin(), taps_.end(), layer) == taps_.end()) {
        taps_.push_back(layer);
    }
}

const float * OwnTarget::tapped(int32_t layer) const {
    return std::find(taps_.begin(), taps_.end(), layer) == taps_.end() ? nullptr
                                                                       : forward_->tap(static_cast<std::size_t>(layer));
}

std::string own_target_refusal(const GgufFile & file, const TargetOptions & options, graph::ModelSpec & spec) {
    if (offloads(options.n_gpu_layers)) {
        return "its layers are offloaded to a GPU (-ngl)";
    }
    const std::string & type = options.cache_type_k;
    if (type != options.cache_type_v || (type != "f16" && type != "f32" && type != "q8_0")) {
        return "cache types " + type + " and " + options.cache_type_v + " (f16, f32 or q8_0 for both)";
    }
    const std::string why = graph::read_spec(file, spec);
    if (why.empty() && type == "q8_0" && spec.head_dim % kernels::kBlock != 0) {
        return "cache type q8_0 with heads of " + std::to_string(spec.head_dim) + " (a multiple of 32)";
    }
    return why;
}

std::unique_ptr<TargetBackend> own_target(const GgufFile & file, const graph::ModelSpec & spec,
                                          const TargetOptions & options, const LoadProgress & progress) {
    return std::make_unique<OwnTarget>(file, spec, options, progress);
}

} // namespace adaspark
