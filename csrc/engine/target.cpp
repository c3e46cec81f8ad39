#include "engine/target.h"

#include "engine/backend.h"
#include "engine/error.h"
#include "engine/llama_ext.h"
#include "engine/threads.h"

#include <algorithm>
#include <numeric>

#include <llama.h>

namespace adaspark {

std::string Target::description() const {
    char text[256] = {};
    llama_model_desc(model_, text, sizeof(text));
    return text;
}

void Target::check_usable() const {
    if (broken_) {
        throw BackendError(path_ + ": the engine failed earlier and this model object cannot be used. Load it again");
    }
}

// ---- committed text ------------------------------------------------------------------------------------------------

void Target::clear() {
    check_usable();
    llama_memory_clear(llama_get_memory(ctx_), /*data=*/false);
    n_past_ = 0;
    tokens_.clear();
    rows_ = 0;
    std::fill(labelled_.begin(), labelled_.end(), 0);
    if (observer_ != nullptr) {
        observer_->rows_dropped(0);
    }
}

void Target::decode(const char * what) {
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
                               std::to_string(batch_->n_tokens) + " rows after " + std::to_string(n_past_) +
                               " tokens. Ask for a longer context (-c)");
    }
    if (status != 0) {
        throw BackendError(path_ + ": llama.cpp could not run " + what + " (status " + std::to_string(status) + ": " +
                           AbortGuard::errors() + ")");
    }
}

std::span<float> Target::prefill(std::span<const int32_t> tokens, const PrefillProgress & progress) {
    check_usable();
    if (tokens.empty()) {
        throw std::invalid_argument("prefill needs at least one token");
    }
    if (rows_ != 0) {
        throw std::logic_error("prefill between verify and commit");
    }
    const auto n = static_cast<int32_t>(tokens.size());
    if (n_past_ + n > n_ctx_) {
        throw ContextFullError("the prompt has " + std::to_string(n_past_ + n) + " tokens, the context holds " +
                               std::to_string(n_ctx_) + ". Shorten the prompt or ask for a longer context (-c)");
    }
    for (const int32_t token : tokens) {
        if (token < 0 || token >= n_vocab_) {
            throw std::invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                                        std::to_string(n_vocab_) + " tokens");
        }
    }
    std::vector<int32_t> rows(static_cast<std::size_t>(std::min(n, n_batch_)));
    std::iota(rows.begin(), rows.end(), 0);
    for (int32_t done = 0; done < n;) {
        if (progress && !progress(done, n)) {
            return {};
        }
        const int32_t chunk = std::min(n_batch_, n - done);
        batch_->n_tokens = chunk;
        for (int32_t i = 0; i < chunk; ++i) {
            batch_->token[i] = tokens[static_cast<std::size_t>(done + i)];
            batch_->pos[i] = n_past_ + i;
            batch_->n_seq_id[i] = 1;
            batch_->seq_id[i][0] = 0;
            batch_->logits[i] = static_cast<int8_t>(done + i == n - 1);
        }
        decode("a prefill");
        if (observer_ != nullptr) {
            observer_->rows_committed(n_past_, std::span(rows).first(static_cast<std::size_t>(chunk)));
        }
        n_past_ += chunk;
        tokens_.insert(tokens_.end(), batch_->token, batch_->token + chunk);
        labelled_[0] = n_past_;
        done += chunk;
    }
    if (progress) {
        progress(n, n);
    }
    return {llama_get_logits_ith(ctx_, -1), static_cast<std::size_t>(n_vocab_)};
}

bool Target::rollback(int32_t n_past) {
    check_usable();
    if (n_past < 0 || n_past > n_past_) {
        throw std::invalid_argument("rollback to " + std::to_string(n_past) + " of " + std::to_string(n_past_) +
                                    " committed tokens");
    }
    if (n_past == n_past_) {
        return true;
    }
    if (!tree_ && n_past > 0) {
        return false; // recurrent state goes back a few rows at most, and only right after they ran
    }
    llama_memory_seq_rm(llama_get_memory(ctx_), -1, n_past, -1);
    n_past_ = n_past;
    tokens_.resize(static_cast<std::size_t>(n_past));
    for (int32_t & upto : labelled_) {
        upto = std::min(upto, n_past);
    }
    if (observer_ != nullptr) {
        observer_->rows_dropped(n_past);
    }
    return true;
}

// ---- tree verify ---------------------------------------------------------------------------------------------------

void Target::check_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents) const {
    const auto n = static_cast<int32_t>(tokens.size());
    if (n == 0 || n > max_rows_ || parents.size() != tokens.size()) {
        throw std::invalid_argument("a verify takes 1 to " + std::to_string(max_rows_) +
                                    " rows with one parent each, got " + std::to_string(n) + " rows and " +
                                    std::to_string(parents.size()) + " parents");
    }
    for (int32_t i = 0; i < n; ++i) {
        const int32_t p = parents[static_cast<std::size_t>(i)];
        const int32_t token = tokens[static_cast<std::size_t>(i)];
        if (i == 0 ? p != -1 : (p < 0 || p >= i)) {
            throw std::invalid_argument("row " + std::to_string(i) + " has parent " + std::to_string(p) +
                                        ": the anchor has -1, every other row an earlier row");
        }
        if (token < 0 || token >= n_vocab_) {
            throw std::invalid_argument("row " + std::to_string(i) + " has token " + std::to_string(token) +
                                        ", outside the vocabulary of " + std::to_string(n_vocab_));
        }
        // Depth-first: a row's parent is the row before it or an ancestor of that row.
        int32_t a = i - 1;
        while (a > p) {
            a = parents[static_cast<std::size_t>(a)];
        }
        if (i > 0 && a != p) {
            throw std::invalid_argument("row " + std::to_string(i) + " is not in depth-first order");
        }
        if (!tree_ && p != i - 1) {
            throw std::invalid_argument("a " + architecture_ + " target verifies chains only, row " +
                                        std::to_string(i) + " branches");
        }
    }
    if (!tree_ && n - 1 > max_chain_) {
        throw std::invalid_argument("this target verifies chains of at most " + std::to_string(max_chain_) + " drafts");
    }
    if (n_past_ + n > n_ctx_) {
        throw ContextFullError("a verify of " + std::to_string(n) + " rows after " + std::to_string(n_past_) +
                               " tokens does not fit the context of " + std::to_string(n_ctx_));
    }
}

void Target::labels_assign(std::span<const int32_t> parents) {
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

void Target::label_sync(int32_t label) {
    int32_t & upto = labelled_[static_cast<std::size_t>(label)];
    if (upto < n_past_) {
        llama_memory_seq_cp(llama_get_memory(ctx_), 0, label, upto, n_past_);
        upto = n_past_;
    }
}

void Target::verify(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
    check_usable();
    if (rows_ != 0) {
        throw std::logic_error("verify called twice without commit");
    }
    check_tree(tokens, parents);
    labels_assign(parents);
    for (int32_t s = 1; s < labels_; ++s) {
        label_sync(s);
    }
    const auto n = static_cast<int32_t>(tokens.size());
    batch_->n_tokens = n;
    int32_t depth[core::kMaxRows] = {};
    for (int32_t i = 0; i < n; ++i) {
        depth[i] = i == 0 ? 0 : depth[parent_[i]] + 1;
        batch_->token[i] = tokens[static_cast<std::size_t>(i)];
        batch_->pos[i] = n_past_ + depth[i];
        batch_->n_seq_id[i] = label_hi_[i] - label_lo_[i];
        std::iota(batch_->seq_id[i], batch_->seq_id[i] + batch_->n_seq_id[i], label_lo_[i]);
        batch_->logits[i] = 1;
    }
    rows_ = n;
    decode("a verify");
}

std::span<float> Target::row_logits(int32_t row) const {
    float * logits = llama_get_logits_ith(ctx_, row);
    if (logits == nullptr) {
        throw BackendError(path_ + ": llama.cpp returned no logits for row " + std::to_string(row));
    }
    return {logits, static_cast<std::size_t>(n_vocab_)};
}

void Target::commit(std::span<const int32_t> path) {
    check_usable();
    if (rows_ == 0) {
        throw std::logic_error("commit without a verify");
    }
    int32_t above = -1;
    for (const int32_t row : path) {
        if (row < 0 || row >= rows_ || parent_[row] != above) {
            throw std::invalid_argument("the accepted path must go from the anchor (row 0) down one branch, row " +
                                        std::to_string(row) + " does not follow row " + std::to_string(above));
        }
        above = row;
    }
    const auto kept = static_cast<int32_t>(path.size());
    const int32_t n_after = n_past_ + kept;
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
        if (!llama_memory_seq_rm(memory, s, n_past_ + shared, -1)) {
            broken_ = true;
            throw BackendError(path_ + ": the model's state could not go back by " + std::to_string(rows_ - kept) +
                               " rows. Run it without speculation (--arm plain)");
        }
        labelled_[static_cast<std::size_t>(s)] = n_past_ + shared;
    }
    if (all) { // a chain accepted whole: nothing to drop, and its one label is 0
        labelled_[0] = n_after;
    } else if (labelled_[0] < n_after) {
        llama_memory_seq_cp(memory, keep_label, 0, labelled_[0], n_after);
        labelled_[0] = n_after;
    }
    rows_ = 0;
    if (observer_ != nullptr && kept > 0) {
        observer_->rows_committed(n_past_, path);
    }
    for (const int32_t row : path) {
        tokens_.push_back(batch_->token[row]);
    }
    n_past_ = n_after;
}

void Target::tap(int32_t layer) { taps_enable(ctx_, layer); }

// ---- counting cells (tests) ----------------------------------------------------------------------------------------

// llama.cpp has no call for this. A sequence's saved state is a header plus the same bytes for every cell it holds; the
// last label, which any tree can get back by label_sync, is lent one cell and then two to measure both.
void Target::measure_state() {
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

int32_t Target::n_kv_cells() {
    check_usable();
    if (labelled_.size() < 2 || n_past_ < 2) { // one label, which llama.cpp keeps contiguous
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

// ---- vocabulary ----------------------------------------------------------------------------------------------------

std::vector<int32_t> Target::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    std::vector<int32_t> out(text.size() + 8);
    const auto size = static_cast<int32_t>(text.size());
    int32_t n = llama_tokenize(vocab_, text.data(), size, out.data(), static_cast<int32_t>(out.size()), add_special,
                               parse_special);
    if (n < 0) {
        out.resize(static_cast<std::size_t>(-n));
        n = llama_tokenize(vocab_, text.data(), size, out.data(), static_cast<int32_t>(out.size()), add_special,
                           parse_special);
    }
    out.resize(static_cast<std::size_t>(std::max(n, 0)));
    return out;
}

std::string Target::token_bytes(int32_t token, bool special) const {
    if (token < 0 || token >= n_vocab_) {
        throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary");
    }
    std::string out(32, '\0');
    int32_t n = llama_token_to_piece(vocab_, token, out.data(), static_cast<int32_t>(out.size()), 0, special);
    if (n < 0) {
        out.resize(static_cast<std::size_t>(-n));
        n = llama_token_to_piece(vocab_, token, out.data(), static_cast<int32_t>(out.size()), 0, special);
    }
    out.resize(static_cast<std::size_t>(std::max(n, 0)));
    return out;
}

bool Target::is_eog(int32_t token) const { return llama_vocab_is_eog(vocab_, token); }

} // namespace adaspark
