// A drafter on stock llama.cpp.
#include "engine/draft_backend.h"

#include "engine/backend.h"
#include "engine/drafter.h"
#include "engine/error.h"
#include "engine/llama_ext.h"
#include "engine/llama_target.h"
#include "engine/load_error.h"
#include "engine/threads.h"
#include "engine/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <llama.h>

namespace adaspark {

namespace {

class LlamaDraft final : public DraftBackend {
  public:
    LlamaDraft(const std::string & path, Target & target, const DrafterInfo & info, const DraftBackendOptions & options,
               const LoadProgress & progress)
        : DraftBackend(options.n_batch), path_(path), target_(target), info_(info),
          width_(info.target_layers.size() * static_cast<std::size_t>(target.n_embd())) {
        open(options, progress);
        try_out();
    }

    ~LlamaDraft() override {
        if (!broken_) {
            close();
        }
    }

    std::string kernels() const override { return "llama"; }

    void inject(const float * features, int32_t /*first*/, int32_t n, int32_t position) override {
        llama_batch_ext_clear(batch_);
        for (int32_t i = 0; i < n; ++i) {
            // llama.cpp reads the row only
            const llama_embd row = {const_cast<float *>(features) + static_cast<std::size_t>(i) * width_, 1, width_};
            const int32_t at = llama_batch_ext_add_embd(batch_, 0, row);
            const llama_pos p = position + i;
            const llama_pos pos[4] = {p, p, p, 0}; // models with M-RoPE read four
            llama_batch_ext_set_pos(batch_, at, pos);
        }
        run("an injection");
    }

    void draft(int32_t anchor, int32_t rows, int32_t n_draft, int32_t position, float /*enough*/,
               Block & out) override {
        llama_batch_ext_clear(batch_);
        for (int32_t i = 0; i < rows; ++i) {
            const int32_t at = llama_batch_ext_add_token(batch_, 0, i == 0 ? anchor : info_.mask_token);
            const llama_pos p = position + i;
            const llama_pos pos[4] = {p, p, p, 0};
            llama_batch_ext_set_pos(batch_, at, pos);
            llama_batch_ext_set_output_logits(batch_, at, true);
        }
        run("a draft block");
        read_block(rows, n_draft, out);
        llama_memory_seq_rm(llama_get_memory(ctx_), 0, position, -1);
    }

    void drop(int32_t n_past) override { llama_memory_seq_rm(llama_get_memory(ctx_), 0, n_past, -1); }
    void forget(int32_t first) override { llama_memory_seq_rm(llama_get_memory(ctx_), 0, 0, first); }
    void clear() override { llama_memory_clear(llama_get_memory(ctx_), /*data=*/false); }

  private:
    void open(const DraftBackendOptions & options, const LoadProgress & progress) {
        llama_model_params model_params = llama_model_default_params();
        model_params.n_gpu_layers = options.n_gpu_layers;
        try {
            model_ = model_load(path_, model_params, progress);
        } catch (const OutOfMemoryError &) {
            throw;
        } catch (const ModelError & error) {
            throw DrafterError(error.what());
        }
        auto & target = dynamic_cast<LlamaTarget &>(target_.backend());
        llama_context_params params = llama_context_default_params();
        params.n_ctx = static_cast<uint32_t>(options.n_ctx);
        params.n_batch = static_cast<uint32_t>(std::max(options.n_batch, info_.block_size));
        params.n_ubatch = params.n_batch; // attention that is not causal must see its whole batch
        params.n_outputs_max = static_cast<uint32_t>(info_.block_size);
        params.n_seq_max = 1;
        params.kv_unified = true;
        params.swa_full = true;
        params.n_threads = options.n_threads;
        params.n_threads_batch = params.n_threads;
        params.no_perf = true;
        params.ctx_other = target.context(); // a drafter without embeddings or head borrows the target's
        try {
            ctx_ = context_open(path_, model_, params, "-cd");
            target.threads().attach(ctx_);
            batch_ = llama_batch_ext_init(ctx_);
        } catch (...) {
            close();
            throw;
        }
        if (info_.has_confidence) {
            confidence_enable(ctx_);
        }
        llama_set_causal_attn(ctx_, info_.causal);
    }

    // As LlamaTarget::try_forward(): one row injected, the shortest block drafted.
    void try_out() {
        const OneThread alone(ctx_);
        const std::vector<float> features(width_, 0.0F);
        Block block;
        try {
            inject(features.data(), 0, 1, 0);
            draft(0, info_.sample_from_anchor ? 1 : 2, 1, 1, 0.0F, block);
        } catch (const BackendError & error) {
            throw DrafterError(path_ + ": llama.cpp cannot run this drafter (" + error.what() +
                               "). The file is damaged: download or convert it again");
        }
        clear();
    }

    void close() {
        if (batch_ != nullptr) {
            llama_batch_ext_free(batch_);
        }
        llama_free(ctx_);
        llama_model_free(model_);
    }

    void run(const char * what) {
        const AbortGuard guard;
        int32_t status = 0;
        try {
            status = llama_process(ctx_, LLAMA_PROCESS_TYPE_DECODE, batch_);
            llama_synchronize(ctx_);
        } catch (const BackendError &) {
            broken_ = true;
            throw;
        }
        if (status != 0) {
            throw BackendError(path_ + ": llama.cpp could not run " + what + " (status " + std::to_string(status) +
                               ": " + AbortGuard::errors() + ")");
        }
    }

    void read_block(int32_t rows, int32_t n_draft, Block & block) const {
        constexpr int32_t kTopK = Block::kTopK;
        const auto n_vocab = static_cast<std::size_t>(target_.n_vocab());
        const auto n_model = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
        const auto n_embd = static_cast<std::size_t>(llama_model_n_embd(model_));
        const float * logits = llama_get_logits(ctx_);
        const float * confidence = info_.has_confidence ? confidence_rows(ctx_) : nullptr;
        block.positions = n_draft;
        block.ids.resize(static_cast<std::size_t>(n_draft * kTopK));
        block.values.resize(block.ids.size());
        block.confidence.resize(static_cast<std::size_t>(n_draft));
        for (int32_t i = 0; i < n_draft; ++i) {
            const auto row =
                static_cast<std::size_t>(rows - n_draft + i); // skips the slot of an anchor that proposes nothing
            // A padded drafter vocabulary may be longer than the target's: ids the target lacks are never proposed.
            const std::span<const float> values(logits + row * n_model, std::min(n_model, n_vocab));
            const auto at = static_cast<std::size_t>(i * kTopK);
            top_k(values, info_.draft_vocab, std::span(block.ids).subspan(at, kTopK),
                  std::span(block.values).subspan(at, kTopK));
            float & c = block.confidence[static_cast<std::size_t>(i)];
            c = confidence != nullptr ? confidence[row * n_embd] : NAN;
            if (!std::isfinite(c)) { // no head, or a broken one: the pick's share of the whole draft vocabulary
                double sum = 0.0;
                for (const float v : values) {
                    sum += std::exp(static_cast<double>(v) - block.values[at]);
                }
                c = static_cast<float>(1.0 / sum);
            }
            c = std::isfinite(c) ? std::clamp(c, 0.0F, 1.0F) : 0.0F;
        }
    }

    std::string path_;
    Target & target_;
    const DrafterInfo & info_;
    std::size_t width_; // floats of one row's features: tapped layers x n_embd
    llama_model * model_ = nullptr;
    llama_context * ctx_ = nullptr;
    llama_batch_ext * batch_ = nullptr;
};

} // namespace

std::unique_ptr<DraftBackend> llama_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                          const DraftBackendOptions & options, const LoadProgress & progress) {
    return std::make_unique<LlamaDraft>(path, target, info, options, progress);
}

} // namespace adaspark
