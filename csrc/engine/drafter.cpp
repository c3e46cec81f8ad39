#include "engine/drafter.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <algorithm>
#include <cstring>

namespace adaspark {

Drafter::Drafter(const std::string & path, Target & target, const DrafterOptions & options,
                 const LoadProgress & progress)
    : path_(path), target_(target) {
    backend_start();
    if (options.n_ctx < 0 || options.n_threads < 0) {
        throw std::invalid_argument("the drafter's n_ctx and n_threads are 0 or more");
    }
    if (options.kernels != "auto" && options.kernels != "own" && options.kernels != "llama") {
        throw std::invalid_argument("a drafter's kernels are 'auto', 'own' or 'llama', not '" + options.kernels + "'");
    }
    if (target.observer() != nullptr) {
        throw std::invalid_argument("this target already has a drafter; close it first");
    }
    info_ = drafter_check(path, target);

    // The block runs on top of what is remembered, so a full target context needs that much more.
    n_ctx_ = (options.n_ctx > 0 ? std::min(options.n_ctx, target.n_ctx()) : target.n_ctx()) + info_.block_size;
    backend_ = draft_backend(path, target, info_, options.kernels,
                             {.n_ctx = n_ctx_,
                              .n_threads = options.n_threads > 0 ? options.n_threads : target.n_threads(),
                              .n_gpu_layers = options.n_gpu_layers},
                             progress);
    n_batch_ = backend_->n_batch();
    for (const int32_t layer : info_.target_layers) {
        target.tap(layer);
    }
    target.backend().tap_check();
    width_ = info_.target_layers.size() * static_cast<std::size_t>(target.n_embd());
    target.observer_set(this);
}

Drafter::~Drafter() {
    if (target_.observer() == this) {
        target_.observer_set(nullptr);
    }
}

void Drafter::rows_committed(int32_t first, std::span<const int32_t> rows) {
    // A gap (rows that were not followed) cannot be drafted over; the session prefills those rows again.
    if (!following_ || first != n_past()) {
        return;
    }
    if (!backend_->keep(rows, n_pending_)) {
        keep(rows);
    }
    n_pending_ += static_cast<int32_t>(rows.size());
    if (n_pending_ >= n_batch_) { // long prompts: keep the pending rows few
        inject();
    }
}

void Drafter::keep(std::span<const int32_t> rows) {
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
}

void Drafter::rows_dropped(int32_t n_past) {
    if (n_past >= this->n_past()) {
        return;
    }
    if (n_past >= n_injected_) {
        n_pending_ = n_past - n_injected_;
    } else if (n_past <= n_first_) { // all that is remembered is gone
        backend_->clear();
        n_pending_ = 0;
        n_injected_ = 0;
        n_first_ = 0;
    } else {
        backend_->drop(n_past);
        n_pending_ = 0;
        n_injected_ = n_past;
    }
    pending_.resize(std::min(pending_.size(), static_cast<std::size_t>(n_pending_) * width_));
}

void Drafter::make_room(int32_t rows) {
    if (n_injected_ - n_first_ + rows <= n_ctx_) {
        return;
    }
    // Forget a quarter at once: every removal walks the whole cache.
    const int32_t forget = std::max(n_injected_ - n_first_ + rows - n_ctx_, n_ctx_ / 4);
    n_first_ = std::min(n_injected_, n_first_ + (forget + 15) / 16 * 16); // caches of our own move groups of 16
    backend_->forget(n_first_);
}

void Drafter::inject() {
    for (int32_t done = 0; done < n_pending_;) {
        const int32_t chunk = std::min(n_batch_, n_pending_ - done);
        make_room(chunk);
        backend_->inject(pending_.data() + static_cast<std::size_t>(done) * width_, done, chunk, n_injected_);
        n_injected_ += chunk;
        done += chunk;
    }
    n_pending_ = 0;
    pending_.clear();
}

const Block & Drafter::draft(int32_t anchor, int32_t n_draft, float enough) {
    target_.check_usable(); // its threads may be the drafter's
    if (backend_->broken()) {
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
    backend_->draft(anchor, rows, n_draft, n_injected_, enough, block_);
    return block_;
}

} // namespace adaspark
