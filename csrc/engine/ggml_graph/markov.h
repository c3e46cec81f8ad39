// The end of a DSpark forward on the device: the Markov head walks the block position by position, adding to each row's
// logits a bias that depends on the pick before it. What leaves the device is the best few of each piece of a row.
#pragma once

#include <span>
#include <vector>

#include "engine/ggml_graph/model.h"
#include "engine/ggml_graph/program.h"

namespace adaspark {
struct Block;
}

namespace adaspark::ggml_graph {

class MarkovHead {
  public:
    static constexpr int32_t kNodesOfPosition = 24;

    // `normed` [n_embd][positions]: the block's rows before the head `output`; `anchor` I32 [1]. `n_columns`: draft
    // tokens that can be picked.
    MarkovHead(const Program & program, const Model & model, ggml_tensor * output, ggml_tensor * normed,
               ggml_tensor * anchor, int32_t n_columns);

    // Waits for the run, then fills the block. `d2t`: target id of each draft token; empty = the same ids.
    void read(std::span<const int32_t> d2t, Block & out);

  private:
    struct Piece { // the same columns of every row: `count` lists of the best `k` of `width` columns from `first` on
        int32_t first, width, count, k;
        ggml_tensor *ids, *values; // I32 and F32 [k][count][positions]
        std::vector<int32_t> host_ids;
        std::vector<float> host_values;
    };
    void add_piece(int32_t first, int32_t width, int32_t count);
    float share_of(int32_t position, float best) const;

    const Program & p_;
    int32_t positions_;
    int32_t n_columns_;
    ggml_tensor * logits_ = nullptr;     // F32 [columns][positions], with the bias
    ggml_tensor * picks_ = nullptr;      // I32 [positions]
    ggml_tensor * confidence_ = nullptr; // F32 [positions]; null: no such head
    std::vector<Piece> pieces_;
    std::vector<int32_t> host_picks_;
    std::vector<float> host_confidence_;
    std::vector<float> candidates_; // scratch
};

} // namespace adaspark::ggml_graph
