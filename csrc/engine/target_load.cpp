// Opening a target: what is checked before anything is loaded, and which backend runs it.
#include "engine/target.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/ggml_graph/ggml_target.h"
#include "engine/gguf_file.h"
#include "engine/load_check.h"
#include "engine/own_target.h"

#include <llama.h>

namespace adaspark {

namespace {

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
    if (const std::string key = arch + ".attention.causal"; !file.boolean(key).value_or(true)) {
        throw ModelError(file.path() + ": the metadata key '" + key +
                         "' is false: this model embeds text, it does not write it");
    }
}

} // namespace

Target::Target(const std::string & path, const TargetOptions & options, const LoadProgress & progress) : path_(path) {
    backend_start();
    if (options.n_ctx < 0 || options.n_batch < 1 || options.n_threads < 0 || options.n_threads_batch < 0) {
        throw std::invalid_argument("n_ctx, n_threads and n_threads_batch are 0 or more, n_batch is 1 or more");
    }
    if (options.n_ctx > graph::kMaxContext) {
        throw std::invalid_argument("n_ctx is at most " + std::to_string(graph::kMaxContext) + " tokens, not " +
                                    std::to_string(options.n_ctx));
    }
    if (options.max_rows < 1 || options.max_rows > core::kMaxRows) {
        throw std::invalid_argument("max_rows is 1 to " + std::to_string(core::kMaxRows) + ", not " +
                                    std::to_string(options.max_rows));
    }
    if (options.kernels != "auto" && options.kernels != "own" && options.kernels != "ggml" &&
        options.kernels != "llama") {
        throw std::invalid_argument("kernels is 'auto', 'own', 'ggml' or 'llama', not '" + options.kernels + "'");
    }
    llama_options_check(options);
    open(options, progress);
    shape_ = backend_->shape();
    vocab_ = llama_model_get_vocab(backend_->model());
    n_vocab_ = llama_vocab_n_tokens(vocab_);
    if (llama_vocab_type(vocab_) == LLAMA_VOCAB_TYPE_NONE) {
        throw ModelError(path_ + ": no vocabulary ('tokenizer.ggml.model' says so). Convert the model again");
    }
}

Target::~Target() = default;

std::string kernels_wanted(const TargetOptions & options) {
    const bool gpu = offloads(options.n_gpu_layers);
    return options.kernels != "auto" ? options.kernels : gpu ? "ggml" : "own";
}

void Target::open(const TargetOptions & options, const LoadProgress & progress) {
    const GgufFile file(path_);
    check_role(file);
    if (const std::string fault = load_fault(file); !fault.empty()) {
        throw ModelError(path_ + ": " + fault);
    }
    architecture_ = file.architecture();
    const std::string kernels = kernels_wanted(options);
    if (kernels != "llama") {
        graph::ModelSpec spec;
        const std::string why = kernels == "own" ? own_target_refusal(file, options, spec)
                                                 : ggml_graph::ggml_target_refusal(file, options, spec);
        if (why.empty()) {
            backend_ = kernels == "own"
                           ? own_target(file, spec, options, progress)
                           : std::make_unique<ggml_graph::GgmlTarget>(file, std::move(spec), options, progress);
            return;
        }
        if (options.kernels != "auto") {
            throw ModelError(path_ + ": the kernels '" + options.kernels + "' cannot run this model: " + why +
                             ". Use --kernels auto or llama");
        }
        kernels_reason_ = why;
    }
    backend_ = llama_target(file, options, progress);
}

} // namespace adaspark
