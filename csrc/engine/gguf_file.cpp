#include "engine/gguf_file.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <new>
#include <system_error>

#include <ggml.h>
#include <gguf.h>
#include <llama.h>

namespace adaspark {

namespace {

constexpr int64_t kMostParts = 65535; // of a split model

[[noreturn]] void wrong_type(const GgufFile & file, const std::string & key, const char * wanted) {
    throw ModelError(file.path() + ": the metadata key '" + key + "' is not " + wanted +
                     ". The file is damaged or was made by another tool; convert it again");
}

std::optional<int64_t> integer_value(const gguf_context * ctx, int64_t id) {
    switch (gguf_get_kv_type(ctx, id)) {
    case GGUF_TYPE_UINT8:
        return gguf_get_val_u8(ctx, id);
    case GGUF_TYPE_INT8:
        return gguf_get_val_i8(ctx, id);
    case GGUF_TYPE_UINT16:
        return gguf_get_val_u16(ctx, id);
    case GGUF_TYPE_INT16:
        return gguf_get_val_i16(ctx, id);
    case GGUF_TYPE_UINT32:
        return gguf_get_val_u32(ctx, id);
    case GGUF_TYPE_INT32:
        return gguf_get_val_i32(ctx, id);
    case GGUF_TYPE_UINT64:
        return static_cast<int64_t>(gguf_get_val_u64(ctx, id));
    case GGUF_TYPE_INT64:
        return gguf_get_val_i64(ctx, id);
    default:
        return std::nullopt;
    }
}

template <typename T> std::vector<int64_t> widen(const void * data, std::size_t n) {
    std::vector<int64_t> out(n);
    for (std::size_t i = 0; i < n; ++i) {
        T value;
        std::memcpy(&value, static_cast<const char *>(data) + i * sizeof(T), sizeof(T));
        out[i] = static_cast<int64_t>(value);
    }
    return out;
}

} // namespace

void GgufFile::Free::operator()(gguf_context * ctx) const { gguf_free(ctx); }

GgufFile::GgufFile(const std::string & path, bool later_part) : path_(path) {
    backend_start();
    namespace fs = std::filesystem;
    std::error_code ec;
    const fs::path file = fs::u8path(path);
    if (!fs::exists(file, ec)) {
        throw ModelError(path + ": no such file. Give the path of a GGUF file");
    }
    if (!fs::is_regular_file(file, ec)) {
        throw ModelError(path + ": not a file. Give the path of a GGUF file");
    }
    file_size_ = fs::file_size(file, ec);
    char magic[4] = {};
    {
        std::ifstream in(file, std::ios::binary);
        if (!in) {
            throw ModelError(path + ": cannot be read. Check its permissions");
        }
        in.read(magic, sizeof(magic));
    }
    if (std::memcmp(magic, "GGUF", 4) != 0) {
        throw ModelError(path + ": not a GGUF file (its first bytes are not 'GGUF'). Convert the model to GGUF first");
    }
    const AbortGuard guard;
    gguf_init_params params = {};
    params.no_alloc = true;
    try {
        ctx_.reset(gguf_init_from_file(path.c_str(), params));
    } catch (const std::bad_alloc &) {
        throw ModelError(path + ": the GGUF header is damaged (it asks for more memory than there is). Download or "
                                "convert the file again");
    }
    if (!ctx_) {
        throw ModelError(path + ": the GGUF header is damaged or cut short (" + AbortGuard::errors() +
                         "). Download or convert the file again");
    }
    const uint64_t data = gguf_get_data_offset(ctx_.get());
    for (int64_t i = 0; i < gguf_get_n_tensors(ctx_.get()); ++i) {
        const uint64_t end = data + gguf_get_tensor_offset(ctx_.get(), i) + gguf_get_tensor_size(ctx_.get(), i);
        if (end > file_size_) {
            throw ModelError(path + ": cut short: tensor '" + gguf_get_tensor_name(ctx_.get(), i) + "' ends at byte " +
                             std::to_string(end) + ", the file has " + std::to_string(file_size_) +
                             ". Download the file again");
        }
    }
    if (later_part) {
        return;
    }
    architecture_ = text("general.architecture").value_or("");
    if (architecture_.empty()) {
        throw ModelError(path + ": the metadata key 'general.architecture' is missing. Convert the model again");
    }
    if (architecture_.size() > 64 ||
        std::any_of(architecture_.begin(), architecture_.end(), [](char c) { return c <= ' ' || c > '~'; })) {
        throw ModelError(path + ": the metadata key 'general.architecture' is no name ('" +
                         architecture_.substr(0, 64) + "'). The file is damaged: download or convert it again");
    }
}

std::vector<std::string> GgufFile::parts() const {
    const auto count = static_cast<int32_t>(std::clamp<int64_t>(integer("split.count").value_or(1), 1, kMostParts));
    std::vector<char> prefix(path_.size() + 1);
    if (count == 1 || llama_split_prefix(prefix.data(), prefix.size(), path_.c_str(), 0, count) == 0) {
        return {path_};
    }
    std::vector<std::string> out;
    std::vector<char> part(path_.size() + 1); // names of parts are of one length
    for (int32_t i = 0; i < count; ++i) {
        llama_split_path(part.data(), part.size(), prefix.data(), i, count);
        out.emplace_back(part.data());
    }
    return out;
}

bool GgufFile::has(const std::string & key) const { return gguf_find_key(ctx_.get(), key.c_str()) >= 0; }

std::optional<int64_t> GgufFile::integer(const std::string & key) const {
    const int64_t id = gguf_find_key(ctx_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    const auto value = integer_value(ctx_.get(), id);
    if (!value) {
        wrong_type(*this, key, "an integer");
    }
    return value;
}

std::optional<bool> GgufFile::boolean(const std::string & key) const {
    const int64_t id = gguf_find_key(ctx_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(ctx_.get(), id) != GGUF_TYPE_BOOL) {
        wrong_type(*this, key, "a boolean");
    }
    return gguf_get_val_bool(ctx_.get(), id);
}

std::optional<std::string> GgufFile::text(const std::string & key) const {
    const int64_t id = gguf_find_key(ctx_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(ctx_.get(), id) != GGUF_TYPE_STRING) {
        wrong_type(*this, key, "a string");
    }
    return std::string(gguf_get_val_str(ctx_.get(), id));
}

std::optional<std::vector<int64_t>> GgufFile::integers(const std::string & key) const {
    const int64_t id = gguf_find_key(ctx_.get(), key.c_str());
    if (id < 0) {
        return std::nullopt;
    }
    if (gguf_get_kv_type(ctx_.get(), id) != GGUF_TYPE_ARRAY) {
        wrong_type(*this, key, "an array of integers");
    }
    const std::size_t n = gguf_get_arr_n(ctx_.get(), id);
    switch (gguf_get_arr_type(ctx_.get(), id)) {
    case GGUF_TYPE_INT32:
        return widen<int32_t>(gguf_get_arr_data(ctx_.get(), id), n);
    case GGUF_TYPE_UINT32:
        return widen<uint32_t>(gguf_get_arr_data(ctx_.get(), id), n);
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_UINT64:
        return widen<int64_t>(gguf_get_arr_data(ctx_.get(), id), n);
    default:
        wrong_type(*this, key, "an array of integers");
    }
}

int64_t GgufFile::strings_count(const std::string & key) const {
    const int64_t id = gguf_find_key(ctx_.get(), key.c_str());
    if (id < 0 || gguf_get_kv_type(ctx_.get(), id) != GGUF_TYPE_ARRAY ||
        gguf_get_arr_type(ctx_.get(), id) != GGUF_TYPE_STRING) {
        return 0;
    }
    return static_cast<int64_t>(gguf_get_arr_n(ctx_.get(), id));
}

const char * GgufFile::string_at(const std::string & key, int64_t i) const {
    return gguf_get_arr_str(ctx_.get(), gguf_find_key(ctx_.get(), key.c_str()), static_cast<std::size_t>(i));
}

bool GgufFile::has_tensor(const std::string & name) const { return gguf_find_tensor(ctx_.get(), name.c_str()) >= 0; }

std::vector<int64_t> GgufFile::tensor_shape(const std::string & name) const {
    const int64_t id = gguf_find_tensor(ctx_.get(), name.c_str());
    if (id < 0) {
        return {};
    }
    const int64_t * ne = gguf_get_tensor_ne(ctx_.get(), id);
    return {ne[0], ne[1], ne[2], ne[3]};
}

std::vector<int64_t> GgufFile::tensor_integers(const std::string & name) const {
    const int64_t id = gguf_find_tensor(ctx_.get(), name.c_str());
    const ggml_type type = id < 0 ? GGML_TYPE_COUNT : gguf_get_tensor_type(ctx_.get(), id);
    if (type != GGML_TYPE_I64) {
        throw ModelError(path_ + ": the tensor '" + name +
                         "' is missing or not of 64-bit integers. Convert the file again");
    }
    std::vector<char> bytes(gguf_get_tensor_size(ctx_.get(), id));
    std::ifstream in(std::filesystem::u8path(path_), std::ios::binary);
    in.seekg(static_cast<std::streamoff>(gguf_get_data_offset(ctx_.get()) + gguf_get_tensor_offset(ctx_.get(), id)));
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!in) {
        throw ModelError(path_ + ": the tensor '" + name + "' cannot be read. Download the file again");
    }
    return widen<int64_t>(bytes.data(), bytes.size() / sizeof(int64_t));
}

std::string GgufFile::description() const {
    std::map<ggml_type, double> weights;
    double all = 0.0;
    for (int64_t i = 0; i < gguf_get_n_tensors(ctx_.get()); ++i) {
        const ggml_type type = gguf_get_tensor_type(ctx_.get(), i);
        const double n = static_cast<double>(gguf_get_tensor_size(ctx_.get(), i)) /
                         static_cast<double>(ggml_type_size(type)) * static_cast<double>(ggml_blck_size(type));
        weights[type] += n;
        all += n;
    }
    const auto most = std::max_element(weights.begin(), weights.end(),
                                       [](const auto & a, const auto & b) { return a.second < b.second; });
    char size[32];
    std::snprintf(size, sizeof(size), all < 1e9 ? "%.1fM" : "%.2fB", all / (all < 1e9 ? 1e6 : 1e9));
    return architecture_ + " " + size + " " + ggml_type_name(most->first);
}

} // namespace adaspark
