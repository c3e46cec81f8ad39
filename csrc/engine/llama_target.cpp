#include "engine/llama_target.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/llama_ext.h"

#include <algorithm>
#include <numeric>

#include <llama.h>

namespace adaspark {

std::string LlamaTarget::description() const {
    char text[256] = {};
    llama_model_desc(model_, text, sizeof(text));
    return text;
}

void LlamaTarget::decode(const char * what, int32_t n_past) {
    const AbortGuard guard;
    int32_t status = 0;
    try {
        status = llama_decode(ctx_, *batch_);
        llama_synchronize(ctx_);
    } catch (const BackendError &) {
        broken_ = true; // ggml's threads may still be inside the graph
        throw;
    }
    if (status == 1) {
        throw ContextFullError(path_ + ": no room in the KV cache for " + what + " of " +
                               std::to_string(batch_->n_tokens) + " rows after " + std::to_string(n_past) +
                               " tokens. Ask for a longer context (-c)");
    }
    if (status != 0) {
        throw BackendError(path_ + ": llama.cpp could not run " + what + " (status " + std::to_string(status) + ": " +
                           AbortGuard::errors() + ")");
    }
}

void LlamaTarget::prefill(std::span<const int32_t> tokens, int32_t n_past, bool last) {
    const auto n = static_cast<int32_t>(tokens.size());
    batch_->n_tokens = n;
    for (int32_t i = 0; i < n; ++i) {
        batch_->token[i] = tokens[static_cast<std::size_t>(i)];
        batch_->pos[i] = n_past + i;
        batch_->n_seq_id[i] = 1;
        batch_->seq_id[i][0] = 0;
        batch_->logits[i] = static_cast<int8_t>(last && i == n - 1);
    }
    decode("a prefill", n_past);
    labelled_[0] = n_past + n;
}

std::span<float> LlamaTarget::last_logits() { return {llama_get_logits_ith(ctx_, -1), n_vocab_}; }

void LlamaTarget::rollback(int32_t n_past) {
    llama_memory_seq_rm(llama_get_memory(ctx_), -1, n_past, -1);
    for (int32_t & upto : labelled_) {
        upto = std::min(upto, n_past);
    }
}

void LlamaTarget::clear() {
    llama_memory_clear(llama_get_memory(ctx_), /*data=*/false);
    std::fill(labelled_.begin(), labelled_.end(), 0);
}

// ---- tree verify ---------------------------------------------------------------------------------------------------

void LlamaTarget::labels_assign(std::span<const int32_t> parents) {
    // Depth-first order makes the leaves below a row a contiguous range of labels.
    const auto n = static_cast<int32_t>(parents.size());
    labels_ = 0;
    for (int32_t i = 0; i < n; ++i) {
        parent_[i] = parents[static_cast<std::size_t>(i)];
        const bool leaf = i + 1 == n || parents[static_cast<std::size_t>(i) + 1] != i;
        label_lo_[i] = labels_;
        if (leaf) {
            ++labels_;
        }
        label_hi_[i] = labels_;
    }
    for (int32_t i = n - 1; i > 0; --i) {
        label_hi_[parent_[i]] = std::max(label_hi_[parent_[i]], label_hi_[i]);
    }
}

void LlamaTarget::label_sync(int32_t label, int32_t n_past) {
    int32_t & upto = labelled_[static_cast<std::size_t>(label)];
    if (upto < n_past) {
        llama_memory_seq_cp(llama_get_memory(ctx_), 0, label, upto, n_past);
        upto = n_past;
    }
}

void LlamaTarget::verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) {
    labels_assign(parents);
    for (int32_t s = 1; s < labels_; ++s) {
        label_sync(s, n_past);
    }
    const auto n = static_cast<int32_t>(tokens.size());
    batch_->n_tokens = n;
    int32_t depth[core::kMaxRows] = {};
    for (int32_t i = 0; i < n; ++i) {
        depth[i] = i == 0 ? 0 : depth[parent_[i]] + 1;
        batch_->token[i] = tokens[static_cast<std::size_t>(i)];
        batch_->pos[i] = n_past + depth[i];
        batch_->n_seq_id[i] = label_hi_[i] - label_lo_[i];
        std::iota(batch_->seq_id[i], batch_->seq_id[i] + batch_->n_seq_id[i], label_lo_[i]);
        batch_->logits[i] = 1;
    }
    rows_ = n;
    decode("a verify", n_past);
}

std::span<float> LlamaTarget::row_logits(int32_t row) {
    float * logits = llama_get_logits_ith(ctx_, row);
    if (logits == nullptr) {
        throw BackendError(path_ + ": llama.cpp returned no logits for row " + std::to_string(row));
    }
    return {logits, n_vocab_};
}

void LlamaTarget::commit(std::span<const int32_t> path, int32_t n_past) {
    const auto kept = static_cast<int32_t>(path.size());
    const int32_t n_after = n_past + kept;
    llama_memory_t memory = llama_get_memory(ctx_);
    const bool all = kept == rows_;
    const int32_t last = kept == 0 ? 0 : path.back();
    const int32_t keep_label = label_lo_[last]; // one leaf below the deepest accepted row: its label covers the path
    for (int32_t s = 0; s < labels_ && !all; ++s) {
        // The part of the path that leaf s shares keeps its label; the rest of the leaf's branch goes.
        int32_t shared = 0;
        while (shared < kept && label_lo_[path[static_cast<std::size_t>(shared)]] <= s &&
               s < label_hi_[path[static_cast<std::size_t>(shared)]]) {
            ++shared;
        }
        if (!llama_memory_seq_rm(memory, s, n_past + shared, -1)) {
            broken_ = true;
            throw BackendError(path_ + ": the model's state could not go back by " + std::to_string(rows_ - kept) +
                               " rows. Run it without speculation (--arm plain)");
        }
        labelled_[static_cast<std::size_t>(s)] = n_past + shared;
    }
    if (all) { // a chain accepted whole: nothing to drop, and its one label is 0
        labelled_[0] = n_after;
    } else if (labelled_[0] < n_after) {
        llama_memory_seq_cp(memory, keep_label, 0, labelled_[0], n_after);
        labelled_[0] = n_after;
    }
}

void LlamaTarget::tap(int32_t layer) {
    taps_enable(ctx_, layer, true);
    taps_.push_back(layer);
}

void LlamaTarget::tap_check() {
    try {
        try_forward();
    } catch (const BackendError & error) {
        for (const int32_t layer : taps_) {
            taps_enable(ctx_, layer, false);
        }
        taps_.clear();
        clear();
        broken_ = false; // no other thread took part
        throw DrafterError(path_ + ": llama.cpp does not hand out what a drafter reads of a '" + architecture_ +
                           "' target (" + error.what() + "). Use --kernels own or ggml, or no drafter");
    }
}

// What llama.cpp aborts on in a forward is an error of loading.
void LlamaTarget::try_forward() {
    if (labelled_[0] > 0) {
        return; // it has run before
    }
    const OneThread alone(ctx_);
    const int32_t token = 0;
    prefill({&token, 1}, 0, true);
    clear();
}

const float * LlamaTarget::tapped(int32_t layer) const { return taps_rows(ctx_, layer); }

// ---- counting cells (tests) ----------------------------------------------------------------------------------------

// llama.cpp has no call for this. A sequence's saved state is a header plus the same bytes for every cell it holds; the
// last label, which any tree can get back by label_sync, is lent one cell and then two to measure both.
void LlamaTarget::measure_state() {
    const auto label = static_cast<int32_t>(labelled_.size()) - 1;
    llama_memory_t memory = llama_get_memory(ctx_);
    llama_memory_seq_rm(memory, label, -1, -1);
    labelled_.back() = 0;
    llama_memory_seq_cp(memory, 0, label, 0, 1);
    const std::size_t one = llama_state_seq_get_size(ctx_, label);
    llama_memory_seq_cp(memory, 0, label, 1, 2);
    state_per_cell_ = llama_state_seq_get_size(ctx_, label) - one;
    state_header_ = one - state_per_cell_;
    llama_memory_seq_rm(memory, label, -1, -1);
}

int32_t LlamaTarget::n_cells(int32_t n_past) {
    if (labelled_.size() < 2 || n_past < 2) { // one label, which llama.cpp keeps contiguous
        return llama_memory_seq_pos_max(llama_get_memory(ctx_), 0) + 1;
    }
    if (state_per_cell_ == 0) {
        measure_state();
    }
    // The committed cells all carry label 0; a cell that carries a label beyond what that label should cover is a leak.
    int32_t cells = 0;
    for (std::size_t s = 0; s < labelled_.size(); ++s) {
        const std::size_t bytes = llama_state_seq_get_size(ctx_, static_cast<int32_t>(s));
        const auto held = bytes < state_header_ + state_per_cell_
                              ? 0
                              : static_cast<int32_t>((bytes - state_header_) / state_per_cell_);
        cells += s == 0 ? held : std::max(0, held - labelled_[s]);
    }
    return cells;
}

} // namespace adaspark
