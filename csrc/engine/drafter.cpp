#include "engine/drafter.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/llama_target.h"
#include "engine/llama_ext.h"
#include "engine/load_error.h"
#include "engine/threads.h"
#include "engine/topk.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <llama.h>

namespace adaspark {

Drafter::Drafter(const std::string & path, Target & target, const DrafterOptions & options,
                 const LoadProgress & progress)
    : path_(path), target_(target) {
    backend_start();
    if (options.n_ctx < 0 || options.n_threads < 0) {
        throw std::invalid_argument("the drafter's n_ctx and n_threads are 0 or more");
    }
    if (target.observer() != nullptr) {
        throw std::invalid_argument("this target already has a drafter; close it first");
    }
    info_ = drafter_check(GgufFile(path), target);

    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = options.n_gpu_layers;
    try {
        model_ = model_load(path, model_params, progress);
    } catch (const OutOfMemoryError &) {
        throw;
    } catch (const ModelError & error) {
        throw DrafterError(error.what());
    }
    llama_context_params params = llama_context_default_params();
    // The block runs on top of what is remembered, so a full target context needs that much more.
    n_ctx_ = (options.n_ctx > 0 ? std::min(options.n_ctx, target.n_ctx()) : target.n_ctx()) + info_.block_size;
    n_batch_ = std::min(256, n_ctx_);
    params.n_ctx = static_cast<uint32_t>(n_ctx_);
    params.n_batch = static_cast<uint32_t>(std::max(n_batch_, info_.block_size));
    params.n_ubatch = params.n_batch; // attention that is not causal must see its whole batch
    params.n_outputs_max = static_cast<uint32_t>(info_.block_size);
    params.n_seq_max = 1;
    params.kv_unified = true;
    params.swa_full = true;
    params.n_threads = options.n_threads > 0 ? options.n_threads : target.n_threads();
    params.n_threads_batch = params.n_threads;
    params.no_perf = true;
    params.ctx_other = target.backend().context(); // a drafter without embeddings or head borrows the target's
    try {
        ctx_ = context_open(path, model_, params, "-cd");
        static_cast<LlamaTarget &>(target.backend()).threads().attach(ctx_);
        batch_ = llama_batch_ext_init(ctx_);
    } catch (...) {
        llama_free(ctx_);
        llama_model_free(model_);
        throw;
    }
    if (info_.has_confidence) {
        confidence_enable(ctx_);
    }
    llama_set_causal_attn(ctx_, info_.causal);
    for (const int32_t layer : info_.target_layers) {
        target.tap(layer);
    }
    width_ = info_.target_layers.size() * static_cast<std::size_t>(target.n_embd());
    target.observer_set(this);
}

Drafter::~Drafter() {
    if (target_.observer() == this) {
        target_.observer_set(nullptr);
    }
    if (broken_) {
        return;
    }
    llama_batch_ext_free(batch_);
    llama_free(ctx_);
    llama_model_free(model_);
}

void Drafter::rows_committed(int32_t first, std::span<const int32_t> rows) {
    // A gap (rows that were not followed) cannot be drafted over; the session prefills those rows again.
    if (!following_ || first != n_past()) {
        return;
    }
    const auto n_embd = static_cast<std::size_t>(target_.n_embd());
    const std::size_t begin = static_cast<std::size_t>(n_pending_) * width_;
    pending_.resize(begin + rows.size() * width_);
    for (std::size_t layer = 0; layer < info_.target_layers.size(); ++layer) {
        const float * taps = target_.tapped(info_.target_layers[layer]);
        for (std::size_t i = 0; i < rows.size(); ++i) {
            std::memcpy(pending_.data() + begin + i * width_ + layer * n_embd,
                        taps + static_cast<std::size_t>(rows[i]) * n_embd, n_embd * sizeof(float));
        }
    }
    n_pending_ += static_cast<int32_t>(rows.size());
    if (n_pending_ >= n_batch_) { // long prompts: keep the pending rows few
        inject();
    }
}

void Drafter::rows_dropped(int32_t n_past) {
    if (n_past >= this->n_past()) {
        return;
    }
    if (n_past >= n_injected_) {
        n_pending_ = n_past - n_injected_;
    } else if (n_past <= n_first_) { // all that is remembered is gone
        llama_memory_clear(llama_get_memory(ctx_), /*data=*/false);
        n_pending_ = 0;
        n_injected_ = 0;
        n_first_ = 0;
    } else {
        llama_memory_seq_rm(llama_get_memory(ctx_), 0, n_past, -1);
        n_pending_ = 0;
        n_injected_ = n_past;
    }
    pending_.resize(static_cast<std::size_t>(n_pending_) * width_);
}

void Drafter::make_room(int32_t rows) {
    if (n_injected_ - n_first_ + rows <= n_ctx_) {
        return;
    }
    // Forget a quarter at once: every removal walks the whole cache.
    const int32_t forget = std::max(n_injected_ - n_first_ + rows - n_ctx_, n_ctx_ / 4);
    n_first_ = std::min(n_injected_, n_first_ + forget);
    llama_memory_seq_rm(llama_get_memory(ctx_), 0, 0, n_first_);
}

void Drafter::run(const char * what) {
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
        throw BackendError(path_ + ": llama.cpp could not run " + what + " (status " + std::to_string(status) + ": " +
                           AbortGuard::errors() + ")");
    }
}

void Drafter::inject() {
    for (int32_t done = 0; done < n_pending_;) {
        const int32_t chunk = std::min(n_batch_, n_pending_ - done);
        make_room(chunk);
        llama_batch_ext_clear(batch_);
        for (int32_t i = 0; i < chunk; ++i) {
            const llama_embd row = {pending_.data() + static_cast<std::size_t>(done + i) * width_, 1, width_};
            const int32_t at = llama_batch_ext_add_embd(batch_, 0, row);
            const llama_pos p = n_injected_ + i;
            const llama_pos pos[4] = {p, p, p, 0}; // models with M-RoPE read four
            llama_batch_ext_set_pos(batch_, at, pos);
        }
        run("an injection");
        n_injected_ += chunk;
        done += chunk;
    }
    n_pending_ = 0;
    pending_.clear();
}

const Block & Drafter::draft(int32_t anchor, int32_t n_draft) {
    if (broken_) {
        throw BackendError(path_ + ": the drafter failed earlier. Load it again");
    }
    if (n_draft < 1 || n_draft > info_.n_draft) {
        throw std::invalid_argument("a block proposes 1 to " + std::to_string(info_.n_draft) + " positions, not " +
                                    std::to_string(n_draft));
    }
    if (n_past() != target_.n_past()) {
        throw std::logic_error("the drafter knows " + std::to_string(n_past()) + " of " +
                               std::to_string(target_.n_past()) + " committed tokens");
    }
    if (anchor < 0 || anchor >= target_.n_vocab()) {
        throw std::invalid_argument("the anchor " + std::to_string(anchor) + " is outside the vocabulary");
    }
    inject();
    const int32_t rows = info_.sample_from_anchor ? n_draft : n_draft + 1;
    make_room(rows);
    llama_batch_ext_clear(batch_);
    for (int32_t i = 0; i < rows; ++i) {
        const int32_t at = llama_batch_ext_add_token(batch_, 0, i == 0 ? anchor : info_.mask_token);
        const llama_pos p = n_injected_ + i;
        const llama_pos pos[4] = {p, p, p, 0};
        llama_batch_ext_set_pos(batch_, at, pos);
        llama_batch_ext_set_output_logits(batch_, at, true);
    }
    run("a draft block");
    read_block(rows, n_draft);
    llama_memory_seq_rm(llama_get_memory(ctx_), 0, n_injected_, -1);
    return block_;
}

void Drafter::read_block(int32_t rows, int32_t n_draft) {
    constexpr int32_t kTopK = Block::kTopK;
    const auto n_vocab = static_cast<std::size_t>(target_.n_vocab());
    const auto n_model = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_)));
    const auto n_embd = static_cast<std::size_t>(llama_model_n_embd(model_));
    const float * logits = llama_get_logits(ctx_);
    const float * confidence = info_.has_confidence ? confidence_rows(ctx_) : nullptr;
    block_.positions = n_draft;
    block_.ids.resize(static_cast<std::size_t>(n_draft * kTopK));
    block_.values.resize(block_.ids.size());
    block_.confidence.resize(static_cast<std::size_t>(n_draft));
    for (int32_t i = 0; i < n_draft; ++i) {
        const auto row = static_cast<std::size_t>(rows - n_draft + i); // skips the slot of an anchor that proposes nothing
        // A padded drafter vocabulary may be longer than the target's: ids the target lacks are never proposed.
        const std::span<const float> values(logits + row * n_model, std::min(n_model, n_vocab));
        const auto at = static_cast<std::size_t>(i * kTopK);
        top_k(values, info_.draft_vocab, std::span(block_.ids).subspan(at, kTopK),
              std::span(block_.values).subspan(at, kTopK));
        float & c = block_.confidence[static_cast<std::size_t>(i)];
        c = confidence != nullptr ? confidence[row * n_embd] : NAN;
        if (!std::isfinite(c)) { // no head, or a broken one: the pick's share of the whole draft vocabulary
            double sum = 0.0;
            for (const float v : values) {
                sum += std::exp(static_cast<double>(v) - block_.values[at]);
            }
            c = static_cast<float>(1.0 / sum);
        }
        c = std::isfinite(c) ? std::clamp(c, 0.0F, 1.0F) : 0.0F;
    }
}

} // namespace adaspark
