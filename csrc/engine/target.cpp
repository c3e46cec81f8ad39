#include "engine/target.h"

#include "engine/backend.h"
#include "engine/error.h"

#include <algorithm>
#include <numeric>

#include <llama.h>

namespace adaspark {

std::string Target::description() const { return backend_->description(); }

std::string Target::kernels() const { return backend_->kernels(); }

llama_model * Target::model() const { return backend_->model(); }

void Target::check_usable() const {
    if (backend_->broken()) {
        throw BackendError(path_ + ": the engine failed earlier and this model object cannot be used. Load it again");
    }
}

// ---- committed text ------------------------------------------------------------------------------------------------

void Target::clear() {
    check_usable();
    backend_->clear();
    n_past_ = 0;
    tokens_.clear();
    rows_ = 0;
    if (observer_ != nullptr) {
        observer_->rows_dropped(0);
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
    if (n_past_ + n > shape_.n_ctx) {
        throw ContextFullError("the prompt has " + std::to_string(n_past_ + n) + " tokens, the context holds " +
                               std::to_string(shape_.n_ctx) + ". Shorten the prompt or ask for a longer context (-c)");
    }
    for (const int32_t token : tokens) {
        if (token < 0 || token >= n_vocab_) {
            throw std::invalid_argument("token " + std::to_string(token) + " is outside the vocabulary of " +
                                        std::to_string(n_vocab_) + " tokens");
        }
    }
    std::vector<int32_t> rows(static_cast<std::size_t>(std::min(n, shape_.n_batch)));
    std::iota(rows.begin(), rows.end(), 0);
    for (int32_t done = 0; done < n;) {
        if (progress && !progress(done, n)) {
            return {};
        }
        const int32_t chunk = std::min(shape_.n_batch, n - done);
        const auto part = tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(chunk));
        backend_->prefill(part, n_past_, done + chunk == n);
        if (observer_ != nullptr) {
            observer_->rows_committed(n_past_, std::span(rows).first(static_cast<std::size_t>(chunk)));
        }
        n_past_ += chunk;
        tokens_.insert(tokens_.end(), part.begin(), part.end());
        done += chunk;
    }
    if (progress) {
        progress(n, n);
    }
    return backend_->last_logits();
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
    if (!shape_.tree && n_past > 0) {
        return false; // recurrent state goes back a few rows at most, and only right after they ran
    }
    const int32_t point = backend_->rollback_point(n_past);
    backend_->rollback(point);
    n_past_ = n_past;
    tokens_.resize(static_cast<std::size_t>(n_past));
    for (int32_t at = point; at < n_past; at += shape_.n_batch) { // rows the observer knows
        const int32_t count = std::min(shape_.n_batch, n_past - at);
        backend_->prefill(std::span(tokens_).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)), at,
                          false);
    }
    if (observer_ != nullptr) {
        observer_->rows_dropped(n_past);
    }
    return true;
}

// ---- tree verify ---------------------------------------------------------------------------------------------------

void Target::check_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents) const {
    const auto n = static_cast<int32_t>(tokens.size());
    if (n == 0 || n > shape_.max_rows || parents.size() != tokens.size()) {
        throw std::invalid_argument("a verify takes 1 to " + std::to_string(shape_.max_rows) +
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
        if (!shape_.tree && p != i - 1) {
            throw std::invalid_argument("a " + architecture_ + " target verifies chains only, row " +
                                        std::to_string(i) + " branches");
        }
    }
    if (!shape_.tree && n - 1 > shape_.max_chain) {
        throw std::invalid_argument("this target verifies chains of at most " + std::to_string(shape_.max_chain) +
                                    " drafts");
    }
    if (n_past_ + n > shape_.n_ctx) {
        throw ContextFullError("a verify of " + std::to_string(n) + " rows after " + std::to_string(n_past_) +
                               " tokens does not fit the context of " + std::to_string(shape_.n_ctx));
    }
}

void Target::verify(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
    check_usable();
    if (rows_ != 0) {
        throw std::logic_error("verify called twice without commit");
    }
    check_tree(tokens, parents);
    rows_ = static_cast<int32_t>(tokens.size());
    std::copy(tokens.begin(), tokens.end(), token_);
    std::copy(parents.begin(), parents.end(), parent_);
    backend_->verify(tokens, parents, n_past_);
}

std::span<float> Target::row_logits(int32_t row) const { return backend_->row_logits(row); }

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
    backend_->commit(path, n_past_);
    rows_ = 0;
    if (observer_ != nullptr && kept > 0) {
        observer_->rows_committed(n_past_, path);
    }
    for (const int32_t row : path) {
        tokens_.push_back(token_[row]);
    }
    n_past_ += kept;
}

void Target::tap(int32_t layer) { backend_->tap(layer); }

const float * Target::tapped(int32_t layer) const {
    const float * rows = backend_->tapped(layer);
    if (rows == nullptr) {
        throw BackendError(path_ + ": no inputs of block " + std::to_string(layer) + " were kept");
    }
    return rows;
}

int32_t Target::n_kv_cells() {
    check_usable();
    return backend_->n_cells(n_past_);
}

// ---- vocabulary ----------------------------------------------------------------------------------------------------

// llama.cpp throws and aborts on what a damaged vocabulary lacks.
template <typename Call> auto Target::ask_vocabulary(const char * what, const Call & call) const {
    const AbortGuard guard;
    try {
        return call();
    } catch (const std::exception & error) {
        throw ModelError(path_ + ": its vocabulary cannot " + what + " (" + error.what() +
                         "). The file is damaged: download or convert it again");
    }
}

std::vector<int32_t> Target::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    return ask_vocabulary("spell a text", [&] {
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
        if (std::any_of(out.begin(), out.end(), [&](int32_t t) { return t < 0 || t >= n_vocab_; })) {
            throw std::out_of_range("a token it names is not there");
        }
        return out;
    });
}

std::string Target::token_bytes(int32_t token, bool special) const {
    if (token < 0 || token >= n_vocab_) {
        throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary");
    }
    return ask_vocabulary("be read", [&] {
        std::string out(32, '\0');
        int32_t n = llama_token_to_piece(vocab_, token, out.data(), static_cast<int32_t>(out.size()), 0, special);
        if (n < 0) {
            out.resize(static_cast<std::size_t>(-n));
            n = llama_token_to_piece(vocab_, token, out.data(), static_cast<int32_t>(out.size()), 0, special);
        }
        out.resize(static_cast<std::size_t>(std::max(n, 0)));
        return out;
    });
}

bool Target::is_eog(int32_t token) const { return llama_vocab_is_eog(vocab_, token); }

} // namespace adaspark
