// The target model: prefill, tree verify, commit (paper sections 2.2 and 3.1) on one of the backends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tree.h"
#include "engine/target_backend.h"

struct llama_model;
struct llama_vocab;

namespace adaspark {

struct TargetOptions {
    int32_t n_ctx = 0;                    // tokens; 0 = the model's training context
    int32_t n_batch = 512;                // tokens one prefill decode takes at most
    int32_t n_threads = 0;                // 0 = physical cores
    int32_t n_threads_batch = 0;          // 0 = n_threads
    int32_t n_gpu_layers = -1;            // layers on the GPU; -1 = all
    std::string flash_attention = "auto"; // "auto", "on", "off"
    std::string cache_type_k = "f16";
    std::string cache_type_v = "f16";
    bool use_mmap = true;
    int32_t max_rows = core::kMaxRows; // widest verify, rows
    // What runs the forwards. "own": our graph and kernels on the CPU. "ggml": the same graph on ggml's operations, on
    // any device. "llama": stock llama.cpp. "auto": on the CPU "own", on a GPU "ggml", where they know the model and
    // the options; else "llama".
    std::string kernels = "auto";
};

// What a target is first tried on: options.kernels, or what "auto" stands for.
std::string kernels_wanted(const TargetOptions & options);

// Told about every row that enters or leaves the committed text, so that a drafter can follow the target.
class RowObserver {
  public:
    virtual ~RowObserver() = default;
    // `rows` of the target's last decode are now the committed tokens from position `first` on.
    virtual void rows_committed(int32_t first, std::span<const int32_t> rows) = 0;
    // Committed tokens from position `n_past` on are gone.
    virtual void rows_dropped(int32_t n_past) = 0;
};

// LoadProgress: share loaded, [0, 1]; false stops
using PrefillProgress = std::function<bool(int32_t, int32_t)>; // tokens done, tokens in all; false stops

class Target {
  public:
    // Throws ModelError, OutOfMemoryError, BackendError.
    Target(const std::string & path, const TargetOptions & options, const LoadProgress & progress);
    ~Target();
    Target(const Target &) = delete;
    Target & operator=(const Target &) = delete;

    const std::string & path() const { return path_; }
    const std::string & architecture() const { return architecture_; }
    std::string description() const;
    std::string kernels() const; // "own/<instruction set>", "ggml/<device>" or "llama"
    const std::string & kernels_reason() const { return kernels_reason_; } // why "auto" took "llama"; else empty
    int32_t n_ctx() const { return shape_.n_ctx; }                         // tokens
    int32_t n_vocab() const { return n_vocab_; }                           // tokens
    int32_t n_embd() const { return shape_.n_embd; }                       // hidden width
    int32_t n_layer() const { return shape_.n_layer; }                     // blocks
    int32_t n_threads() const { return shape_.n_threads; }
    int32_t max_rows() const { return shape_.max_rows; }   // widest verify
    bool supports_tree() const { return shape_.tree; }     // false: recurrent state, chains only
    int32_t max_chain() const { return shape_.max_chain; } // drafts a chain may hold; 0 = plain decoding only
    const llama_vocab * vocab() const { return vocab_; }
    llama_model * model() const;
    TargetBackend & backend() const { return *backend_; } // for a drafter on the same weights and threads

    void check_usable() const; // throws BackendError once a forward was stopped in the middle

    int32_t n_past() const { return n_past_; }                  // committed tokens in the cache
    std::span<const int32_t> tokens() const { return tokens_; } // those tokens
    // Cells in use, by the backend's own count. Equals n_past() between rounds; for tests, it walks the whole cache.
    int32_t n_kv_cells();

    void clear();
    // Append committed tokens. Returns the logits [n_vocab] after the last one, valid until the next decode, or an
    // empty span when `progress` asked to stop (what was decoded stays). Throws ContextFullError, BackendError.
    std::span<float> prefill(std::span<const int32_t> tokens, const PrefillProgress & progress);

    // One forward over a tree laid out depth-first; must be followed by commit(). Throws std::invalid_argument on a
    // malformed tree, ContextFullError when it does not fit the cache.
    void verify(std::span<const int32_t> tokens, std::span<const int32_t> parents);
    // Logits [n_vocab] of a row of the last verify; writable (masks), valid until the next decode.
    std::span<float> row_logits(int32_t row) const;
    // Its argmax where the backend has it at hand, else -1; the logits of a row need not be moved then.
    int32_t row_pick(int32_t row) const { return backend_->row_pick(row); }
    // Microseconds spent so far on what only the first rounds of a kind pay (graphs built and recorded).
    double setup_us() const { return backend_->setup_us(); }
    // Where that time went, for programs that measure; see TargetBackend.
    const DeviceTimes * device_times() const { return backend_->device_times(); }
    double replay_us(int32_t n) { return backend_->replay_us(n); }
    // Keep the rows of `path` (from the anchor, row 0, down one branch), drop the others. Empty drops all.
    void commit(std::span<const int32_t> path);
    // Drop committed tokens from position `n_past` on. False when the model's state cannot go back (recurrent).
    bool rollback(int32_t n_past);

    // At most one observer; null detaches. Layers whose inputs it wants are tapped with tap().
    void observer_set(RowObserver * observer) { observer_ = observer; }
    RowObserver * observer() const { return observer_; }
    void tap(int32_t layer);
    // Inputs of a tapped block for the rows of the last decode, [rows][n_embd].
    const float * tapped(int32_t layer) const;

    std::vector<int32_t> tokenize(const std::string & text, bool add_special, bool parse_special) const;
    std::string token_bytes(int32_t token, bool special) const;
    bool is_eog(int32_t token) const;

  private:
    void open(const TargetOptions & options, const LoadProgress & progress);
    template <typename Call> auto ask_vocabulary(const char * what, const Call & call) const;
    void check_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents) const;

    std::string path_;
    std::string architecture_;
    std::string kernels_reason_;
    std::unique_ptr<TargetBackend> backend_;
    const llama_vocab * vocab_ = nullptr;
    RowObserver * observer_ = nullptr;
    BackendShape shape_;
    int32_t n_vocab_ = 0;

    int32_t n_past_ = 0;
    std::vector<int32_t> tokens_; // the n_past_ committed tokens
    int32_t rows_ = 0;            // rows of the verify that waits for commit(); 0 = none
    int32_t token_[core::kMaxRows] = {};
    int32_t parent_[core::kMaxRows] = {};
};

} // namespace adaspark
