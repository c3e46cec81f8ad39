#include "engine/ggml_graph/markov.h"

#include "engine/drafter.h"
#include "engine/topk.h"

#include <algorithm>
#include <cmath>

namespace adaspark::ggml_graph {

namespace {

constexpr int32_t kPiece = 1024; // columns sorted at a time: what one block of threads sorts on a GPU

} // namespace

MarkovHead::MarkovHead(const Program & program, const Model & model, ggml_tensor * output, ggml_tensor * normed,
                       ggml_tensor * anchor, int32_t n_columns)
    : p_(program), positions_(static_cast<int32_t>(normed->ne[1])), n_columns_(n_columns) {
    ggml_context * ctx = p_.ctx();
    const DraftTensors & d = model.draft;
    const auto columns = [&](ggml_tensor * m) { return ggml_view_2d(ctx, m, m->ne[0], n_columns_, m->nb[1], 0); };
    logits_ = ggml_mul_mat(ctx, columns(output), normed);
    ggml_set_output(logits_);
    ggml_tensor * before = nullptr; // rows of w1 the biases come from, [rank][positions]
    ggml_tensor * pick = nullptr;
    for (int32_t i = 0; i < positions_; ++i) {
        ggml_tensor * row = i == 0 ? ggml_get_rows(ctx, d.w1, anchor) : ggml_get_rows(ctx, d.w1_draft, pick);
        ggml_tensor * logits =
            ggml_view_2d(ctx, logits_, n_columns_, 1, logits_->nb[1], static_cast<std::size_t>(i) * logits_->nb[1]);
        logits = ggml_add_inplace(ctx, logits, ggml_mul_mat(ctx, columns(d.w2), row));
        p_.add(logits);
        pick = ggml_argmax(ctx, logits);
        p_.add(pick);
        before = before == nullptr ? row : ggml_concat(ctx, before, row, 1);
    }
    picks_ = ggml_argmax(ctx, logits_); // once more, in one piece
    p_.output(picks_);
    if (d.confidence != nullptr) {
        ggml_tensor * score = ggml_mul_mat(ctx, d.confidence, ggml_concat(ctx, normed, before, 0)); // [1][positions]
        if (d.confidence_bias != nullptr) {
            score = ggml_add(ctx, score, d.confidence_bias);
        }
        confidence_ = ggml_sigmoid(ctx, score);
        p_.output(confidence_);
    }
    const int32_t whole = n_columns_ / kPiece;
    if (whole > 0) {
        add_piece(0, kPiece, whole);
    }
    if (n_columns_ % kPiece != 0) {
        add_piece(whole * kPiece, n_columns_ % kPiece, 1);
    }
}

void MarkovHead::add_piece(int32_t first, int32_t width, int32_t count) {
    ggml_context * ctx = p_.ctx();
    const int32_t k = std::min(Block::kTopK, width);
    ggml_tensor * part = ggml_cont(ctx, ggml_view_2d(ctx, logits_, int64_t{width} * count, positions_, logits_->nb[1],
                                                     static_cast<std::size_t>(first) * sizeof(float)));
    const int64_t lists = int64_t{count} * positions_;
    ggml_tensor * ids = ggml_top_k(ctx, ggml_reshape_2d(ctx, part, width, lists), k);
    p_.output(ids);
    ggml_tensor * values = ggml_get_rows(ctx, ggml_reshape_3d(ctx, part, 1, width, lists), ids);
    p_.output(values);
    const auto n = static_cast<std::size_t>(k * lists);
    pieces_.push_back({first, width, count, k, ids, values, std::vector<int32_t>(n), std::vector<float>(n)});
}

// The pick's share of the whole draft vocabulary.
float MarkovHead::share_of(int32_t position, float best) const {
    std::vector<float> row(static_cast<std::size_t>(n_columns_));
    p_.read(logits_, row.data(), static_cast<std::size_t>(position) * logits_->nb[1], row.size() * sizeof(float));
    p_.device().wait();
    double sum = 0.0;
    for (const float v : row) {
        sum += std::exp(static_cast<double>(v) - best);
    }
    return static_cast<float>(1.0 / sum);
}

void MarkovHead::read(std::span<const int32_t> d2t, Block & out) {
    const auto n = static_cast<std::size_t>(positions_);
    constexpr auto kTopK = static_cast<std::size_t>(Block::kTopK);
    host_picks_.resize(n);
    p_.read(picks_, host_picks_.data(), 0, n * sizeof(int32_t));
    host_confidence_.assign(n, NAN);
    if (confidence_ != nullptr) {
        p_.read(confidence_, host_confidence_.data(), 0, n * sizeof(float));
    }
    for (Piece & piece : pieces_) {
        p_.read(piece.ids, piece.host_ids.data(), 0, piece.host_ids.size() * sizeof(int32_t));
        p_.read(piece.values, piece.host_values.data(), 0, piece.host_values.size() * sizeof(float));
    }
    p_.device().wait();
    out.positions = positions_;
    out.ids.resize(n * kTopK);
    out.values.resize(out.ids.size());
    out.confidence.resize(n);
    std::vector<int32_t> ids;
    for (std::size_t i = 0; i < n; ++i) {
        candidates_.clear();
        ids.clear();
        for (const Piece & piece : pieces_) {
            const auto of_list = static_cast<std::size_t>(piece.k);
            const std::size_t of_row = of_list * static_cast<std::size_t>(piece.count);
            for (std::size_t c = 0; c < of_row; ++c) {
                ids.push_back(piece.first + static_cast<int32_t>(c / of_list) * piece.width +
                              piece.host_ids[i * of_row + c]);
                candidates_.push_back(piece.host_values[i * of_row + c]);
            }
        }
        const std::span<int32_t> best = std::span(out.ids).subspan(i * kTopK, kTopK);
        const std::span<float> values = std::span(out.values).subspan(i * kTopK, kTopK);
        top_k(candidates_, {}, best, values);
        for (int32_t & id : best) {
            id = id < 0 ? id : ids[static_cast<std::size_t>(id)];
        }
        // The next position was biased by the device's pick; among equals another may stand first here.
        auto pick = std::find(best.begin(), best.end(), host_picks_[i]);
        pick = pick == best.end() ? pick - 1 : pick;
        std::rotate(best.begin(), pick, pick + 1);
        best[0] = host_picks_[i];
        for (int32_t & id : best) {
            id = id < 0 || d2t.empty() ? id : d2t[static_cast<std::size_t>(id)];
        }
        const float confidence =
            std::isfinite(host_confidence_[i]) ? host_confidence_[i] : share_of(static_cast<int32_t>(i), values[0]);
        out.confidence[i] = std::isfinite(confidence) ? std::clamp(confidence, 0.0F, 1.0F) : 0.0F;
    }
}

} // namespace adaspark::ggml_graph
