// A drafter on our own graph. Of a target there it uses the threads, and the embedding and head where its file has
// none; beside a target on llama.cpp it runs on llama.cpp's threads and has a packed copy of the tables that it
// borrows.
#include "engine/draft_backend.h"

#include "engine/backend.h"
#include "engine/drafter.h"
#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/graph/markov.h"
#include "engine/llama_target.h"
#include "engine/own_target.h"

#include <algorithm>

namespace adaspark {

namespace {

class OwnDraft final : public DraftBackend {
  public:
    OwnDraft(const std::string & path, Target & target, const DrafterInfo & info, graph::ModelSpec spec,
             const DraftBackendOptions & options, const LoadProgress & progress)
        : DraftBackend(options.n_batch), info_(info), spec_(std::move(spec)) {
        const auto * own = dynamic_cast<OwnTarget *>(&target.backend());
        bool f32 = false;
        if (own != nullptr) {
            f32 = own->cache_type() == kernels::Cache::f32;
            workers_ = &own->workers();
        } else {
            const auto & llama = dynamic_cast<LlamaTarget &>(target.backend());
            f32 = llama.f32_cache();
            own_workers_ = std::make_unique<graph::Workers>(llama.threads(), options.n_threads);
            workers_ = own_workers_.get();
        }
        cache_ = std::make_unique<graph::KvCache>(spec_.n_layer, spec_.n_head_kv, spec_.head_dim, options.n_ctx,
                                                  f32 ? kernels::Cache::f32 : kernels::Cache::f16, path, "-cd");
        weights_ = std::make_unique<graph::Weights>(spec_, progress);
        embedding_ = weights_->embedding ? weights_->embedding : own->weights().embedding;
        output_ = weights_->output ? weights_->output : own->weights().output;
        forward_ = std::make_unique<graph::Forward>(spec_, *weights_, *workers_, *cache_, nullptr);
        std::vector<int32_t> d2t;
        if (spec_.draft.d2t) {
            for (const int64_t id : GgufFile(path).tensor_integers("d2t")) {
                d2t.push_back(static_cast<int32_t>(id)); // drafter_check has seen that they are ids of the target
            }
        }
        markov_ = std::make_unique<graph::MarkovChain>(weights_->draft, *workers_, std::move(d2t), target.n_vocab(),
                                                       spec_.n_embd);
        fused_.resize(static_cast<std::size_t>(graph::kMaxRows) * static_cast<std::size_t>(spec_.n_embd));
    }

    std::string kernels() const override { return std::string("own/") + kernels::kernels_best().name; }

    void inject(const float * features, int32_t /*first*/, int32_t n, int32_t position) override {
        place(n, position);
        forward_->multiply(weights_->draft.fc, features, n, fused_.data());
        forward_->norm_rows(fused_.data(), n, spec_.n_embd, weights_->draft.fc_norm);
        forward_->inject(rows_, fused_.data());
    }

    void draft(int32_t anchor, int32_t rows, int32_t n_draft, int32_t position, float enough, Block & out) override {
        place(rows, position);
        int32_t tokens[graph::kMaxRows];
        std::fill_n(tokens, rows, info_.mask_token);
        tokens[0] = anchor;
        forward_->embed(embedding_, {tokens, static_cast<std::size_t>(rows)});
        forward_->run(rows_, {});
        forward_->head(output_, rows - n_draft, n_draft,
                       false); // the slot of an anchor that proposes nothing needs no logits
        out.resize(n_draft);
        out.resize(markov_->run(*forward_, anchor, n_draft, enough, out.ids, out.values, out.confidence));
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
    graph::ModelSpec spec_;
    std::unique_ptr<graph::Workers> own_workers_; // beside a target on llama.cpp, on its threads; else the target's
    graph::Workers * workers_ = nullptr;
    graph::Matrix embedding_, output_; // the file's or the target's
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

std::string own_draft_refusal(const std::string & path, const Target & target, const DrafterInfo & info,
                              const DraftBackendOptions & options, graph::ModelSpec & spec) {
    const auto * own = dynamic_cast<const OwnTarget *>(&target.backend());
    const auto * llama = dynamic_cast<const LlamaTarget *>(&target.backend());
    if (llama != nullptr && llama->offloaded()) {
        return "its target's layers are offloaded to a GPU (-ngl)";
    }
    if (llama != nullptr && offloads(options.n_gpu_layers)) {
        return "its layers are offloaded to a GPU (-ngld)";
    }
    std::string why = graph::read_spec(GgufFile(path), spec);
    if (why.empty()) {
        why = graph::drafter_misfit(spec, target.n_vocab(), own != nullptr ? own->weights().output.n : target.n_vocab(),
                                    static_cast<int64_t>(info.target_layers.size()) * target.n_embd());
    }
    if (why.empty() && llama != nullptr) {
        why = graph::borrow_tables(target.path(), target.n_vocab(), spec);
    }
    return why;
}

std::unique_ptr<DraftBackend> own_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                        graph::ModelSpec spec, const DraftBackendOptions & options,
                                        const LoadProgress & progress) {
    return std::make_unique<OwnDraft>(path, target, info, std::move(spec), options, progress);
}

} // namespace adaspark
