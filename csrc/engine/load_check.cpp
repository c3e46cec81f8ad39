#include "engine/load_check.h"

#include "engine/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include <ggml.h>
#include <gguf.h>

namespace adaspark {

namespace {

constexpr std::size_t kLongestToken = 8192; // bytes; a tokenizer may make a table of all ends of a token

// How much of each head is rotated.
std::string rotation(const GgufFile & file) {
    const std::string & arch = file.architecture();
    const auto number = [&](const char * suffix) -> std::optional<int64_t> { // none where blocks differ
        const std::string key = arch + "." + suffix;
        const int64_t id = gguf_find_key(file.context(), key.c_str());
        return id < 0 || gguf_get_kv_type(file.context(), id) == GGUF_TYPE_ARRAY ? std::nullopt : file.integer(key);
    };
    const std::optional<int64_t> rotated = number("rope.dimension_count");
    std::optional<int64_t> width = number("attention.key_length");
    const int64_t heads = number("attention.head_count").value_or(0);
    if (!width && heads > 0) {
        width = number("embedding_length").value_or(0) / heads;
    }
    const bool always = arch == "dflash" || arch == "lfm2" || arch == "lfm2moe";
    if (!rotated || (*rotated >= (always ? 2 : 0) && *rotated % 2 == 0 && (!width || *rotated <= *width))) {
        return "";
    }
    return "the metadata key '" + arch + ".rope.dimension_count' is " + std::to_string(*rotated) + ", an even number" +
           (width ? " up to a head's width of " + std::to_string(*width) : "") + " is needed";
}

std::string reals(const GgufFile & file) {
    for (int64_t i = 0; i < gguf_get_n_kv(file.context()); ++i) {
        const std::string key = gguf_get_key(file.context(), i);
        const gguf_type type = gguf_get_kv_type(file.context(), i);
        if (!key.starts_with(file.architecture() + ".") || (type != GGUF_TYPE_FLOAT32 && type != GGUF_TYPE_FLOAT64)) {
            continue;
        }
        const double value = type == GGUF_TYPE_FLOAT32 ? static_cast<double>(gguf_get_val_f32(file.context(), i))
                                                       : gguf_get_val_f64(file.context(), i);
        if (!std::isfinite(value) || (key.ends_with("epsilon") && value < 0.0)) {
            return "the metadata key '" + key + "' is " + std::to_string(value);
        }
    }
    return "";
}

// llama.cpp has no forward without attention for these.
std::string attention(const GgufFile & file) {
    const std::string key = file.architecture() + ".attention.head_count_kv";
    if (!file.architecture().starts_with("lfm2") || !file.has(key) ||
        gguf_get_kv_type(file.context(), gguf_find_key(file.context(), key.c_str())) != GGUF_TYPE_ARRAY) {
        return "";
    }
    const std::vector<int64_t> heads = file.integers(key).value();
    return std::any_of(heads.begin(), heads.end(), [](int64_t n) { return n > 0; })
               ? ""
               : "the metadata key '" + key + "' gives no block attention";
}

std::string formats(const GgufFile & file) {
    for (int64_t i = 0; i < gguf_get_n_tensors(file.context()); ++i) {
        const std::string name = gguf_get_tensor_name(file.context(), i);
        const ggml_type type = gguf_get_tensor_type(file.context(), i);
        const bool vector = name.ends_with("norm.weight") || name.ends_with(".bias");
        const bool matrix = name.ends_with(".weight");
        if (type != GGML_TYPE_F32 && (vector || (matrix && ggml_get_type_traits(type)->to_float == nullptr))) {
            return "the tensor '" + name + "' is stored as " + ggml_type_name(type) +
                   (vector ? ", f32 is needed" : ", which is no format of weights");
        }
    }
    return "";
}

std::string tokens(const GgufFile & file) {
    const char * const key = "tokenizer.ggml.tokens";
    for (int64_t i = 0; i < file.strings_count(key); ++i) {
        if (const std::size_t size = std::strlen(file.string_at(key, i)); size > kLongestToken) {
            return "entry " + std::to_string(i) + " of the metadata key '" + key + "' has " + std::to_string(size) +
                   " bytes, more than any token";
        }
    }
    return "";
}

} // namespace

std::string load_fault(const GgufFile & file) {
    for (const auto check : {rotation, reals, attention, formats, tokens}) {
        if (const std::string fault = check(file); !fault.empty()) {
            return fault + ". The file is damaged: download or convert it again";
        }
    }
    return "";
}

} // namespace adaspark
