// A drafter on our own graph in ggml's operations, on its target's device: features stay there from the target's
// forward to the drafter's cache, and a block comes back as the few best of each position.
#include "engine/draft_backend.h"

#include "engine/drafter.h"
#include "engine/error.h"
#include "engine/ggml_graph/ggml_target.h"
#include "engine/ggml_graph/markov.h"
#include "engine/gguf_file.h"

#include <algorithm>
#include <numeric>

namespace adaspark {

namespace ggml_graph {

namespace {

class GgmlDraft final : public DraftBackend {
  public:
    GgmlDraft(const std::string & path, Target & target, const DrafterInfo & info, const DraftBackendOptions & options,
              const LoadProgress & progress)
        : DraftBackend(options.n_batch), info_(info), target_(dynamic_cast<GgmlTarget &>(target.backend())),
          device_(target_.device()) {
        const GgufFile file(path);
        std::string why = graph::read_spec(file, spec_, graph::Executor::ggml);
        if (why.empty()) {
            why = graph::drafter_misfit(spec_, target.n_vocab(), target_.weights().output->ne[1],
                                        static_cast<int64_t>(info.target_layers.size()) * target.n_embd());
        }
        if (!why.empty()) {
            throw DrafterError(path + ": our graph in ggml's operations cannot run this drafter: " + why +
                               ". Use --kernels llama");
        }
        if (spec_.draft.d2t) {
            for (const int64_t id : file.tensor_integers("d2t")) {
                d2t_.push_back(static_cast<int32_t>(id)); // drafter_check has seen that they are ids of the target
            }
        }
        n_columns_ = d2t_.empty() ? std::min(spec_.n_vocab, target.n_vocab()) : spec_.n_vocab;
        cache_ = std::make_unique<Cache>(device_, spec_, options.n_ctx, target_.cache_type(), "-cd");
        weights_ = std::make_unique<Model>(spec_, d2t_);
        weights_->load(device_, progress);
        capacity_ = options.n_batch + std::max(target_.shape().n_batch, target_.shape().max_rows);
        pending_ctx_ = new_context(1);
        pending_ = ggml_new_tensor_2d(pending_ctx_.get(), GGML_TYPE_F32, spec_.draft.fc.k, capacity_ + 1);
        pending_data_ = device_.allocate(pending_ctx_.get(), path + ": features that wait for the drafter",
                                         "Ask for a smaller batch (-b)");
        ggml_backend_buffer_clear(pending_data_.get(), 0);
        // What the device cannot run shows now and not in the first round.
        injector(1);
        drafter(info.sample_from_anchor ? info.n_draft : info.n_draft + 1, info.n_draft, 1);
    }

    ~GgmlDraft() override {
        if (device_.abandoned()) {
            static_cast<void>(pending_data_.release());
            static_cast<void>(weights_.release());
            static_cast<void>(cache_.release());
        }
    }

    std::string kernels() const override { return target_.kernels(); }

    bool keep(std::span<const int32_t> rows, int32_t at) override {
        const auto n = static_cast<int32_t>(rows.size());
        Keep & k = keeper(padded_rows(n));
        device_.wait(); // what the last call sent lies in the members written now
        from_.assign(static_cast<std::size_t>(k.from->ne[0]), 0);
        to_.assign(from_.size(), capacity_); // the spare row
        std::copy(rows.begin(), rows.end(), from_.begin());
        std::iota(to_.begin(), to_.begin() + n, int64_t{at});
        k.program->write(k.from, from_.data(), from_.size() * sizeof(int32_t));
        k.program->write(k.to, to_.data(), to_.size() * sizeof(int64_t));
        run(*k.program);
        return true;
    }

    void inject(const float * /*features*/, int32_t first, int32_t n, int32_t position) override {
        Inject & i = injector(padded_rows(n));
        device_.wait();
        place(n, position);
        waiting_.assign(static_cast<std::size_t>(i.waiting->ne[0]), first);
        std::iota(waiting_.begin(), waiting_.begin() + n, first);
        i.rows->set(*i.program, {position - first_, position_, parent_}, cache_->spare());
        i.program->write(i.waiting, waiting_.data(), waiting_.size() * sizeof(int32_t));
        run(*i.program);
    }

    void draft(int32_t anchor, int32_t rows, int32_t n_draft, int32_t position, float /*enough*/,
               Block & out) override {
        Draft & d = drafter(rows, n_draft, position - first_ + rows);
        device_.wait();
        place(rows, position);
        token_.assign(static_cast<std::size_t>(rows), info_.mask_token);
        token_[0] = anchor;
        d.rows->set(*d.program, {position - first_, position_, parent_, !info_.causal}, cache_->spare());
        d.program->write(d.tokens, token_.data(), token_.size() * sizeof(int32_t));
        run(*d.program);
        d.head->read(d2t_, out);
    }

    void drop(int32_t /*n_past*/) override {} // slots behind the last position are written anew
    void forget(int32_t first) override {
        std::vector<int32_t> kept(static_cast<std::size_t>(std::max(0, end_ - first)));
        std::iota(kept.begin(), kept.end(), first - first_);
        cache_->move(kept, 0);
        first_ = first;
    }
    void clear() override { first_ = end_ = 0; }

  private:
    struct Keep {
        std::unique_ptr<Program> program;
        ggml_tensor *from = nullptr, *to = nullptr; // rows of the target's features, waiting rows
    };
    struct Inject {
        std::unique_ptr<Program> program;
        std::unique_ptr<RowInputs> rows;
        ggml_tensor * waiting = nullptr; // I32: rows of pending_
    };
    struct Draft {
        std::unique_ptr<Program> program;
        std::unique_ptr<RowInputs> rows;
        ggml_tensor * tokens = nullptr;
        std::unique_ptr<MarkovHead> head;
    };

    void run(Program & program) {
        try {
            program.run_settled();
        } catch (const BackendError &) {
            broken_ = true;
            throw;
        }
    }

    void finish(Program & program) const {
        if (const std::string why = program.refusal(); !why.empty()) {
            throw DrafterError(spec_.path + ": " + why + ". Use --kernels llama");
        }
        program.finish(spec_.path);
    }

    // `n` rows one behind the other.
    void place(int32_t n, int32_t position) {
        position_.resize(static_cast<std::size_t>(n));
        std::iota(position_.begin(), position_.end(), position);
        parent_.resize(position_.size());
        std::iota(parent_.begin(), parent_.end(), -1);
        end_ = position + n;
    }

    Keep & keeper(int32_t width) {
        Keep & k = keeps_[width];
        if (!k.program) {
            const SetupTime time(device_);
            k.program =
                std::make_unique<Program>(device_, kNodesAround + 8 * static_cast<int32_t>(info_.target_layers.size()));
            const Program & p = *k.program;
            k.from = p.input(GGML_TYPE_I32, width);
            k.to = p.input(GGML_TYPE_I64, width);
            const int64_t n_embd = spec_.draft.fc.k / static_cast<int64_t>(info_.target_layers.size());
            for (std::size_t t = 0; t < info_.target_layers.size(); ++t) {
                ggml_tensor * part = ggml_view_2d(p.ctx(), pending_, n_embd, pending_->ne[1], pending_->nb[1],
                                                  t * static_cast<std::size_t>(n_embd) * sizeof(float));
                ggml_tensor * rows = ggml_get_rows(p.ctx(), target_.features(p.ctx(), info_.target_layers[t]), k.from);
                p.add(ggml_set_rows(p.ctx(), part, rows, k.to));
            }
            k.program->finish(spec_.path);
        }
        return k;
    }

    Inject & injector(int32_t width) {
        Inject & i = injects_[width];
        if (!i.program) {
            const SetupTime time(device_);
            i.program = std::make_unique<Program>(device_, kNodesAround + spec_.n_layer * kNodesOfBlock);
            const Program & p = *i.program;
            i.rows = std::make_unique<RowInputs>(p, width, 0);
            i.waiting = p.input(GGML_TYPE_I32, width);
            const Layers layers(p, spec_, *weights_, *cache_, *i.rows, target_.flash());
            ggml_tensor * g = ggml_get_rows(p.ctx(), pending_, i.waiting);
            g = layers.norm(ggml_mul_mat(p.ctx(), weights_->draft.fc, g), weights_->draft.fc_norm);
            for (int32_t layer = 0; layer < spec_.n_layer; ++layer) {
                layers.store(g, layer);
            }
            finish(*i.program);
        }
        return i;
    }

    Draft & drafter(int32_t rows, int32_t n_draft, int32_t end) {
        const int32_t window = cache_->window(end);
        Draft & d = drafts_[{rows, window}];
        if (!d.program) {
            const SetupTime time(device_);
            d.program = std::make_unique<Program>(device_, kNodesAround + spec_.n_layer * kNodesOfBlock +
                                                               n_draft * MarkovHead::kNodesOfPosition);
            const Program & p = *d.program;
            d.rows = std::make_unique<RowInputs>(p, rows, window);
            d.tokens = p.input(GGML_TYPE_I32, rows);
            const Layers layers(p, spec_, *weights_, *cache_, *d.rows, target_.flash());
            const Model & shared = target_.weights();
            ggml_tensor * x = ggml_get_rows(
                p.ctx(), weights_->embedding != nullptr ? weights_->embedding : shared.embedding, d.tokens);
            for (int32_t layer = 0; layer < spec_.n_layer; ++layer) {
                x = layers.block(x, layer);
            }
            // The slot of an anchor that proposes nothing needs no logits.
            x = ggml_view_2d(p.ctx(), x, x->ne[0], n_draft, x->nb[1],
                             static_cast<std::size_t>(rows - n_draft) * x->nb[1]);
            d.head = std::make_unique<MarkovHead>(
                p, *weights_, weights_->output != nullptr ? weights_->output : shared.output,
                layers.norm(x, weights_->output_norm), ggml_view_1d(p.ctx(), d.tokens, 1, 0), n_columns_);
            finish(*d.program);
        }
        return d;
    }

    const DrafterInfo & info_;
    GgmlTarget & target_;
    Device & device_;
    graph::ModelSpec spec_;
    std::vector<int32_t> d2t_;
    int32_t n_columns_ = 0; // draft tokens that can be picked
    std::unique_ptr<Cache> cache_;
    std::unique_ptr<Model> weights_;
    int32_t capacity_ = 0; // rows that can wait; one more is spare
    Context pending_ctx_;
    Buffer pending_data_;
    ggml_tensor * pending_ = nullptr;                     // F32 [tapped layers x n_embd][rows]
    std::map<int32_t, Keep> keeps_;                       // by rows
    std::map<int32_t, Inject> injects_;                   // by rows
    std::map<std::pair<int32_t, int32_t>, Draft> drafts_; // by rows and window
    std::vector<int32_t> from_, waiting_, token_, position_, parent_;
    std::vector<int64_t> to_;
    int32_t first_ = 0; // position in slot 0
    int32_t end_ = 0;   // position behind the last slot written
};

} // namespace

} // namespace ggml_graph

std::unique_ptr<DraftBackend> ggml_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                         const DraftBackendOptions & options, const LoadProgress & progress) {
    return std::make_unique<ggml_graph::GgmlDraft>(path, target, info, options, progress);
}

} // namespace adaspark
