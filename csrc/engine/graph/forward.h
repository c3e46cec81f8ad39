// Runs the blocks of a model over a few rows with our kernels: the one forward behind prefill, plain steps, chains,
// trees and the drafter's block. Every thread walks the same list of steps and takes its share of each; a step's result
// depends on no share, so any number of threads gives the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/graph/conv_windows.h"
#include "engine/graph/kv_cache.h"
#include "engine/graph/lines.h"
#include "engine/graph/weights.h"
#include "engine/graph/workers.h"

namespace adaspark::graph {

inline constexpr int32_t kMaxRows = 64;    // rows of one forward: what a row sees of them fits one word
inline constexpr int32_t kAttendRows = 16; // rows whose attention is worked out together: bounds the partial results
inline constexpr int32_t kUnit = kernels::kBlock / kernels::kColumns; // panels that fill one block of int8 activations
inline constexpr int32_t kPieces = 6; // of a thread's share, the smallest: what one that is done early can take over
inline constexpr int32_t kUnitsAtOnce = 8; // of the feed-forward: up to 16 rows of them stay in the first cache
inline constexpr int32_t kTailSlots =
    kernels::kChunk + kMaxRows; // slots of a row in chunks not wholly committed, at most

// The rows of one forward. Row r's key and value go to slot committed + r.
struct Rows {
    int32_t count = 0;
    int32_t committed = 0;           // slots before the rows; every row sees all of them
    int32_t position[kMaxRows] = {}; // for the rotation
    uint64_t visible[kMaxRows] = {}; // bit s: the row sees row s of this forward (itself included), in order of slots
};

class Forward {
  public:
    // Everything given must outlive this object. `windows`: null for a model without short convolutions.
    Forward(const ModelSpec & spec, const Weights & weights, Workers & workers, KvCache & cache, ConvWindows * windows);

    // Input rows: the embeddings of `tokens`, or ready rows put into input() beforehand.
    void embed(const Matrix & embedding, std::span<const int32_t> tokens);
    float * input() { return x_.data(); } // [rows][n_embd]; holds the last block's output after run()

    // All blocks. `taps`: blocks whose input rows are copied to tap(i).
    void run(const Rows & rows, std::span<const int32_t> taps);
    const float * tap(std::size_t i) const { return taps_[i].data(); }

    // Keys and values of ready rows `g` [rows][n_embd] into every block's cache, without running the blocks.
    void inject(const Rows & rows, const float * g);

    // Final norm and head of rows [first, first + count) of the last run: logits(0) is row `first`.
    // `picks`: and the argmax of each, pick(i); -1 where a logit is not a number.
    void head(const Matrix & output, int32_t first, int32_t count, bool picks);
    int32_t pick(int32_t i);
    std::span<float> logits(int32_t i); // [columns of the head]
    const float * normed(int32_t i) const {
        return h_.data() + static_cast<std::ptrdiff_t>(i) * spec_.n_embd;
    } // before the head

    // out [rows][columns rounded up to kColumns] = matrix * in [rows][k]
    void multiply(const Matrix & m, const float * in, int32_t rows, float * out);
    // norm every row of `x` [rows][n] in place
    void norm_rows(float * x, int32_t rows, int32_t n, const float * weight);

  private:
    struct Int8Rows {
        LineVector<int8_t> q;
        LineVector<float> d, dsum;
        LineVector<int32_t> minus8, minus8_half;
        kernels::Activations open(float * x, std::size_t rows, std::size_t width);
    };
    // The rows of a routed block by the experts they use: pair p is a row and one of its experts, pairs of an expert
    // lie together, its rows ascending.
    struct Groups {
        std::vector<int32_t> expert; // the experts that any row uses, ascending
        std::vector<int32_t> begin;  // [expert.size() + 1] first pair of each
        std::vector<int32_t> row;    // [pairs]
        std::vector<int32_t> pair;   // [row][used] pair of a row's experts, in the order of their selection
        std::vector<int32_t> count;  // [n_expert]
    };
    struct Scratch { // of one thread
        int32_t best[kMaxRows] =
            {};                   // of the columns of the head that it worked out, by row; -1 = not a number among them
        LineVector<float> normed; // the rows it normed for itself
        Int8Rows normed_int8;
        kernels::Activations own; // of `normed`
        LineVector<float> attend;
        LineVector<float> gate, up, c;
        Groups groups;
        LineVector<float> rows; // an expert's rows, gathered
        Int8Rows int8_rows;
        kernels::Activations gathered;
        std::vector<const float *> experts; // [used] what a row's experts give
        std::vector<const float *> q;
        std::vector<float *> out;
        std::vector<const int32_t *> slots;
        std::vector<int32_t> n_slots;
    };
    struct Share {
        int32_t begin, end;
    };

    void set_rows(int32_t rows);
    void prepare(const Rows & rows);
    void block(const BlockWeights & w, int32_t thread);
    void norm(const float * x, const float * weight, int32_t first, int32_t rows, bool quantize, int32_t thread);
    void norm_row(const float * x, const float * weight, bool quantize, int32_t row,
                  const kernels::Activations & out) const;
    const kernels::Activations & normed(const float * weight, bool quantize, int32_t thread);
    void project(const BlockWeights & w, const kernels::Activations & in, bool keys_only, int32_t thread);
    void project_head(const BlockWeights & w, const kernels::Activations & in, int32_t item);
    void rotate(const float * x, const float * norm, int32_t row, float scale, float * out) const;
    void attention(const BlockWeights & w, int32_t thread);
    void attend(const BlockWeights & w, int32_t thread);
    void attend_rows(int32_t layer, int32_t head, int32_t chunk, int32_t first, int32_t row_begin, int32_t row_end,
                     bool ahead, Scratch & s);
    void short_convolution(const BlockWeights & w, int32_t thread);
    void feed_forward(const BlockWeights & w, int32_t thread);
    void inner_units(const Matrix & gate, const Matrix & up, const kernels::Activations & in, int32_t rows,
                     int32_t begin, int32_t end, bool quantize, const kernels::Activations & out, int32_t width,
                     Scratch & s) const;
    void routed(const BlockWeights & w, int32_t thread);
    void select(const BlockWeights & w, int32_t row);
    void group(Groups & groups) const;
    kernels::Activations rows_of(const Groups & groups, std::size_t i, const BlockWeights & w, Scratch & s) const;
    kernels::Activations inner_of(const Groups & groups, std::size_t i) const;
    void gemm(const Matrix & m, const kernels::Activations & a, Share panels, float * out, int64_t ldo,
              const float * bias, bool add) const;
    void product(const Matrix & m, const kernels::Activations & a, float * out, int64_t ldo, bool add, int32_t thread);
    Share share(int32_t n, int32_t thread) const;
    int32_t piece(int32_t n) const;

    const ModelSpec & spec_;
    const Weights & weights_;
    Workers & workers_;
    KvCache & cache_;
    ConvWindows * windows_;
    const kernels::Kernels & kernels_;

    int32_t rows_ = 0;
    int32_t own_rows_ = 0; // rows up to which every thread norms all of them for itself
    const Rows * in_ = nullptr;
    LineVector<float> x_;          // residual stream
    LineVector<float> h_;          // normed rows, then attention's output: what the next product multiplies
    LineVector<float> qkv_;        // queries, keys and values of each row
    LineVector<float> query_;      // rotated and scaled
    LineVector<float> act_;        // the feed-forward's inner rows, or the short convolution's output
    LineVector<float> router_;     // [row][experts, rounded up to kColumns] logits, then how likely each expert is
    std::vector<int32_t> experts_; // [row][used] selected
    std::vector<float> shares_;    // [row][used]
    LineVector<float> expert_out_; // [pair][n_embd]
    LineVector<float> turn_;       // [row][head_dim / 2][cosine, sine]
    LineVector<float> partials_;
    LineVector<float> logits_;
    std::vector<LineVector<float>> taps_;
    Int8Rows normed_rows_;            // h_ as int8
    Int8Rows inner_rows_;             // act_ as int8
    kernels::Activations a_;          // of h_
    kernels::Activations inner_;      // of act_
    std::vector<int32_t> tail_slots_; // [row][kTailSlots] slots from the first chunk that is not wholly committed on
    std::vector<int32_t> tail_count_;
    int32_t chunks_ = 0; // chunks the longest row has
    std::vector<Scratch> scratch_;
    int32_t n_head_columns_ = 0;
    int64_t ld_logits_ = 0;
};

} // namespace adaspark::graph
