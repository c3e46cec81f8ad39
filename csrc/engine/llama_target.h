// A target on stock llama.cpp: any decoder it can load, and the reference our own graph is compared with.
#pragma once

#include <memory>
#include <vector>

#include "core/tree.h"
#include "engine/target_backend.h"
#include "engine/threads.h"

struct llama_batch;

namespace adaspark {

class LlamaTarget final : public TargetBackend {
  public:
    LlamaTarget(const GgufFile & file, const TargetOptions & options, const LoadProgress & progress);
    ~LlamaTarget() override;
    LlamaTarget(const LlamaTarget &) = delete;
    LlamaTarget & operator=(const LlamaTarget &) = delete;

    std::string kernels() const override { return "llama"; }
    std::string description() const override;
    llama_model * model() const override { return model_; }
    llama_context * context() const override { return ctx_; }
    ThreadPool & threads() const { return *threads_; }
    bool offloaded() const { return offloaded_; } // layers on a GPU
    bool f32_cache() const { return f32_cache_; }

    void prefill(std::span<const int32_t> tokens, int32_t n_past, bool last) override;
    std::span<float> last_logits() override;
    void verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) override;
    std::span<float> row_logits(int32_t row) override;
    void commit(std::span<const int32_t> path, int32_t n_past) override;
    void rollback(int32_t n_past) override;
    void clear() override;
    int32_t n_cells(int32_t n_past) override;
    void tap(int32_t layer) override;
    const float * tapped(int32_t layer) const override;
    void tap_check() override;

  private:
    void load(const TargetOptions & options, const LoadProgress & progress);
    void open_context(const TargetOptions & options);
    void check_forward();
    void try_forward();
    void decode(const char * what, int32_t n_past);
    void labels_assign(std::span<const int32_t> parents);
    void measure_state();
    void label_sync(int32_t label, int32_t n_past);

    std::string path_;
    std::string architecture_;
    std::unique_ptr<ThreadPool> threads_;
    llama_model * model_ = nullptr;
    llama_context * ctx_ = nullptr;
    std::unique_ptr<llama_batch> batch_;
    std::size_t n_vocab_ = 0;
    bool offloaded_ = false;
    bool f32_cache_ = false;
    std::vector<int32_t> taps_; // tapped blocks

    // A leaf of the tree is a sequence label of llama.cpp; row i carries the labels [label_lo_[i], label_hi_[i]) of the
    // leaves below it. The committed cells carry label s up to position labelled_[s] only; the rest is added when a
    // tree needs that many leaves, because each label costs a walk over the whole cache.
    std::vector<int32_t> labelled_;
    int32_t rows_ = 0;
    int32_t labels_ = 0;
    int32_t label_lo_[core::kMaxRows] = {};
    int32_t label_hi_[core::kMaxRows] = {};
    int32_t parent_[core::kMaxRows] = {};

    std::size_t state_header_ = 0;   // bytes of a sequence's saved state without its cells
    std::size_t state_per_cell_ = 0; // bytes one cell adds; 0 = not measured yet
};

} // namespace adaspark
