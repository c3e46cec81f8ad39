#include "engine/graph/spec.h"

#include "engine/error.h"
#include "engine/gguf_file.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include <ggml.h>
#include <gguf.h>

namespace adaspark::graph {

namespace {

// llama.cpp's numbers for what makes shares of a router's logits.
constexpr int32_t kSoftmax = 1;
constexpr int32_t kSigmoid = 2;

constexpr int32_t kWidest = 1 << 24; // of any width or count

struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

std::string unknown_format(const TensorRef & t) {
    return std::string("format ") + ggml_type_name(static_cast<ggml_type>(t.type)) + " of '" + t.name + "'";
}

class Reader {
  public:
    Reader(const GgufFile & file, ModelSpec & out, Executor executor)
        : file_(file), out_(out), executor_(executor), arch_(file.architecture()) {}

    void read() {
        drafter_ = arch_ == "dflash";
        hybrid_ = arch_ == "lfm2" || arch_ == "lfm2moe";
        routed_ = arch_ == "qwen3moe" || arch_ == "lfm2moe";
        if (arch_ != "llama" && arch_ != "qwen2" && arch_ != "qwen3" && !routed_ && !hybrid_ && !drafter_) {
            throw Unsupported("architecture '" + arch_ + "'");
        }
        out_.path = file_.path();
        out_.architecture = arch_;
        read_shape();
        read_experts();
        read_rope();
        refuse_unknown_keys();
        read_tensors();
        for (int64_t i = 0; i < gguf_get_n_tensors(file_.context()); ++i) {
            const char * name = gguf_get_tensor_name(file_.context(), i);
            if (!used_.contains(name)) {
                throw Unsupported(std::string("tensor '") + name + "'");
            }
        }
    }

  private:
    std::string key(const char * suffix) const { return arch_ + "." + suffix; }

    int32_t number(const char * suffix, int64_t fallback, int64_t least = 1) const {
        const int64_t value = file_.has(key(suffix)) ? scalar(suffix) : fallback;
        if (value < least || value > kWidest) {
            throw Unsupported(key(suffix) + " = " + std::to_string(value));
        }
        return static_cast<int32_t>(value);
    }

    // Some files keep one number per block; only a constant one is run here.
    int64_t scalar(const char * suffix) const {
        if (gguf_get_kv_type(file_.context(), gguf_find_key(file_.context(), key(suffix).c_str())) != GGUF_TYPE_ARRAY) {
            return file_.integer(key(suffix)).value();
        }
        const std::vector<int64_t> values = file_.integers(key(suffix)).value();
        if (values.empty() || std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != values[0]; })) {
            throw Unsupported(key(suffix) + " differs from block to block");
        }
        return values[0];
    }

    float real(const char * suffix, float fallback) const {
        const int64_t id = gguf_find_key(file_.context(), key(suffix).c_str());
        if (id < 0) {
            return fallback;
        }
        if (gguf_get_kv_type(file_.context(), id) != GGUF_TYPE_FLOAT32) {
            throw Unsupported(key(suffix) + " is not a 32-bit float");
        }
        return gguf_get_val_f32(file_.context(), id);
    }

    void read_shape() {
        out_.n_layer = number("block_count", 0);
        out_.n_embd = number("embedding_length", 0);
        out_.n_head = number("attention.head_count", 0);
        read_kinds();
        out_.head_dim = number("attention.key_length", out_.n_embd / out_.n_head);
        out_.n_ff = number(arch_ == "qwen3moe" ? "expert_feed_forward_length" : "feed_forward_length", 0);
        out_.n_ctx_train = std::min(number("context_length", 0), kMaxContext);
        out_.eps = real("attention.layer_norm_rms_epsilon", 0.0F);
        if (number("attention.value_length", out_.head_dim) != out_.head_dim) {
            throw Unsupported("values of another width than keys");
        }
        if (out_.n_head > kWidest / out_.head_dim) {
            throw Unsupported(key("attention.head_count") + " = " + std::to_string(out_.n_head));
        }
        const int32_t unit = executor_ == Executor::own ? 32 : 1;
        const int32_t head_unit = executor_ == Executor::own ? kernels::kSlots : 8;
        if (out_.n_head % out_.n_head_kv != 0 || out_.head_dim % head_unit != 0 || out_.head_dim > kernels::kHeadDim ||
            out_.n_embd % unit != 0 || out_.n_ff % unit != 0 || out_.q_width() % unit != 0 || !(out_.eps > 0.0F)) {
            throw Unsupported("widths that are not multiples of 32 (heads: of 16)");
        }
    }

    // Which blocks have attention: in a hybrid file those whose number of key heads is not 0.
    void read_kinds() {
        if (out_.n_layer > 4096) {
            throw Unsupported("more than 4096 blocks");
        }
        conv_.assign(static_cast<std::size_t>(out_.n_layer), false);
        const std::string name = key("attention.head_count_kv");
        const int64_t id = gguf_find_key(file_.context(), name.c_str());
        if (!hybrid_ || id < 0 || gguf_get_kv_type(file_.context(), id) != GGUF_TYPE_ARRAY) {
            out_.n_head_kv = number("attention.head_count_kv", out_.n_head);
        } else {
            const std::vector<int64_t> heads = file_.integers(name).value();
            const int64_t most = heads.empty() ? 0 : *std::max_element(heads.begin(), heads.end());
            if (heads.size() != conv_.size() || most < 1 || most > out_.n_head ||
                std::any_of(heads.begin(), heads.end(), [&](int64_t n) { return n != 0 && n != most; })) {
                throw Unsupported(name + " is not 0 or one number in every block");
            }
            std::transform(heads.begin(), heads.end(), conv_.begin(), [](int64_t n) { return n == 0; });
            out_.n_head_kv = static_cast<int32_t>(most);
        }
        out_.n_conv = static_cast<int32_t>(std::count(conv_.begin(), conv_.end(), true));
        out_.n_attention = out_.n_layer - out_.n_conv;
        out_.conv_taps = out_.n_conv > 0 ? number("shortconv.l_cache", 0, 2) : 0;
        if (out_.conv_taps > kMaxTaps) {
            throw Unsupported(key("shortconv.l_cache") + " = " + std::to_string(out_.conv_taps));
        }
    }

    void read_experts() {
        if (!routed_) {
            return;
        }
        out_.n_expert = number("expert_count", 0);
        out_.n_expert_used = number("expert_used_count", 0);
        out_.n_ff_expert = number("expert_feed_forward_length", 0);
        dense_blocks_ = hybrid_ ? number("leading_dense_block_count", 0, 0) : 0;
        if (out_.n_expert_used > out_.n_expert) {
            throw Unsupported(key("expert_used_count") + " is more than " + key("expert_count"));
        }
        if (out_.n_expert > 4096 || (executor_ == Executor::own && out_.n_ff_expert % 32 != 0)) {
            throw Unsupported(std::to_string(out_.n_expert) + " experts with a width of " +
                              std::to_string(out_.n_ff_expert));
        }
        const int32_t gating = number("expert_gating_func", hybrid_ ? 0 : kSoftmax, 0);
        if (gating != kSoftmax && (gating != kSigmoid || !hybrid_)) {
            throw Unsupported(key("expert_gating_func") + " = " + std::to_string(gating));
        }
        out_.router_sigmoid = gating == kSigmoid;
        const float scale = real("expert_weights_scale", 1.0F);
        if (!file_.boolean(key("expert_weights_norm")).value_or(true) || (scale != 1.0F && scale != 0.0F)) {
            throw Unsupported("experts whose shares are scaled or do not sum to 1");
        }
    }

    void read_rope() {
        out_.rope_interleaved = arch_ == "llama";
        out_.rope_base = real("rope.freq_base", 10000.0F);
        if (number("rope.dimension_count", out_.head_dim) != out_.head_dim) {
            throw Unsupported("rotation of a part of each head");
        }
        const std::string scaling = file_.text(key("rope.scaling.type")).value_or("none");
        float factor = real("rope.scaling.factor", real("rope.scale_linear", 1.0F));
        if (scaling == "none") {
            factor = file_.has(key("rope.scaling.type")) ? 1.0F : factor;
        } else if (scaling != "linear") {
            throw Unsupported("rope scaling '" + scaling + "'");
        }
        if (real("rope.scaling.attn_factor", 1.0F) != 1.0F || !(factor >= 0.0F)) {
            throw Unsupported("rope scaling of attention");
        }
        out_.rope_scale = factor == 0.0F ? 1.0F : 1.0F / factor;
    }

    // Keys that change what is computed in a way this graph does not know.
    void refuse_unknown_keys() const {
        for (const char * suffix : {"expert_count",
                                    "attention.sliding_window",
                                    "attention.scale",
                                    "logit_scale",
                                    "residual_scale",
                                    "embedding_scale",
                                    "final_logit_softcapping",
                                    "attn_logit_softcapping",
                                    "attention.causal",
                                    "attention.value_scale",
                                    "attention.output_scale",
                                    "rope.dimension_sections",
                                    "hidden_activation",
                                    "hidden_act",
                                    "hyper_connection.count",
                                    "pooling_type",
                                    "attention.clamp_kqv",
                                    "swiglu_clamp_exp",
                                    "expert_shared_count",
                                    "expert_group_count"}) {
            const std::string name = key(suffix);
            if (!file_.has(name) || (routed_ && std::string(suffix) == "expert_count")) {
                continue;
            }
            const int64_t id = gguf_find_key(file_.context(), name.c_str());
            const bool zero =
                gguf_get_kv_type(file_.context(), id) == GGUF_TYPE_UINT32 && gguf_get_val_u32(file_.context(), id) == 0;
            const bool silu = gguf_get_kv_type(file_.context(), id) == GGUF_TYPE_STRING && file_.text(name) == "silu";
            const bool drafter_causal = drafter_ && std::string(suffix) == "attention.causal"; // drafter_check reads it
            if (!zero && !silu && !drafter_causal) {
                throw Unsupported("metadata key '" + name + "'");
            }
        }
    }

    TensorRef tensor(const std::string & name, int64_t k, int64_t n, bool required, int64_t experts = 1) {
        const int64_t id = gguf_find_tensor(file_.context(), name.c_str());
        if (id < 0) {
            if (required) {
                throw Unsupported("no tensor '" + name + "'");
            }
            return {};
        }
        const std::vector<int64_t> shape = file_.tensor_shape(name);
        if (shape[0] != k || (n > 0 && shape[1] != n) || shape[2] != experts || shape[3] != 1 || k < 1 || k > kWidest ||
            shape[1] < 1 || shape[1] > INT32_MAX / experts) {
            throw Unsupported("the shape of '" + name + "'");
        }
        used_.insert(name);
        return {name,
                k,
                shape[1],
                experts,
                static_cast<int32_t>(gguf_get_tensor_type(file_.context(), id)),
                gguf_get_data_offset(file_.context()) + gguf_get_tensor_offset(file_.context(), id),
                gguf_get_tensor_size(file_.context(), id)};
    }

    TensorRef matrix(const std::string & name, int64_t k, int64_t n, bool required = true, int64_t experts = 1) {
        TensorRef out = tensor(name, k, n, required, experts);
        if (!out || executor_ == Executor::ggml) {
            return out;
        }
        if (!multiplied(out.type)) {
            throw Unsupported(unknown_format(out));
        }
        return out;
    }

    TensorRef vector(const std::string & name, int64_t k, bool required = true) {
        TensorRef out = tensor(name, k, 1, required);
        if (out && out.type != GGML_TYPE_F32) {
            throw Unsupported("'" + name + "' is not F32");
        }
        return out;
    }

    void read_tensors() {
        const int64_t d = out_.n_embd;
        out_.embedding = matrix("token_embd.weight", d, 0, !drafter_);
        out_.output_norm = vector(hybrid_ ? "token_embd_norm.weight" : "output_norm.weight", d);
        out_.output = matrix("output.weight", d, 0, false);
        out_.rope_factors = vector("rope_freqs.weight", out_.head_dim / 2, false);
        const TensorRef & head = out_.output ? out_.output : out_.embedding;
        out_.n_vocab = static_cast<int32_t>(head.n);
        if (drafter_) {
            read_draft();
        } else if (out_.embedding.n != head.n || head.n != file_.strings_count("tokenizer.ggml.tokens")) {
            throw Unsupported("a head of another size than the vocabulary");
        }
        for (int32_t i = 0; i < out_.n_layer; ++i) {
            const std::string p = "blk." + std::to_string(i) + ".";
            BlockSpec b;
            b.attn_norm = vector(p + "attn_norm.weight", d);
            if (conv_[static_cast<std::size_t>(i)]) {
                read_conv(p, b);
            } else {
                read_attention(p, b);
            }
            const bool routed = routed_ && i >= dense_blocks_;
            const std::string s = routed ? "_exps.weight" : ".weight";
            const int64_t experts = routed ? out_.n_expert : 1;
            const int64_t n_ff = routed ? out_.n_ff_expert : out_.n_ff;
            b.ffn_norm = vector(p + "ffn_norm.weight", d);
            b.gate = matrix(p + "ffn_gate" + s, d, n_ff, true, experts);
            b.up = matrix(p + "ffn_up" + s, d, n_ff, true, experts);
            b.down = matrix(p + "ffn_down" + s, n_ff, d, true, experts);
            if (routed) {
                b.router = matrix(p + "ffn_gate_inp.weight", d, out_.n_expert);
                b.router_bias = hybrid_ ? vector(p + "exp_probs_b.bias", out_.n_expert) : TensorRef{};
            }
            out_.blocks.push_back(std::move(b));
        }
    }

    void read_attention(const std::string & p, BlockSpec & b) {
        const int64_t d = out_.n_embd;
        b.state = attention_seen_++;
        b.wq = matrix(p + "attn_q.weight", d, out_.q_width());
        b.wk = matrix(p + "attn_k.weight", d, out_.kv_width());
        b.wv = matrix(p + "attn_v.weight", d, out_.kv_width());
        b.wo = matrix(p + "attn_output.weight", out_.q_width(), d);
        if (!drafter_) {
            b.bq = vector(p + "attn_q.bias", out_.q_width(), arch_ == "qwen2");
            b.bk = vector(p + "attn_k.bias", out_.kv_width(), arch_ == "qwen2");
            b.bv = vector(p + "attn_v.bias", out_.kv_width(), arch_ == "qwen2");
        }
        if (arch_ != "llama" && arch_ != "qwen2") {
            b.q_norm = vector(p + "attn_q_norm.weight", out_.head_dim);
            b.k_norm = vector(p + "attn_k_norm.weight", out_.head_dim);
        }
    }

    void read_conv(const std::string & p, BlockSpec & b) {
        const int64_t d = out_.n_embd;
        b.state = conv_seen_++;
        b.conv = tensor(p + "shortconv.conv.weight", out_.conv_taps, d, true);
        if (b.conv.type != GGML_TYPE_F32) {
            throw Unsupported("'" + b.conv.name + "' is not F32");
        }
        b.conv_in = matrix(p + "shortconv.in_proj.weight", d, 3 * d);
        b.conv_out = matrix(p + "shortconv.out_proj.weight", d, d);
    }

    void read_draft() {
        const int64_t d = out_.n_embd;
        const std::vector<int64_t> fc = file_.tensor_shape("fc.weight");
        const std::vector<int64_t> w1 = file_.tensor_shape("markov_w1.weight");
        if (fc.empty() || w1.empty() || fc[0] % 32 != 0 || w1[0] % 32 != 0) {
            throw Unsupported("the shape of 'fc.weight' or 'markov_w1.weight'");
        }
        DraftSpec & s = out_.draft;
        s.fc = matrix("fc.weight", fc[0], d);
        s.fc_norm = vector("enc.output_norm.weight", d);
        s.w1 = matrix("markov_w1.weight", w1[0], 0);
        s.w2 = matrix("markov_w2.weight", w1[0], 0);
        const int64_t n_tokens = file_.strings_count("tokenizer.ggml.tokens");
        if (n_tokens > 0 && s.w1.n != n_tokens) {
            throw Unsupported("'markov_w1.weight' has " + std::to_string(s.w1.n) + " tokens, the vocabulary " +
                              std::to_string(n_tokens));
        }
        s.confidence = matrix("conf_proj.weight", d + w1[0], 1, false);
        s.confidence_bias = vector("conf_proj.bias", 1, false);
        if (file_.has_tensor("d2t")) {
            s.d2t = tensor("d2t", s.w2.n, 1, true);
        }
        if (out_.n_vocab != 0 && out_.n_vocab != s.w2.n) {
            throw Unsupported("'output.weight' has " + std::to_string(out_.n_vocab) + " tokens, 'markov_w2.weight' " +
                              std::to_string(s.w2.n));
        }
        out_.n_vocab = static_cast<int32_t>(s.w2.n);
    }

    const GgufFile & file_;
    ModelSpec & out_;
    Executor executor_;
    std::string arch_;
    bool drafter_ = false;
    bool hybrid_ = false;      // attention and short convolutions
    std::vector<bool> conv_;   // per block: a short convolution
    int32_t dense_blocks_ = 0; // blocks before the first routed one
    int32_t attention_seen_ = 0;
    int32_t conv_seen_ = 0;
    bool routed_ = false;
    std::set<std::string> used_;
};

} // namespace

bool multiplied(int32_t type) {
    switch (type) {
    case GGML_TYPE_F32:
    case GGML_TYPE_F16:
    case GGML_TYPE_BF16:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q4_K:
    case GGML_TYPE_Q5_K:
    case GGML_TYPE_Q6_K:
        return true;
    default:
        return false;
    }
}

std::string read_spec(const GgufFile & file, ModelSpec & out, Executor executor) {
    try {
        Reader(file, out, executor).read();
    } catch (const Unsupported & why) {
        return readable(why.what()); // it may name a tensor of a damaged file
    }
    return "";
}

std::string drafter_misfit(const ModelSpec & drafter, int64_t n_vocab, int64_t head_columns, int64_t features) {
    if (!drafter.output && !drafter.embedding && head_columns != drafter.draft.w2.n) {
        return "no head of its own for " + std::to_string(drafter.draft.w2.n) + " draft tokens";
    }
    for (const TensorRef * table : {&drafter.draft.w1, &drafter.embedding}) { // looked up by the target's ids
        if (*table && table->n < n_vocab) {
            return "'" + table->name + "' has " + std::to_string(table->n) + " tokens, the target " +
                   std::to_string(n_vocab);
        }
    }
    return drafter.draft.fc.k == features ? "" : "the shape of 'fc.weight'";
}

} // namespace adaspark::graph
