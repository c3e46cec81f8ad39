#include "engine/load_error.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <new>

#include <ggml-backend.h>

namespace adaspark {

namespace {

bool speaks_of_memory(const std::string & text) {
    for (const char * word : {"alloc", "out of memory", "not enough memory"}) {
        if (text.find(word) != std::string::npos) {
            return true;
        }
    }
    return false;
}

// Bytes of the attention cache, counted before llama.cpp asks for them: Linux hands out memory it does not have, and
// the process would be killed later, without a message.
double cache_bytes(const llama_model * model, const llama_context_params & params) {
    const double heads = llama_model_n_head(model) > 0 ? llama_model_n_head(model) : 1;
    const double width = static_cast<double>(llama_model_n_embd(model)) / heads * llama_model_n_head_kv(model);
    const auto bytes = [](ggml_type type) {
        return static_cast<double>(ggml_type_size(type)) / static_cast<double>(ggml_blck_size(type));
    };
    return static_cast<double>(params.n_ctx) * llama_model_n_layer(model) * width *
           (bytes(params.type_k) + bytes(params.type_v));
}

} // namespace

llama_model * model_load(const std::string & path, llama_model_params params,
                         const std::function<bool(float)> & progress) {
    const AbortGuard guard;
    bool stopped = false;
    struct State {
        const std::function<bool(float)> * progress;
        bool * stopped;
    } state{&progress, &stopped};
    if (progress) {
        params.progress_callback_user_data = &state;
        params.progress_callback = [](float share, void * user) {
            auto & s = *static_cast<State *>(user);
            *s.stopped = *s.stopped || !(*s.progress)(share);
            return !*s.stopped;
        };
    }
    llama_model * model = nullptr;
    try {
        model = llama_model_load_from_file(path.c_str(), params);
    } catch (const std::bad_alloc &) {
        throw OutOfMemoryError(path + ": not enough memory for the weights");
    }
    if (model != nullptr) {
        return model;
    }
    if (stopped) {
        throw ModelError(path + ": loading was stopped");
    }
    const std::string why = AbortGuard::errors();
    if (speaks_of_memory(why)) {
        throw OutOfMemoryError(path + ": not enough memory for the weights (" + why +
                               "). Use a smaller quantisation or offload fewer layers (-ngl)");
    }
    throw ModelError(path + ": llama.cpp cannot load this model: " + why);
}

llama_context * context_open(const std::string & path, llama_model * model, const llama_context_params & params,
                             const char * flag) {
    const AbortGuard guard;
    const double needed = cache_bytes(model, params);
    const auto available = static_cast<double>(memory_available());
    const std::string remedy =
        std::string(". Ask for a shorter context (") + flag + ") or a smaller cache type (-ctk, -ctv)";
    const std::string n_ctx = std::to_string(params.n_ctx);
    // Only where the cache is in main memory: a GPU's own allocator refuses by itself.
    if (!llama_supports_gpu_offload() && available > 0 && needed > available) {
        throw OutOfMemoryError(path + ": a context of " + n_ctx + " tokens needs " + mebibytes(needed) + ", " +
                               mebibytes(available) + " are free" + remedy);
    }
    llama_context * ctx = nullptr;
    try {
        ctx = llama_init_from_model(model, params);
    } catch (const std::bad_alloc &) {
    }
    if (ctx != nullptr) {
        return ctx;
    }
    const std::string why = AbortGuard::errors();
    if (why.empty() || speaks_of_memory(why)) {
        throw OutOfMemoryError(path + ": not enough memory for a context of " + n_ctx + " tokens (" +
                               mebibytes(needed) + " of cache; " + why + ")" + remedy);
    }
    throw ModelError(path + ": llama.cpp cannot open a context: " + why);
}

} // namespace adaspark
