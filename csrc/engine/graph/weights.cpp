#include "engine/graph/weights.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>

#include <ggml.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace adaspark::graph {

namespace {

constexpr std::size_t kAlign = 64;                  // bytes: a cache line
constexpr std::size_t kPage = std::size_t{2} << 20; // bytes of a large page

kernels::Format format_of(int32_t type) {
    switch (type) {
    case GGML_TYPE_F16:
        return kernels::Format::f16;
    case GGML_TYPE_BF16:
        return kernels::Format::bf16;
    case GGML_TYPE_Q8_0:
        return kernels::Format::q8_0;
    case GGML_TYPE_Q4_0:
        return kernels::Format::q4_0;
    case GGML_TYPE_Q4_1:
        return kernels::Format::q4_1;
    case GGML_TYPE_Q5_0:
        return kernels::Format::q5_0;
    case GGML_TYPE_Q5_1:
        return kernels::Format::q5_1;
    case GGML_TYPE_Q4_K:
        return kernels::Format::q4_k;
    case GGML_TYPE_Q5_K:
        return kernels::Format::q5_k;
    case GGML_TYPE_Q6_K:
        return kernels::Format::q6_k;
    default:
        return kernels::Format::f32;
    }
}

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

} // namespace

void Weights::Free::operator()(uint8_t * p) const { std::free(p); }

// Runs twice over the same list of tensors: first to count bytes, then to read them.
struct Weights::Loader {
    const ModelSpec & spec;
    const std::function<bool(float)> & progress;
    Weights & out;
    std::ifstream in;
    std::string opened; // path of `in`
    bool counting = true;
    std::size_t at = 0;
    std::vector<uint8_t> columns;

    uint8_t * take(std::size_t bytes) {
        uint8_t * p = counting ? nullptr : out.arena_.get() + at;
        at += round_up(bytes, kAlign);
        return p;
    }

    // `bytes` of a tensor from its byte `from` on.
    void read(const TensorRef & t, uint64_t from, void * data, std::size_t bytes) {
        const std::string & path = t.path.empty() ? spec.path : t.path;
        if (path != opened) {
            in = std::ifstream(std::filesystem::u8path(path), std::ios::binary);
            opened = path;
        }
        in.seekg(static_cast<std::streamoff>(t.offset + from));
        in.read(static_cast<char *>(data), static_cast<std::streamsize>(bytes));
        if (!in) {
            throw ModelError(path + ": the tensor '" + t.name + "' cannot be read. Download the file again");
        }
    }

    const float * vector(const TensorRef & t) {
        if (!t) {
            return nullptr;
        }
        const std::size_t padded = round_up(static_cast<std::size_t>(t.k), kernels::kColumns) * sizeof(float);
        uint8_t * p = take(padded); // whole panels of a bias are read
        if (!counting) {
            std::memset(p, 0, padded);
            read(t, 0, p, static_cast<std::size_t>(t.k) * sizeof(float));
        }
        return reinterpret_cast<const float *>(p);
    }

    // [n][k] in the file, [k][n] in memory.
    const float * transposed(const TensorRef & t) {
        if (!t) {
            return nullptr;
        }
        const auto k = static_cast<std::size_t>(t.k);
        const auto n = static_cast<std::size_t>(t.n);
        auto * p = reinterpret_cast<float *>(take(k * n * sizeof(float)));
        if (!counting) {
            std::vector<float> values(k * n);
            read(t, 0, values.data(), values.size() * sizeof(float));
            for (std::size_t i = 0; i < values.size(); ++i) {
                p[i % k * n + i / k] = values[i];
            }
        }
        return p;
    }

    Matrix matrix(const TensorRef & t) {
        if (!t) {
            return {};
        }
        const kernels::Format format = format_of(t.type);
        const auto k = static_cast<int32_t>(t.k);
        const auto n = static_cast<int32_t>(t.n * t.experts); // a routed block's widths are whole panels
        uint8_t * p = take(static_cast<std::size_t>(kernels::panels(n)) * kernels::panel_bytes(format, k));
        constexpr int32_t kAtOnce = 64 * kernels::kColumns; // columns read in one go
        const std::size_t column = kernels::column_bytes(format, k);
        for (int32_t c = 0; c < n && !counting; c += kAtOnce) {
            const int32_t count = std::min(kAtOnce, n - c);
            columns.resize(static_cast<std::size_t>(count) * column);
            read(t, static_cast<uint64_t>(c) * column, columns.data(), columns.size());
            for (int32_t i = 0; i < count; i += kernels::kColumns) {
                kernels::pack_panel(format, k, columns.data() + static_cast<std::size_t>(i) * column,
                                    std::min(kernels::kColumns, count - i),
                                    p + static_cast<std::size_t>((c + i) / kernels::kColumns) *
                                            kernels::panel_bytes(format, k));
            }
            if (progress && !progress(0.99F * static_cast<float>(at) / static_cast<float>(out.size_))) {
                throw ModelError(spec.path + ": loading was stopped");
            }
        }
        return {format, k, n, p};
    }

    void all() {
        out.embedding = matrix(spec.embedding);
        out.output = spec.output ? matrix(spec.output) : out.embedding;
        out.output_norm = vector(spec.output_norm);
        out.rope_factors = vector(spec.rope_factors);
        out.blocks.clear();
        for (const BlockSpec & b : spec.blocks) {
            BlockWeights w;
            w.attn_norm = vector(b.attn_norm);
            w.wq = matrix(b.wq);
            w.wk = matrix(b.wk);
            w.wv = matrix(b.wv);
            w.wo = matrix(b.wo);
            w.bq = vector(b.bq);
            w.bk = vector(b.bk);
            w.bv = vector(b.bv);
            w.q_norm = vector(b.q_norm);
            w.k_norm = vector(b.k_norm);
            w.conv = transposed(b.conv);
            w.conv_in = matrix(b.conv_in);
            w.conv_out = matrix(b.conv_out);
            w.state = b.state;
            w.ffn_norm = vector(b.ffn_norm);
            w.router = matrix(b.router);
            w.router_bias = vector(b.router_bias);
            w.gate = matrix(b.gate);
            w.up = matrix(b.up);
            w.down = matrix(b.down);
            out.blocks.push_back(w);
        }
        out.draft.fc = matrix(spec.draft.fc);
        out.draft.fc_norm = vector(spec.draft.fc_norm);
        out.draft.w1 = matrix(spec.draft.w1);
        out.draft.w2 = matrix(spec.draft.w2);
        out.draft.confidence = matrix(spec.draft.confidence);
        const float * bias = vector(spec.draft.confidence_bias);
        out.draft.confidence_bias = bias != nullptr ? *bias : 0.0F;
    }
};

Weights::Weights(const ModelSpec & spec, const std::function<bool(float)> & progress) {
    Loader loader{spec, progress, *this, {}, {}, true, 0, {}};
    loader.all();
    size_ = round_up(loader.at, kPage);
    const std::size_t available = memory_available();
    if (available == 0 || size_ < available) {
        arena_.reset(static_cast<uint8_t *>(std::aligned_alloc(kPage, size_)));
    }
    if (!arena_) {
        throw OutOfMemoryError(spec.path + ": the weights need " + mebibytes(static_cast<double>(size_)) + ", " +
                               mebibytes(static_cast<double>(available)) + " are free. Use a smaller quantisation");
    }
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    madvise(arena_.get(), size_, MADV_HUGEPAGE); // a forward walks the whole of it: fewer address translations
#endif
    loader.counting = false;
    loader.at = 0;
    loader.all();
    if (progress && !progress(1.0F)) {
        throw ModelError(spec.path + ": loading was stopped");
    }
}

} // namespace adaspark::graph
