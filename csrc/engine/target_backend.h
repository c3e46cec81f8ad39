// What runs a target's forwards: llama.cpp, or a graph of our own. Target checks every argument and keeps the committed
// text; a backend computes rows and holds their keys and values.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

struct llama_context;
struct llama_model;

namespace adaspark {

class GgufFile;
struct TargetOptions;
using LoadProgress = std::function<bool(float)>;

struct BackendShape {
    int32_t n_ctx = 0;   // tokens
    int32_t n_batch = 0; // tokens of one prefill()
    int32_t n_embd = 0;  // hidden width
    int32_t n_layer = 0; // blocks
    int32_t n_threads = 0;
    int32_t max_rows = 0;  // widest verify
    int32_t max_chain = 0; // drafts of a chain
    bool tree = true;      // false: chains only
};

// Microseconds spent inside a device's calls: copies to and from it asked for, graphs started, waiting for it.
struct DeviceTimes {
    double copy_us = 0.0;
    double submit_us = 0.0;
    double wait_us = 0.0;
};

class TargetBackend {
  public:
    virtual ~TargetBackend() = default;

    const BackendShape & shape() const { return shape_; }
    virtual std::string kernels() const = 0;     // "llama", "own/<instruction set>", "ggml/<device>"
    virtual std::string description() const = 0; // of the model, for people
    virtual llama_model * model() const = 0;     // for its vocabulary and texts; weights only under "llama"
    virtual llama_context * context() const { return nullptr; } // under "llama"

    // `tokens` (at most n_batch) are appended to `n_past` committed ones. `last`: their last row's logits are wanted.
    virtual void prefill(std::span<const int32_t> tokens, int32_t n_past, bool last) = 0;
    virtual std::span<float> last_logits() = 0;
    // Rows of a checked tree behind `n_past` committed tokens.
    virtual void verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) = 0;
    virtual std::span<float> row_logits(int32_t row) = 0;
    // The argmax of that row where the backend found it without moving the logits; else -1.
    virtual int32_t row_pick(int32_t /*row*/) const { return -1; }
    // Keep a checked path of the last verify.
    virtual void commit(std::span<const int32_t> path, int32_t n_past) = 0;
    // The last position no later than `n_past` that rollback() can go to; the tokens behind it must run again.
    virtual int32_t rollback_point(int32_t n_past) const { return n_past; }
    virtual void rollback(int32_t n_past) = 0;
    virtual void clear() = 0;
    // Cells in use; `n_past` when nothing leaked.
    virtual int32_t n_cells(int32_t n_past) = 0;

    // Microseconds this backend, and a drafter on it, have spent so far on what only the first rounds of a kind pay.
    virtual double setup_us() const { return 0.0; }

    // So far, of this backend and a drafter on it; null where no such calls are told apart.
    virtual const DeviceTimes * device_times() const { return nullptr; }
    // Microseconds of one run of the last forward's graph, of `n` started one behind the other without waiting: what
    // the device itself takes. Not a number where there is no such graph.
    virtual double replay_us(int32_t /*n*/) { return NAN; }

    // Keep the input rows of a block from now on; those of the last decode, [rows][n_embd].
    virtual void tap(int32_t layer) = 0;
    virtual const float * tapped(int32_t layer) const = 0;
    // After tap(): finds out whether the backend can. Throws DrafterError, and takes the taps back, when it cannot.
    virtual void tap_check() {}

    bool broken() const { return broken_; } // stopped in the middle of work: may neither be used nor freed

  protected:
    BackendShape shape_;
    bool broken_ = false;
};

// Throws std::invalid_argument on a cache type or flash-attention mode that is none.
void llama_options_check(const TargetOptions & options);

std::unique_ptr<TargetBackend> llama_target(const GgufFile & file, const TargetOptions & options,
                                            const LoadProgress & progress);

} // namespace adaspark
