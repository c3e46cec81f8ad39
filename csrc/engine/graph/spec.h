// What a model file describes, as the graph needs it: shapes, constants and where each tensor's bytes lie. Read from
// the GGUF alone; both executors (our kernels, ggml's stock operations) run exactly this.
//
// One block: x += wo * attention(rope(norm(x) * wq), rope(norm(x) * wk), norm(x) * wv), or
//            x += conv_out * (c * convolution(b * u)) with b, c, u = conv_in * norm(x): a short convolution; then
//            x += down * (silu(gate * norm(x)) * (up * norm(x))).
// A routed block has many small feed-forwards; a row uses the best few by softmax or sigmoid(router * norm(x)), their
// shares summing to 1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace adaspark {
class GgufFile;
}

namespace adaspark::graph {

// What runs the graph; it decides which files are understood.
enum class Executor {
    own, // our kernels: the formats they multiply
    ggml // ggml's operations: any format (whether the device multiplies it is asked later)
};

inline constexpr int32_t kMaxTaps = 16;         // inputs of a short convolution, at most
inline constexpr int32_t kMaxContext = 1 << 30; // tokens: more than any cache holds, and sums with it stay in range

// A tensor of the file: n columns of k inputs (a vector has n = 1), for each of `experts`.
struct TensorRef {
    std::string name; // empty = the model has none
    int64_t k = 0;
    int64_t n = 0;
    int64_t experts = 1;
    int32_t type = 0;    // ggml_type
    uint64_t offset = 0; // bytes from the start of the file
    uint64_t bytes = 0;
    std::string path = ""; // the file, where it is not the model's own
    explicit operator bool() const { return !name.empty(); }
};

struct BlockSpec {
    TensorRef attn_norm, wq, wk, wv, wo;
    TensorRef bq, bk, bv;              // optional biases
    TensorRef q_norm, k_norm;          // optional norms over each head
    TensorRef conv, conv_in, conv_out; // a short convolution instead of attention
    int32_t state = 0; // number of this block among those with attention, or among those with a short convolution
    TensorRef ffn_norm, gate, up, down;
    TensorRef router;      // routed blocks: `gate`, `up` and `down` hold all experts
    TensorRef router_bias; // optional, added for the selection and not for the shares
};

// A DSpark drafter's parts (architecture `dflash`); see drafter_check.cpp for the keys.
struct DraftSpec {
    TensorRef fc, fc_norm;                 // tapped features to one row, and its norm
    TensorRef w1, w2;                      // Markov head
    TensorRef confidence, confidence_bias; // optional
    TensorRef d2t;                         // optional: target id of each draft token
};

// Whether our kernels multiply a ggml_type.
bool multiplied(int32_t type);

struct ModelSpec {
    std::string path;
    std::string architecture;
    int32_t n_embd = 0;
    int32_t n_layer = 0;
    int32_t n_head = 0;
    int32_t n_head_kv = 0;
    int32_t head_dim = 0;
    int32_t n_ff = 0;     // of dense blocks
    int32_t n_expert = 0; // 0 = no routed blocks
    int32_t n_expert_used = 0;
    int32_t n_ff_expert = 0;     // of one expert
    bool router_sigmoid = false; // else softmax
    int32_t n_attention = 0;     // blocks with attention
    int32_t n_conv = 0;          // blocks with a short convolution
    int32_t conv_taps = 0;       // inputs of a short convolution, the row's own included
    int32_t n_vocab = 0;         // rows of the head
    int32_t n_ctx_train = 0;
    float eps = 0.0F;
    float rope_base = 10000.0F;
    float rope_scale = 1.0F;       // positions are multiplied by it
    bool rope_interleaved = false; // pairs (0, 1), (2, 3), ...; else (0, d/2), (1, d/2 + 1), ...
    TensorRef rope_factors;        // optional, divides each pair's angle
    TensorRef embedding;           // a drafter may have none: the target's
    TensorRef output_norm;
    TensorRef output; // none: the embedding is the head too (for a drafter without either, the target's)
    std::vector<BlockSpec> blocks;
    DraftSpec draft; // `dflash` only

    int32_t q_width() const { return n_head * head_dim; }
    int32_t kv_width() const { return n_head_kv * head_dim; }
};

// Reads the description. Returns an empty string, or in words why this graph cannot run the file: an architecture, key,
// format or tensor it does not know. Whatever the file holds must be understood, or the file is not run.
std::string read_spec(const GgufFile & file, ModelSpec & out, Executor executor = Executor::own);

// Why a drafter does not go with its target, in words; empty when it does. `head_columns`: of the target's head;
// `features`: numbers the tapped layers give for one row.
std::string drafter_misfit(const ModelSpec & drafter, int64_t n_vocab, int64_t head_columns, int64_t features);

// Completes a drafter that fits by the embedding and head that its own file lacks, from the target's files: a target of
// any architecture, of one file or of several parts. Returns an empty string, or in words why that cannot be.
std::string borrow_tables(const std::string & target_path, int64_t n_vocab, ModelSpec & drafter);

} // namespace adaspark::graph
