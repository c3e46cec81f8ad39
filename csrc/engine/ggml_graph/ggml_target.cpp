#include "engine/ggml_graph/ggml_target.h"

#include "engine/backend.h"
#include "engine/gguf_file.h"
#include "engine/load_error.h"
#include "engine/target.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <llama.h>

namespace adaspark::ggml_graph {

namespace {

bool wants_gpu(const TargetOptions & options) { return options.n_gpu_layers != 0 && llama_supports_gpu_offload(); }

ggml_type cache_type(const TargetOptions & options) {
    return options.cache_type_k == "f32" ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

int32_t nodes(const graph::ModelSpec & spec) {
    return kNodesAround + spec.n_layer * (kNodesOfBlock + 2 * spec.n_expert_used);
}

// The whole forward of `rows` rows: logits of every row, or of row `last` alone.
struct Outputs {
    ggml_tensor *logits, *picks;
};

Outputs describe_forward(const Program & p, const graph::ModelSpec & spec, const Model & model, const Layers & layers,
                         ggml_tensor * tokens, ggml_tensor * last, std::span<ggml_tensor * const> tap_of_layer) {
    ggml_context * ctx = p.ctx();
    ggml_tensor * x = ggml_get_rows(ctx, model.embedding, tokens);
    for (int32_t layer = 0; layer < spec.n_layer; ++layer) {
        if (ggml_tensor * to = tap_of_layer[static_cast<std::size_t>(layer)]; to != nullptr) {
            p.add(ggml_cpy(ctx, x, ggml_view_2d(ctx, to, to->ne[0], x->ne[1], to->nb[1], 0)));
        }
        x = layers.block(x, layer);
    }
    if (last != nullptr) {
        x = ggml_get_rows(ctx, x, last);
    }
    Outputs out = {};
    out.logits = ggml_mul_mat(ctx, model.output, layers.norm(x, model.output_norm));
    p.output(out.logits);
    out.picks = ggml_argmax(ctx, out.logits);
    p.output(out.picks);
    return out;
}

} // namespace

// What a device may lack depends on this file's formats and shapes: describe forwards, without data, and ask.
std::string forward_refusal(Device & device, const graph::ModelSpec & spec, ggml_type cache_type, bool flash) {
    const Model model(spec);
    const Cache cache(device, spec, 1, cache_type, "-c");
    const std::unique_ptr<ConvCache> conv = spec.n_conv > 0 ? std::make_unique<ConvCache>(device, spec, 1, 1) : nullptr;
    const std::vector<ggml_tensor *> taps(static_cast<std::size_t>(spec.n_layer), nullptr);
    std::string why;
    for (const int32_t rows : {1, 64}) {
        const Program p(device, nodes(spec));
        const RowInputs in(p, rows, cache.window(1));
        const std::unique_ptr<ConvInputs> conv_in =
            conv ? std::make_unique<ConvInputs>(p, rows, spec.conv_taps) : nullptr;
        const Layers layers(p, spec, model, cache, in, flash, conv.get(), conv_in.get());
        describe_forward(p, spec, model, layers, p.input(GGML_TYPE_I32, rows), nullptr, taps);
        why = why.empty() ? p.refusal() : why;
    }
    return why;
}

std::string ggml_target_refusal(const GgufFile & file, const TargetOptions & options, graph::ModelSpec & spec) {
    const std::string & type = options.cache_type_k;
    if (type != options.cache_type_v || (type != "f16" && type != "f32")) {
        return "cache types " + type + " and " + options.cache_type_v + " (f16 or f32 for both)";
    }
    if (const std::string why = graph::read_spec(file, spec, graph::Executor::ggml); !why.empty()) {
        return why;
    }
    if (wants_gpu(options) && options.n_gpu_layers > 0 && options.n_gpu_layers < spec.n_layer) {
        return "a part of its layers is offloaded to a GPU (-ngl)";
    }
    const AbortGuard guard; // of shapes that ggml does not take
    try {
        Device device(choose_device(wants_gpu(options)), 1);
        const std::string & flash = options.flash_attention;
        std::string why = forward_refusal(device, spec, cache_type(options), flash != "off");
        if (!why.empty() && flash == "auto") {
            why = forward_refusal(device, spec, cache_type(options), false);
        }
        return why;
    } catch (const BackendError & error) {
        return error.what();
    }
}

GgmlTarget::GgmlTarget(const GgufFile & file, graph::ModelSpec spec, const TargetOptions & options,
                       const LoadProgress & progress)
    : spec_(std::move(spec)), description_(file.description()) {
    shape_.n_ctx = options.n_ctx > 0 ? options.n_ctx : spec_.n_ctx_train;
    shape_.n_batch = std::min(options.n_batch, shape_.n_ctx);
    shape_.n_embd = spec_.n_embd;
    shape_.n_layer = spec_.n_layer;
    shape_.n_threads = options.n_threads > 0 ? options.n_threads : physical_cores();
    shape_.max_rows = std::min(options.max_rows, shape_.n_ctx);
    shape_.max_chain = shape_.max_rows - 1;

    device_ = std::make_unique<Device>(choose_device(wants_gpu(options)), shape_.n_threads);
    const ggml_type type = ggml_graph::cache_type(options);
    flash_ = options.flash_attention == "on" ||
             (options.flash_attention == "auto" && forward_refusal(*device_, spec_, type, true).empty());
    // The cache first: whether it fits is known at once, reading weights takes a while.
    cache_ = std::make_unique<Cache>(*device_, spec_, shape_.n_ctx, type, "-c");
    if (spec_.n_conv > 0) {
        conv_ = std::make_unique<ConvCache>(*device_, spec_, shape_.n_ctx, std::max(shape_.n_batch, shape_.max_rows));
    }
    weights_ = std::make_unique<Model>(spec_);
    weights_->load(*device_, progress);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    params.n_gpu_layers = 0;
    model_ = model_load(spec_.path, params, {});
}

GgmlTarget::~GgmlTarget() {
    if (device_->abandoned()) { // threads may still read and write there: better a leak than a crash
        static_cast<void>(features_data_.release());
        static_cast<void>(weights_.release());
        static_cast<void>(cache_.release());
        static_cast<void>(conv_.release());
        static_cast<void>(device_.release());
        return;
    }
    llama_model_free(model_);
}

void GgmlTarget::build(Forward & f, const Key & key) const {
    const SetupTime time(*device_);
    f.program = std::make_unique<Program>(*device_, nodes(spec_));
    const Program & p = *f.program;
    f.rows = std::make_unique<RowInputs>(p, key.rows, key.window);
    f.conv = conv_ ? std::make_unique<ConvInputs>(p, key.rows, spec_.conv_taps) : nullptr;
    f.tokens = p.input(GGML_TYPE_I32, key.rows);
    f.last = key.prefill ? p.input(GGML_TYPE_I32, 1) : nullptr;
    std::vector<ggml_tensor *> taps(static_cast<std::size_t>(spec_.n_layer), nullptr);
    for (const int32_t layer : taps_) {
        taps[static_cast<std::size_t>(layer)] = features(p.ctx(), layer);
    }
    const Layers layers(p, spec_, *weights_, *cache_, *f.rows, flash_, conv_.get(), f.conv.get());
    const Outputs out = describe_forward(p, spec_, *weights_, layers, f.tokens, f.last, taps);
    f.logits = out.logits;
    f.picks = out.picks;
    f.program->finish(spec_.path);
}

GgmlTarget::Forward & GgmlTarget::forward(int32_t rows, int32_t end, bool prefill) {
    const Key key = {padded_rows(rows), cache_->window(end), prefill};
    if (const auto known = forwards_.find(key); known != forwards_.end()) {
        return known->second;
    }
    constexpr std::size_t kForwards = 64; // kept; each has memory for its intermediate rows
    if (forwards_.size() >= kForwards) {
        forget_oldest();
    }
    Forward & f = forwards_[key];
    build(f, key);
    return f;
}

void GgmlTarget::forget_oldest() {
    last_ = nullptr;
    forwards_.erase(std::min_element(forwards_.begin(), forwards_.end(), [](const auto & a, const auto & b) {
        return a.second.program->last_run_us() < b.second.program->last_run_us();
    }));
}

void GgmlTarget::run(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past, bool prefill) {
    const auto n = static_cast<int32_t>(tokens.size());
    Forward & f = forward(n, n_past + n, prefill);
    const auto width = static_cast<std::size_t>(f.rows->width());
    token_.assign(width, tokens[0]);
    std::copy(tokens.begin(), tokens.end(), token_.begin());
    position_.resize(tokens.size());
    for (std::size_t r = 0; r < tokens.size(); ++r) {
        position_[r] = parents[r] < 0 ? n_past : position_[static_cast<std::size_t>(parents[r])] + 1;
    }
    guarded([&] {
        const Rows rows = {n_past, position_, parents};
        f.rows->set(*f.program, rows, cache_->spare());
        if (conv_) {
            f.conv->set(*f.program, rows, *conv_);
        }
        f.program->write(f.tokens, token_.data(), width * sizeof(int32_t));
        if (prefill) {
            last_row_.assign(1, n - 1);
            f.program->write(f.last, last_row_.data(), sizeof(int32_t));
            f.program->run();
        } else {
            f.program->run_settled();
        }
        picks_.resize(prefill ? 1 : tokens.size());
        f.program->read(f.picks, picks_.data(), 0, picks_.size() * sizeof(int32_t));
        device_->wait();
    });
    last_ = &f;
    logits_.assign(picks_.size(), {});
    tapped_.clear();
    used_ = n_past + n;
}

void GgmlTarget::prefill(std::span<const int32_t> tokens, int32_t n_past, bool /*last*/) {
    parent_.resize(tokens.size());
    std::iota(parent_.begin(), parent_.end(), -1);
    run(tokens, parent_, n_past, true);
    if (conv_) {
        std::vector<int32_t> all(tokens.size());
        std::iota(all.begin(), all.end(), 0);
        guarded([&] { conv_->commit(all, n_past); });
    }
}

void GgmlTarget::verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) {
    run(tokens, parents, n_past, false);
}

std::span<float> GgmlTarget::row_logits(int32_t row) {
    std::vector<float> & out = logits_.at(static_cast<std::size_t>(row));
    if (out.empty()) {
        out.resize(static_cast<std::size_t>(spec_.n_vocab));
        const std::size_t bytes = out.size() * sizeof(float);
        last_->program->read(last_->logits, out.data(), static_cast<std::size_t>(row) * bytes, bytes);
        device_->wait();
    }
    return out;
}

void GgmlTarget::commit(std::span<const int32_t> path, int32_t n_past) {
    std::vector<int32_t> slots(path.size());
    std::transform(path.begin(), path.end(), slots.begin(), [&](int32_t row) { return n_past + row; });
    guarded([&] {
        cache_->move(slots, n_past);
        if (conv_) {
            conv_->commit(path, n_past);
        }
    });
    used_ = n_past + static_cast<int32_t>(path.size());
}

void GgmlTarget::rollback(int32_t n_past) {
    if (conv_) {
        guarded([&] { conv_->rollback(n_past); });
    }
    used_ = n_past;
}

double GgmlTarget::replay_us(int32_t n) {
    if (last_ == nullptr || n < 1) {
        return NAN;
    }
    const double start = now_us();
    guarded([&] {
        for (int32_t i = 0; i < n; ++i) { // the same rows into the same slots
            last_->program->run();
        }
        device_->wait();
    });
    return (now_us() - start) / n;
}

// ---- tapped layers -------------------------------------------------------------------------------------------------

void GgmlTarget::tap(int32_t layer) {
    if (std::find(taps_.begin(), taps_.end(), layer) != taps_.end()) {
        return;
    }
    taps_.push_back(layer);
    // Graphs write into the features and so belong to them.
    forwards_.clear();
    last_ = nullptr;
    features_data_.reset();
    features_ctx_ = new_context(1);
    features_ =
        ggml_new_tensor_3d(features_ctx_.get(), GGML_TYPE_F32, spec_.n_embd,
                           padded_rows(std::max(shape_.n_batch, shape_.max_rows)), static_cast<int64_t>(taps_.size()));
    features_data_ =
        device_->allocate(features_ctx_.get(), spec_.path + ": a drafter's features", "Ask for a smaller batch (-b)");
}

ggml_tensor * GgmlTarget::features(ggml_context * ctx, int32_t layer) const {
    const auto at = std::find(taps_.begin(), taps_.end(), layer) - taps_.begin();
    return ggml_view_2d(ctx, features_, features_->ne[0], features_->ne[1], features_->nb[1],
                        static_cast<std::size_t>(at) * features_->nb[2]);
}

const float * GgmlTarget::tapped(int32_t layer) const {
    const auto at = static_cast<std::size_t>(std::find(taps_.begin(), taps_.end(), layer) - taps_.begin());
    if (at == taps_.size()) {
        return nullptr;
    }
    tapped_.resize(taps_.size());
    std::vector<float> & out = tapped_[at];
    if (out.empty()) {
        out.resize(static_cast<std::size_t>(features_->ne[0] * features_->ne[1]));
        ggml_backend_tensor_get(features_, out.data(), at * features_->nb[2], out.size() * sizeof(float));
    }
    return out.data();
}

} // namespace adaspark::ggml_graph
