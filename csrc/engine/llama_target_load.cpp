// Opening a target on llama.cpp.
#include "engine/llama_target.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/load_error.h"
#include "engine/target.h"

#include <algorithm>

#include <llama.h>

namespace adaspark {

namespace {

ggml_type cache_type(const std::string & name, const char * flag) {
    static constexpr struct {
        const char * name;
        ggml_type type;
    } kTypes[] = {{"f32", GGML_TYPE_F32},   {"f16", GGML_TYPE_F16},   {"bf16", GGML_TYPE_BF16},
                  {"q8_0", GGML_TYPE_Q8_0}, {"q5_1", GGML_TYPE_Q5_1}, {"q5_0", GGML_TYPE_Q5_0},
                  {"q4_1", GGML_TYPE_Q4_1}, {"q4_0", GGML_TYPE_Q4_0}, {"iq4_nl", GGML_TYPE_IQ4_NL}};
    for (const auto & t : kTypes) {
        if (name == t.name) {
            return t.type;
        }
    }
    throw std::invalid_argument(std::string(flag) + " '" + name +
                                "' is not a cache type: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl");
}

llama_flash_attn_type flash_attention(const std::string & name) {
    if (name == "auto") {
        return LLAMA_FLASH_ATTN_TYPE_AUTO;
    }
    if (name == "on") {
        return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    if (name == "off") {
        return LLAMA_FLASH_ATTN_TYPE_DISABLED;
    }
    throw std::invalid_argument("flash_attention is 'auto', 'on' or 'off', not '" + name + "'");
}

} // namespace

LlamaTarget::LlamaTarget(const GgufFile & file, const TargetOptions & options, const LoadProgress & progress)
    : path_(file.path()), architecture_(file.architecture()), offloaded_(offloads(options.n_gpu_layers)),
      f32_cache_(options.cache_type_k == "f32") {
    try {
        load(options, progress);
        open_context(options);
        check_forward();
    } catch (...) {
        if (!broken_) {
            llama_free(ctx_);
            llama_model_free(model_);
        }
        throw;
    }
}

LlamaTarget::~LlamaTarget() {
    if (broken_) {
        threads_.release(); // its threads may never leave the graph they are in: better a leak than a hang
        return;
    }
    if (batch_) {
        llama_batch_free(*batch_);
    }
    llama_free(ctx_);
    llama_model_free(model_);
}

void LlamaTarget::load(const TargetOptions & options, const LoadProgress & progress) {
    shape_.n_threads = options.n_threads > 0 ? options.n_threads : physical_cores();
    const int32_t n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : shape_.n_threads;
    threads_ = std::make_unique<ThreadPool>(std::max(shape_.n_threads, n_threads_batch));

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options.n_gpu_layers;
    params.load_mode = options.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    model_ = model_load(path_, params, progress);
    n_vocab_ = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
    shape_.n_embd = llama_model_n_embd(model_);
    shape_.n_layer = llama_model_n_layer(model_);
    if (!llama_model_has_decoder(model_) || llama_model_has_encoder(model_) || llama_model_is_diffusion(model_)) {
        throw ModelError(path_ + ": architecture '" + architecture_ +
                         "' is not a decoder-only language model that writes token after token");
    }
}

void LlamaTarget::open_context(const TargetOptions & options) {
    const bool recurrent = llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_);
    llama_context_params params = llama_context_default_params();
    shape_.n_ctx = options.n_ctx > 0 ? options.n_ctx : llama_model_n_ctx_train(model_);
    shape_.n_batch = std::min(options.n_batch, shape_.n_ctx);
    shape_.max_rows = std::min(options.max_rows, shape_.n_ctx);
    shape_.tree = !recurrent;
    params.n_ctx = static_cast<uint32_t>(shape_.n_ctx);
    params.n_batch = static_cast<uint32_t>(std::max(shape_.n_batch, shape_.max_rows));
    params.n_ubatch = params.n_batch; // one verify is one ubatch
    // Rows whose logits come back: all of a verify, one of a prefill. Keeps the compute buffers small.
    params.n_outputs_max = static_cast<uint32_t>(shape_.max_rows);
    params.n_seq_max = recurrent ? 1 : static_cast<uint32_t>(shape_.max_rows);
    params.kv_unified = true; // a tree's leaves share the committed cells
    params.swa_full = true;   // rows that are dropped must not have pushed windowed cells out
    params.n_threads = shape_.n_threads;
    params.n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : shape_.n_threads;
    params.type_k = cache_type(options.cache_type_k, "cache_type_k");
    params.type_v = cache_type(options.cache_type_v, "cache_type_v");
    params.flash_attn_type = flash_attention(options.flash_attention);
    // Snapshots a recurrent model keeps so that a chain can be taken back, one for each row.
    constexpr int32_t kRecurrentChain = 8;
    params.n_rs_seq = recurrent ? static_cast<uint32_t>(std::min(kRecurrentChain, shape_.max_rows - 1)) : 0;
    params.no_perf = true;
    ctx_ = context_open(path_, model_, params, "-c");
    threads_->attach(ctx_);
    shape_.max_chain = recurrent ? static_cast<int32_t>(llama_n_rs_seq(ctx_)) : shape_.max_rows - 1;
    if (static_cast<int32_t>(llama_n_ctx(ctx_)) < shape_.n_ctx) {
        shape_.n_ctx = static_cast<int32_t>(llama_n_ctx(ctx_));
    }
    batch_ = std::make_unique<llama_batch>(
        llama_batch_init(static_cast<int32_t>(params.n_batch), 0, static_cast<int32_t>(params.n_seq_max)));
    labelled_.assign(static_cast<std::size_t>(params.n_seq_max), 0);
}

void LlamaTarget::check_forward() {
    try {
        try_forward();
    } catch (const BackendError & error) {
        throw ModelError(path_ + ": llama.cpp cannot run this model (" + error.what() +
                         "). The file is damaged, or of a kind this llama.cpp does not run");
    }
}

void llama_options_check(const TargetOptions & options) {
    cache_type(options.cache_type_k, "cache_type_k");
    cache_type(options.cache_type_v, "cache_type_v");
    flash_attention(options.flash_attention);
}

std::unique_ptr<TargetBackend> llama_target(const GgufFile & file, const TargetOptions & options,
                                            const LoadProgress & progress) {
    return std::make_unique<LlamaTarget>(file, options, progress);
}

} // namespace adaspark
