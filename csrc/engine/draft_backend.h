// What runs a drafter's forwards: llama.cpp, or our own graph. Drafter follows the target and keeps positions.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace adaspark {

namespace graph {
struct ModelSpec;
}

class Target;
struct Block;
struct DrafterInfo;
using LoadProgress = std::function<bool(float)>;

struct DraftBackendOptions {
    int32_t n_ctx = 0;     // positions the cache holds, the block's rows included
    int32_t n_batch = 0;   // rows of one injection, at most
    int32_t n_threads = 0; // on a target of llama.cpp; our own graph uses its target's threads
    int32_t n_gpu_layers = -1;
};

class DraftBackend {
  public:
    explicit DraftBackend(int32_t n_batch) : n_batch_(n_batch) {}
    virtual ~DraftBackend() = default;
    DraftBackend(const DraftBackend &) = delete;
    DraftBackend & operator=(const DraftBackend &) = delete;

    virtual std::string kernels() const = 0;     // "own/<instruction set>", "ggml/<device>" or "llama"
    int32_t n_batch() const { return n_batch_; } // rows of one injection, at most
    // Rows of the target's last decode were committed; their features are to be injected later. True: they were kept
    // here, as rows `at`, `at` + 1, ... of those that wait. False: the caller keeps them.
    virtual bool keep(std::span<const int32_t> /*rows*/, int32_t /*at*/) { return false; }
    // Put features of `n` rows into the cache at positions `position`, `position` + 1, ...: the waiting rows from
    // `first` on where keep() kept them, else `features` [n][tapped layers x n_embd].
    virtual void inject(const float * features, int32_t first, int32_t n, int32_t position) = 0;
    // Run the block [anchor, mask, ...] of `rows` rows at `position`; fill the last `n_draft` of them into `out`, or
    // the first of these as Drafter::draft() says of `enough`. The cache is left as it was.
    virtual void draft(int32_t anchor, int32_t rows, int32_t n_draft, int32_t position, float enough, Block & out) = 0;
    // Positions from `n_past` on are gone; those before `first` are.
    virtual void drop(int32_t n_past) = 0;
    virtual void forget(int32_t first) = 0;
    virtual void clear() = 0;
    bool broken() const { return broken_; } // stopped in the middle of work: may neither be used nor freed

  protected:
    bool broken_ = false;

  private:
    int32_t n_batch_;
};

// What runs the drafter of this target; `kernels` as in DrafterOptions, `options.n_batch` is found here. "auto": what
// the target runs on; with a target of llama.cpp on the CPU our own graph, where it can. Throws DrafterError when what
// was asked for cannot be, OutOfMemoryError.
std::unique_ptr<DraftBackend> draft_backend(const std::string & path, Target & target, const DrafterInfo & info,
                                            const std::string & kernels, DraftBackendOptions options,
                                            const LoadProgress & progress);

// The target must run on llama.cpp.
std::unique_ptr<DraftBackend> llama_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                          const DraftBackendOptions & options, const LoadProgress & progress);

// Throws DrafterError when the graph in ggml's operations cannot run the file. The target must run on it.
std::unique_ptr<DraftBackend> ggml_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                         const DraftBackendOptions & options, const LoadProgress & progress);

// Why our own graph cannot run this drafter of a target on it or on llama.cpp, in words; empty when it can, and `spec`
// is filled. Throws ModelError on a key of the wrong type.
std::string own_draft_refusal(const std::string & path, const Target & target, const DrafterInfo & info,
                              const DraftBackendOptions & options, graph::ModelSpec & spec);
std::unique_ptr<DraftBackend> own_draft(const std::string & path, Target & target, const DrafterInfo & info,
                                        graph::ModelSpec spec, const DraftBackendOptions & options,
                                        const LoadProgress & progress);

} // namespace adaspark
