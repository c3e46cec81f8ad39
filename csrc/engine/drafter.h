// A DSpark block drafter (paper section 2.1): follows its target's committed rows, drafts a block in one forward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/draft_backend.h"
#include "engine/target.h"

namespace adaspark {

struct DrafterOptions {
    int32_t n_ctx = 0;         // tokens the drafter remembers; 0 = the target's context. A smaller one slides
    int32_t n_threads = 0;     // 0 = the target's
    int32_t n_gpu_layers = -1; // layers on the GPU; -1 = all
    // What runs the forwards. "own": our graph and kernels, of a target on them or on llama.cpp, both on the CPU.
    // "llama": llama.cpp, of a target there. "auto": what the target runs on, but "own" where it can be.
    std::string kernels = "auto";
};

// What a drafter file says of itself, checked against the target before any weight is loaded.
struct DrafterInfo {
    int32_t block_size = 0;             // rows of the trained block
    int32_t n_draft = 0;                // positions a full block proposes (B)
    int32_t mask_token = -1;            // fills the block behind the anchor
    bool sample_from_anchor = true;     // the anchor's slot proposes the first position
    bool has_confidence = false;        // confidence head
    bool causal = false;                // attention inside the block
    std::vector<int32_t> target_layers; // 0-based target blocks whose input is tapped
    std::vector<int32_t> draft_vocab;   // target ids of a reduced vocabulary; empty = the whole one
    std::vector<std::string> warnings;  // documented defaults that were taken
};

// Reads and checks a drafter's metadata. Throws DrafterError naming the key and both values.
DrafterInfo drafter_check(const std::string & path, const Target & target);

// One block: position i proposes ids[i * K + k], k = 0 the pick.
struct Block {
    static constexpr int32_t kTopK = 8; // K: candidates a position keeps
    int32_t positions = 0;
    std::vector<int32_t> ids;      // [positions][K]; -1 where a reduced vocabulary has no more
    std::vector<float> values;     // [positions][K]; logits with the Markov bias along the picks, descending
    std::vector<float> confidence; // [positions]; P(pick survives | those before did)

    void resize(int32_t n) {
        positions = n;
        ids.resize(static_cast<std::size_t>(n) * kTopK);
        values.resize(ids.size());
        confidence.resize(static_cast<std::size_t>(n));
    }
};

class Drafter final : public RowObserver {
  public:
    // Throws DrafterError, OutOfMemoryError. The target must outlive the drafter; one drafter at a time.
    Drafter(const std::string & path, Target & target, const DrafterOptions & options, const LoadProgress & progress);
    ~Drafter() override;
    Drafter(const Drafter &) = delete;
    Drafter & operator=(const Drafter &) = delete;

    const std::string & path() const { return path_; }
    const DrafterInfo & info() const { return info_; }
    std::string kernels() const { return backend_->kernels(); } // "own/<instruction set>", "ggml/<device>" or "llama"
    // Positions [0, n_past()) of the committed text the drafter knows, injected or kept for the next injection.
    int32_t n_past() const { return n_injected_ + n_pending_; }

    // Draft `n_draft` (1..B) positions after the committed text, which the drafter must know whole; fewer, but two at
    // least, where the confidences of the first ones multiply to less than `enough` (a backend that gains nothing by
    // it ignores this). The result is valid until the next call.
    const Block & draft(int32_t anchor, int32_t n_draft, float enough = 0.0F);
    // Put what is pending into the drafter's cache now (draft() does it by itself).
    void inject();

    // While false, the target's rows are not kept: a plain request costs nothing.
    void follow(bool on) { following_ = on; }

    void rows_committed(int32_t first, std::span<const int32_t> rows) override;
    void rows_dropped(int32_t n_past) override;

  private:
    void keep(std::span<const int32_t> rows);
    void make_room(int32_t rows);

    std::string path_;
    Target & target_;
    DrafterInfo info_;
    std::unique_ptr<DraftBackend> backend_;
    bool following_ = true;

    int32_t n_ctx_ = 0;          // cells of the drafter's cache
    int32_t n_batch_ = 0;        // rows one injection takes
    int32_t n_first_ = 0;        // oldest position still in the cache (a smaller cache slides)
    int32_t n_injected_ = 0;     // positions [n_first_, n_injected_) are in the cache
    int32_t n_pending_ = 0;      // positions kept in pending_ after those
    std::size_t width_ = 0;      // floats of one row's features: tapped layers x n_embd
    std::vector<float> pending_; // [n_pending_][width_]; empty where the backend keeps them
    Block block_;
};

} // namespace adaspark
