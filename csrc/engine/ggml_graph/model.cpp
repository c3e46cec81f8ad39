#include "engine/ggml_graph/model.h"

#include "engine/error.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace adaspark::ggml_graph {

namespace {

constexpr std::size_t kBlockTensors = 16; // of one block, at most
constexpr std::size_t kOtherTensors = 16;
constexpr std::size_t kPiece = std::size_t{16} << 20; // bytes read and sent to the device at a time

void transpose(std::vector<char> & data, const graph::TensorRef & ref) {
    std::vector<float> from(data.size() / sizeof(float));
    std::memcpy(from.data(), data.data(), data.size());
    const auto k = static_cast<std::size_t>(ref.k);
    const auto n = static_cast<std::size_t>(ref.n);
    auto * to = reinterpret_cast<float *>(data.data());
    for (std::size_t i = 0; i < from.size(); ++i) {
        to[i % k * n + i / k] = from[i];
    }
}

} // namespace

Model::Model(const graph::ModelSpec & spec, std::vector<int32_t> d2t)
    : spec_(spec), d2t_(std::move(d2t)), ctx_(new_context(kOtherTensors + spec.blocks.size() * kBlockTensors)) {
    embedding = tensor(spec.embedding);
    output = spec.output ? tensor(spec.output) : embedding;
    output_norm = tensor(spec.output_norm);
    rope_factors = tensor(spec.rope_factors);
    for (const graph::BlockSpec & b : spec.blocks) {
        BlockTensors t = {};
        t.attn_norm = tensor(b.attn_norm);
        if (b.conv) {
            t.conv = transposed(b.conv);
            t.conv_in = tensor(b.conv_in);
            t.conv_out = tensor(b.conv_out);
        } else {
            attention(b, t);
        }
        t.ffn_norm = tensor(b.ffn_norm);
        if (!b.router && b.gate.type == b.up.type) {
            t.gate_up = joined({&b.gate, &b.up}, true);
        } else {
            t.gate = tensor(b.gate);
            t.up = tensor(b.up);
        }
        t.down = tensor(b.down);
        t.router = tensor(b.router);
        t.router_bias = tensor(b.router_bias);
        blocks.push_back(t);
    }
    draft.fc = tensor(spec.draft.fc);
    draft.fc_norm = tensor(spec.draft.fc_norm);
    draft.w1 = tensor(spec.draft.w1);
    draft.w2 = tensor(spec.draft.w2);
    draft.confidence = tensor(spec.draft.confidence);
    draft.confidence_bias = tensor(spec.draft.confidence_bias);
    draft.w1_draft = draft.w1;
    if (!d2t_.empty()) {
        draft.w1_draft =
            ggml_new_tensor_2d(ctx_.get(), draft.w1->type, draft.w1->ne[0], static_cast<int64_t>(d2t_.size()));
    }
}

void Model::attention(const graph::BlockSpec & spec, BlockTensors & out) {
    out.wo = tensor(spec.wo);
    out.q_norm = tensor(spec.q_norm);
    out.k_norm = tensor(spec.k_norm);
    const bool k = spec.wk.type == spec.wq.type;
    const bool v = spec.wv.type == spec.wq.type;
    out.joined = !k ? 1 : !v ? 2 : 3;
    switch (out.joined) {
    case 3:
        out.wqkv = joined({&spec.wq, &spec.wk, &spec.wv}, true);
        out.bqkv = joined({&spec.bq, &spec.bk, &spec.bv}, false);
        return;
    case 2:
        out.wqkv = joined({&spec.wq, &spec.wk}, true);
        out.bqkv = joined({&spec.bq, &spec.bk}, false);
        break;
    default:
        out.wqkv = tensor(spec.wq);
        out.bqkv = tensor(spec.bq);
        out.wk = tensor(spec.wk);
        out.bk = tensor(spec.bk);
        break;
    }
    out.wv = tensor(spec.wv);
    out.bv = tensor(spec.bv);
}

// [k][n] in the file, [n][k] on the device.
ggml_tensor * Model::transposed(const graph::TensorRef & ref) {
    ggml_tensor * t = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, ref.n, ref.k);
    ggml_set_name(t, ref.name.c_str());
    sources_.push_back({t, ref, 0, true});
    return t;
}

// The columns of tensors of one format and input width, or the entries of vectors, one after the other.
ggml_tensor * Model::joined(std::initializer_list<const graph::TensorRef *> refs, bool matrices) {
    const graph::TensorRef & first = **refs.begin();
    if (!first) {
        return nullptr;
    }
    int64_t k = 0;
    int64_t n = 0;
    for (const graph::TensorRef * ref : refs) {
        k += ref->k;
        n += ref->n;
    }
    ggml_tensor * t = ggml_new_tensor_3d(ctx_.get(), static_cast<ggml_type>(first.type), matrices ? first.k : k,
                                         matrices ? n : 1, first.experts);
    ggml_set_name(t, first.name.c_str());
    std::size_t at = 0;
    for (const graph::TensorRef * ref : refs) {
        sources_.push_back({t, *ref, at});
        at += ref->bytes;
    }
    return t;
}

void Model::load(const Device & device, const std::function<bool(float)> & progress) {
    buffer_ = device.allocate(ctx_.get(), spec_.path + ": the weights",
                              "Use a smaller quantisation, or keep the model on the CPU (-ngl 0)");
    ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    std::ifstream in(std::filesystem::u8path(spec_.path), std::ios::binary);
    std::vector<char> piece;
    const auto read = [&](uint64_t offset, std::size_t bytes, const std::string & name) {
        piece.resize(bytes);
        in.seekg(static_cast<std::streamoff>(offset));
        in.read(piece.data(), static_cast<std::streamsize>(bytes));
        if (!in) {
            throw ModelError(spec_.path + ": the tensor '" + name + "' cannot be read. Download the file again");
        }
    };
    uint64_t all = 1;
    for (const Source & s : sources_) {
        all += s.ref.bytes;
    }
    uint64_t done = 0;
    for (const Source & s : sources_) {
        for (std::size_t at = 0; at < s.ref.bytes; at += piece.size()) {
            const auto most = s.transposed ? s.ref.bytes : kPiece;
            read(s.ref.offset + at, std::min<std::size_t>(most, s.ref.bytes - at), s.ref.name);
            if (s.transposed) {
                transpose(piece, s.ref);
            }
            ggml_backend_tensor_set(s.tensor, piece.data(), s.at + at, piece.size());
            done += piece.size();
            if (progress && !progress(static_cast<float>(done) / static_cast<float>(all))) {
                throw ModelError(spec_.path + ": loading was stopped");
            }
        }
    }
    for (std::size_t i = 0; i < d2t_.size(); ++i) {
        const std::size_t row = ggml_row_size(draft.w1->type, draft.w1->ne[0]);
        read(spec_.draft.w1.offset + static_cast<uint64_t>(d2t_[i]) * row, row, spec_.draft.w1.name);
        ggml_backend_tensor_set(draft.w1_draft, piece.data(), i * row, row);
    }
    if (progress && !progress(1.0F)) {
        throw ModelError(spec_.path + ": loading was stopped");
    }
}

} // namespace adaspark::ggml_graph
