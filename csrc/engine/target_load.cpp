// Loading a target: what is checked before llama.cpp allocates, and how its failures become typed errors.
#include "engine/target.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/load_error.h"
#include "engine/threads.h"

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

// Architectures that hold a drafter, a projector or an encoder: they load, but cannot be decoded alone.
void check_role(const GgufFile & file) {
    const std::string & arch = file.architecture();
    if (arch == "dflash" || arch == "eagle3") {
        throw ModelError(file.path() + ": this file is a drafter (architecture '" + arch +
                         "'), not a target. Give it with -md, and the model it was trained for with -m");
    }
    if (arch == "clip") {
        throw ModelError(file.path() + ": this file is an image projector, not a language model");
    }
}

} // namespace

Target::Target(const std::string & path, const TargetOptions & options, const LoadProgress & progress) : path_(path) {
    backend_start();
    if (options.n_ctx < 0 || options.n_batch < 1 || options.n_threads < 0 || options.n_threads_batch < 0) {
        throw std::invalid_argument("n_ctx, n_threads and n_threads_batch are 0 or more, n_batch is 1 or more");
    }
    if (options.max_rows < 1 || options.max_rows > core::kMaxRows) {
        throw std::invalid_argument("max_rows is 1 to " + std::to_string(core::kMaxRows) + ", not " +
                                    std::to_string(options.max_rows));
    }
    cache_type(options.cache_type_k, "cache_type_k");
    cache_type(options.cache_type_v, "cache_type_v");
    flash_attention(options.flash_attention);
    try {
        load(options, progress);
        open_context(options);
    } catch (...) {
        if (!broken_) {
            llama_free(ctx_);
            llama_model_free(model_);
        }
        throw;
    }
}

Target::~Target() {
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

void Target::load(const TargetOptions & options, const LoadProgress & progress) {
    const GgufFile file(path_);
    check_role(file);
    architecture_ = file.architecture();
    n_threads_ = options.n_threads > 0 ? options.n_threads : physical_cores();
    const int32_t n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : n_threads_;
    threads_ = std::make_unique<ThreadPool>(std::max(n_threads_, n_threads_batch));

    llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = options.n_gpu_layers;
    params.load_mode = options.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
    model_ = model_load(path_, params, progress);
    vocab_ = llama_model_get_vocab(model_);
    n_vocab_ = llama_vocab_n_tokens(vocab_);
    n_embd_ = llama_model_n_embd(model_);
    n_layer_ = llama_model_n_layer(model_);
    if (!llama_model_has_decoder(model_) || llama_model_has_encoder(model_)) {
        throw ModelError(path_ + ": architecture '" + architecture_ + "' is not a decoder-only language model");
    }
}

void Target::open_context(const TargetOptions & options) {
    const bool recurrent = llama_model_is_recurrent(model_) || llama_model_is_hybrid(model_);
    llama_context_params params = llama_context_default_params();
    n_ctx_ = options.n_ctx > 0 ? options.n_ctx : llama_model_n_ctx_train(model_);
    n_batch_ = std::min(options.n_batch, n_ctx_);
    max_rows_ = std::min(options.max_rows, n_ctx_);
    tree_ = !recurrent;
    params.n_ctx = static_cast<uint32_t>(n_ctx_);
    params.n_batch = static_cast<uint32_t>(std::max(n_batch_, max_rows_));
    params.n_ubatch = params.n_batch; // one verify is one ubatch
    // Rows whose logits come back: all of a verify, one of a prefill. Keeps the compute buffers small.
    params.n_outputs_max = static_cast<uint32_t>(max_rows_);
    params.n_seq_max = recurrent ? 1 : static_cast<uint32_t>(max_rows_);
    params.kv_unified = true; // a tree's leaves share the committed cells
    params.swa_full = true;   // rows that are dropped must not have pushed windowed cells out
    params.n_threads = n_threads_;
    params.n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : n_threads_;
    params.type_k = cache_type(options.cache_type_k, "cache_type_k");
    params.type_v = cache_type(options.cache_type_v, "cache_type_v");
    params.flash_attn_type = flash_attention(options.flash_attention);
    // Snapshots a recurrent model keeps so that a chain can be taken back, one for each row.
    constexpr int32_t kRecurrentChain = 8;
    params.n_rs_seq = recurrent ? static_cast<uint32_t>(std::min(kRecurrentChain, max_rows_ - 1)) : 0;
    params.no_perf = true;
    ctx_ = context_open(path_, model_, params, "-c");
    threads_->attach(ctx_);
    max_chain_ = recurrent ? static_cast<int32_t>(llama_n_rs_seq(ctx_)) : max_rows_ - 1;
    if (static_cast<int32_t>(llama_n_ctx(ctx_)) < n_ctx_) {
        n_ctx_ = static_cast<int32_t>(llama_n_ctx(ctx_));
    }
    batch_ = std::make_unique<llama_batch>(
        llama_batch_init(static_cast<int32_t>(params.n_batch), 0, static_cast<int32_t>(params.n_seq_max)));
    labelled_.assign(static_cast<std::size_t>(params.n_seq_max), 0);
}

} // namespace adaspark
