#include "engine/quantize.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/gguf_file.h"

#include <atomic>
#include <filesystem>
#include <system_error>

#include <llama.h>

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

namespace adaspark {

namespace {

struct FileType {
    const char * name;
    llama_ftype file;
    ggml_type tensor;
};

constexpr FileType kTypes[] = {
    {"F32", LLAMA_FTYPE_ALL_F32, GGML_TYPE_F32},         {"F16", LLAMA_FTYPE_MOSTLY_F16, GGML_TYPE_F16},
    {"BF16", LLAMA_FTYPE_MOSTLY_BF16, GGML_TYPE_BF16},   {"Q8_0", LLAMA_FTYPE_MOSTLY_Q8_0, GGML_TYPE_Q8_0},
    {"Q5_0", LLAMA_FTYPE_MOSTLY_Q5_0, GGML_TYPE_Q5_0},   {"Q4_1", LLAMA_FTYPE_MOSTLY_Q4_1, GGML_TYPE_Q4_1},
    {"Q4_0", LLAMA_FTYPE_MOSTLY_Q4_0, GGML_TYPE_Q4_0},   {"Q4_K", LLAMA_FTYPE_MOSTLY_Q4_K_M, GGML_TYPE_Q4_K},
    {"Q5_K", LLAMA_FTYPE_MOSTLY_Q5_K_M, GGML_TYPE_Q5_K}, {"Q6_K", LLAMA_FTYPE_MOSTLY_Q6_K, GGML_TYPE_Q6_K},
};

const FileType & find_type(const std::string & name) {
    std::string known;
    for (const FileType & type : kTypes) {
        if (name == type.name) {
            return type;
        }
        known += (known.empty() ? "" : ", ") + std::string(type.name);
    }
    throw std::invalid_argument("'" + name + "' is not a file type this can write: " + known);
}

int process_id() {
#ifdef _WIN32
    return _getpid();
#else
    return getpid();
#endif
}

} // namespace

void quantize_file(const std::string & source, const std::string & destination, const std::string & file_type,
                   const std::string & token_embedding_type, int32_t n_threads) {
    namespace fs = std::filesystem;
    const GgufFile file(source);
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = find_type(file_type).file;
    params.nthread = n_threads > 0 ? n_threads : physical_cores();
    params.allow_requantize = true;
    if (!token_embedding_type.empty()) {
        params.token_embedding_type = find_type(token_embedding_type).tensor;
    }
    // A name of this process and call, so that two at once do not write into each other's file.
    static std::atomic<int> calls{0};
    const std::string part =
        destination + "." + std::to_string(process_id()) + "-" + std::to_string(calls.fetch_add(1)) + ".part";
    const AbortGuard guard;
    std::string why;
    try {
        if (llama_model_quantize(source.c_str(), part.c_str(), &params) != 0) {
            why = AbortGuard::errors();
        }
    } catch (const std::exception & error) {
        why = error.what();
    }
    std::error_code ec;
    if (why.empty()) {
        try {
            const GgufFile written(part); // a full disk leaves a short file
            fs::rename(fs::u8path(part), fs::u8path(destination));
            return;
        } catch (const std::exception & error) {
            why = error.what();
        }
    }
    fs::remove(fs::u8path(part), ec);
    throw ModelError(source + ": could not be requantised to " + destination + ": " + why);
}

} // namespace adaspark
