// A target on our own graph and CPU kernels: weights packed once, no llama.cpp context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/graph/forward.h"
#include "engine/target_backend.h"

namespace adaspark {

class OwnTarget final : public TargetBackend {
  public:
    OwnTarget(const GgufFile & file, graph::ModelSpec spec, const TargetOptions & options,
              const LoadProgress & progress);
    ~OwnTarget() override;
    OwnTarget(const OwnTarget &) = delete;
    OwnTarget & operator=(const OwnTarget &) = delete;

    std::string kernels() const override;
    std::string description() const override { return description_; }
    llama_model * model() const override { return model_; }
    const graph::Weights & weights() const { return *weights_; } // a drafter may borrow embedding and head
    graph::Workers & workers() const { return *workers_; }
    kernels::Cache cache_type() const { return cache_->type(); }

    void prefill(std::span<const int32_t> tokens, int32_t n_past, bool last) override;
    std::span<float> last_logits() override { return forward_->logits(0); }
    void verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) override;
    std::span<float> row_logits(int32_t row) override { return forward_->logits(row); }
    int32_t row_pick(int32_t row) const override { return forward_->pick(row); }
    void commit(std::span<const int32_t> path, int32_t n_past) override;
    int32_t rollback_point(int32_t n_past) const override;
    void rollback(int32_t n_past) override;
    void clear() override { rollback(0); }
    int32_t n_cells(int32_t /*n_past*/) override { return used_; }
    void tap(int32_t layer) override;
    const float * tapped(int32_t layer) const override;

  private:
    graph::ModelSpec spec_;
    std::string description_;
    llama_model * model_ = nullptr; // vocabulary only
    std::unique_ptr<graph::Workers> workers_;
    std::unique_ptr<graph::Weights> weights_;
    std::unique_ptr<graph::KvCache> cache_;
    std::unique_ptr<graph::ConvWindows> windows_; // of a model with short convolutions
    std::unique_ptr<graph::Forward> forward_;
    graph::Rows rows_;
    std::vector<int32_t> taps_;
    int32_t used_ = 0; // slots that hold committed or waiting rows
};

// Why the own graph cannot run this file with these options, in words; empty when it can, and `spec` is filled.
std::string own_target_refusal(const GgufFile & file, const TargetOptions & options, graph::ModelSpec & spec);

std::unique_ptr<TargetBackend> own_target(const GgufFile & file, const graph::ModelSpec & spec,
                                          const TargetOptions & options, const LoadProgress & progress);

} // namespace adaspark
