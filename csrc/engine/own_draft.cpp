// A drafter on our own graph: the target's threads, embedding and (where the file has none) head.
#include "engine/draft_backend.h"

#include "engine/drafter.h"
#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/graph/markov.h"
#include "engine/own_target.h"

#include <algorithm>

namespace adaspark {

namespace {

class OwnDraft final : public DraftBackend {
  public:
    OwnDraft(const std::string & path, Target & target, const DrafterInfo & info, const DraftBackendOptions & options,
             const LoadProgress & progress)
        : info_(info), target_(dynamic_cast<OwnTarget &>(target.backend())) {
        const GgufFile file(path);
        std::string why = graph::read_spec(file, spec_);
        if (why.empty()) {
            why = graph::drafter_misfit(spec_, target.n_vocab(), target_.weights().output.n,
                                        static_cast<int64_t>(info.target_layers.size()) * target.n_embd());
        }
        if (!why.empty()) {
            throw DrafterError(path + ": our own graph cannot run this drafter: " + why + ". Use --kernels llama");
        }
        cache_ = std::make_unique<graph::KvCache>(
            spec_.n_layer, spec_.n_head_kv, spec_.head_dim, options.n_ctx,
            target_.cache_type() == kernels::Cache::f32 ? kernels::Cache::f32 : kernels::Cache::f16, path, "-cd");
        weights_ = std::make_unique<graph::Weights>(spec_, progress);
        forward_ = std::make_unique<graph::Forward>(spec_, *weights_, target_.workers(), *cache_, nullptr);
        std::vector<int32_t> d2t;
        if (spec_.draft.d2t) {
            for (const int64_t id : file.tensor_integers("d2t")) {
                d2t.push_back(static_cast<int32_t>(id)); // drafter_check has seen that they are ids of the target
            }
        }
        markov_ = std::make_unique<graph::MarkovChain>(weights_->draft, target_.workers(), std::move(d2t),
                                                       target.n_vocab(), spec_.n_embd);
        fused_.resize(static_cast<std::size_t>(graph::kMaxRows) * static_cast<std::size_t>(spec_.n_embd));
    }

    void inject(const float * features, int32_t /*first*/, int32_t n, int32_t position) override {
        place(n, position);
        forward_->multiply(weights_->draft.fc, features, n, fused_.data());
        forward_->norm_rows(fused_.data(), n, spec_.n_embd, weights_->draft.fc_norm);
        forward_->inject(rows_, fused_.data());
    }

    void draft(int32_t anchor, int32_t rows, int32_t n_draft, int32_t position, Block & out) override {
        place(rows, position);
        int32_t tokens[graph::kMaxRows];
        std::fill_n(tokens, rows, info_.mask_token);
        tokens[0] = anchor;
        const graph::Matrix & embedding = weights_->embedding ? weights_->embedding : target_.weights().embedding;
        const graph::Matrix & output = weights_->output ? weights_->output : target_.weights().output;
        forward_->embed(embedding, {tokens, static_cast<std::size_t>(rows)});
        forward_->run(rows_, {});
        forward_->head(output, rows - n_draft, n_draft,
                       false); // the slot of an anchor that proposes nothing needs no logits
        out.positions = n_draft;
        out.ids.resize(static_cast<std::size_t>(n_draft * Block::kTopK));
        out.values.resize(out.ids.size());
        out.confidence.resize(static_cast<std::size_t>(n_draft));
        markov_->run(*forward_, anchor, n_draft, out.ids, out.values, out.confidence);
    }

    void drop(int32_t /*n_past*/) override {} // slots behind the last position are written anew
    void forget(int32_t first) override {
        if (const int32_t count = first - first_; count % kernels::kSlots == 0 && count < end_ - first_) {
            cache_->shift(count, end_ - first_);
        } // else all that was remembered is gone
        first_ = first;
    }
    void clear() override { first_ = end_ = 0; }

  private:
    void place(int32_t n, int32_t position) {
        rows_.count = n;
        rows_.committed = position - first_;
        for (int32_t r = 0; r < n; ++r) {
            rows_.position[r] = position + r;
            rows_.visible[r] = ~uint64_t{0} >> (info_.causal ? 63 - r : 64 - n);
        }
        end_ = position + n;
    }

    const DrafterInfo & info_;
    OwnTarget & target_;
    graph::ModelSpec spec_;
    std::unique_ptr<graph::KvCache> cache_;
    std::unique_ptr<graph::Weights> weights_;
    std::unique_ptr<graph::Forward> forward_;
    std::unique_ptr<graph::MarkovChain> markov_;
    graph::Rows rows_;
    std::vector<float> fused_; // features after fc and its norm
    int32_t first_ = 0;        // position in slot 0
    int32_t end_ = 0;          // position behind the last slot written
};

} // namespace

std::unique_ptr<DraftBackend> own_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                        const DraftBackendOptions & options, const LoadProgress & progress) {
    return std::make_unique<OwnDraft>(path, target, info, options, progress);
}

} // namespace adaspark
