// A target on our own graph in ggml's operations: any device ggml knows, all of the model on it.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/ggml_graph/layers.h"
#include "engine/target_backend.h"

namespace adaspark::ggml_graph {

class GgmlTarget final : public TargetBackend {
  public:
    // `file` and `options` have passed ggml_target_refusal().
    GgmlTarget(const GgufFile & file, graph::ModelSpec spec, const TargetOptions & options,
               const LoadProgress & progress);
    ~GgmlTarget() override;
    GgmlTarget(const GgmlTarget &) = delete;
    GgmlTarget & operator=(const GgmlTarget &) = delete;

    std::string kernels() const override { return "ggml/" + device_->name(); }
    std::string description() const override { return description_; }
    llama_model * model() const override { return model_; }

    void prefill(std::span<const int32_t> tokens, int32_t n_past, bool last) override;
    std::span<float> last_logits() override { return row_logits(0); }
    void verify(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past) override;
    std::span<float> row_logits(int32_t row) override;
    int32_t row_pick(int32_t row) const override { return picks_[static_cast<std::size_t>(row)]; }
    void commit(std::span<const int32_t> path, int32_t n_past) override;
    int32_t rollback_point(int32_t n_past) const override { return conv_ ? ConvCache::rollback_point(n_past) : n_past; }
    void rollback(int32_t n_past) override;
    void clear() override { used_ = 0; }
    int32_t n_cells(int32_t /*n_past*/) override { return used_; }
    double setup_us() const override { return device_->setup_us(); }
    const DeviceTimes * device_times() const override { return &device_->spent(); }
    double replay_us(int32_t n) override;
    void tap(int32_t layer) override;
    const float * tapped(int32_t layer) const override;

    // For a drafter on the same device.
    Device & device() const { return *device_; }
    const Model & weights() const { return *weights_; }
    ggml_type cache_type() const { return cache_->type(); }
    bool flash() const { return flash_; }
    // Rows of the last decode at the input of a tapped block, [n_embd][rows], in the device's memory.
    ggml_tensor * features(ggml_context * ctx, int32_t layer) const;
    int32_t max_features() const { return static_cast<int32_t>(features_->ne[1]); } // rows

  private:
    struct Key {
        int32_t rows, window;
        bool prefill;
        auto operator<=>(const Key &) const = default;
    };
    struct Forward {
        std::unique_ptr<Program> program;
        std::unique_ptr<RowInputs> rows;
        std::unique_ptr<ConvInputs> conv; // of a model with short convolutions
        ggml_tensor * tokens = nullptr;   // I32 [rows]
        ggml_tensor * last = nullptr;     // I32 [1], prefill: the row whose logits are made
        ggml_tensor * logits = nullptr;   // F32 [n_vocab][rows, or 1 for a prefill]
        ggml_tensor * picks = nullptr;    // I32: their argmax
    };
    Forward & forward(int32_t rows, int32_t end, bool prefill);
    void build(Forward & f, const Key & key) const;
    void forget_oldest();
    // Work on the device; when it fails there the target is broken.
    template <typename F> void guarded(F && work) {
        try {
            work();
        } catch (const BackendError &) {
            broken_ = true;
            throw;
        }
    }
    void run(std::span<const int32_t> tokens, std::span<const int32_t> parents, int32_t n_past, bool prefill);

    graph::ModelSpec spec_;
    std::string description_;
    bool flash_ = false;
    llama_model * model_ = nullptr; // vocabulary only
    std::unique_ptr<Device> device_;
    std::unique_ptr<Model> weights_;
    std::unique_ptr<Cache> cache_;
    std::unique_ptr<ConvCache> conv_; // of a model with short convolutions
    std::map<Key, Forward> forwards_;
    const Forward * last_ = nullptr; // the last decode
    std::vector<int32_t> token_, position_, parent_, last_row_;
    std::vector<int32_t> picks_;             // of the last verify's rows
    std::vector<std::vector<float>> logits_; // rows of the last decode that were asked for
    std::vector<int32_t> taps_;
    Context features_ctx_;
    Buffer features_data_;
    ggml_tensor * features_ = nullptr;               // F32 [n_embd][rows][taps]
    mutable std::vector<std::vector<float>> tapped_; // copies for whoever asks
    int32_t used_ = 0;                               // slots that hold committed or waiting rows
};

// The first operation of a forward that the device cannot run on this model; empty when it runs all.
std::string forward_refusal(Device & device, const graph::ModelSpec & spec, ggml_type cache_type, bool flash);

// Why this graph cannot run the file with these options, in words; empty when it can, and `spec` is filled.
std::string ggml_target_refusal(const GgufFile & file, const TargetOptions & options, graph::ModelSpec & spec);

} // namespace adaspark::ggml_graph
