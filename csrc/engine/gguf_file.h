// Metadata of a GGUF file, read without loading weights: what must be checked before llama.cpp sees the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

struct gguf_context;

namespace adaspark {

class GgufFile {
  public:
    // Opens and parses the header. Throws ModelError: missing, not a GGUF, damaged header, tensor data cut short.
    // `later_part`: of a split model, which has tensors but no description of the model.
    explicit GgufFile(const std::string & path, bool later_part = false);

    const std::string & path() const { return path_; }
    uint64_t file_size() const { return file_size_; } // bytes
    const std::string & architecture() const { return architecture_; }
    // "llama 134.5M Q4_0": architecture, number of weights, the format most of them have.
    std::string description() const;
    const gguf_context * context() const { return ctx_.get(); }
    // Paths of all parts of a split model, this one first, named as llama.cpp names them; else this file's alone.
    std::vector<std::string> parts() const;

    bool has(const std::string & key) const;
    // The value, or nothing when the key is absent. A value of another type throws ModelError naming the key.
    std::optional<int64_t> integer(const std::string & key) const;
    std::optional<bool> boolean(const std::string & key) const;
    std::optional<std::string> text(const std::string & key) const;
    std::optional<std::vector<int64_t>> integers(const std::string & key) const;

    // Entries of a string array; 0 when absent.
    int64_t strings_count(const std::string & key) const;
    const char * string_at(const std::string & key, int64_t i) const;

    bool has_tensor(const std::string & name) const;
    // Sizes ne[0..3] of a tensor; empty when absent.
    std::vector<int64_t> tensor_shape(const std::string & name) const;
    // An I64 tensor's values, read from the file. Throws ModelError on another type.
    std::vector<int64_t> tensor_integers(const std::string & name) const;

  private:
    struct Free {
        void operator()(gguf_context * ctx) const;
    };
    std::string path_;
    uint64_t file_size_ = 0;
    std::unique_ptr<gguf_context, Free> ctx_;
    std::string architecture_;
};

} // namespace adaspark
