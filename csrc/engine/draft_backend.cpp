// What runs a drafter's forwards.
#include "engine/draft_backend.h"

#include "engine/drafter.h"
#include "engine/error.h"
#include "engine/ggml_graph/ggml_target.h"
#include "engine/graph/forward.h"

#include <algorithm>

namespace adaspark {

namespace {

constexpr int32_t kInjectedRows = 256; // at once, where there is no narrower limit

// Our graph's drafter, or none and in `why` the reason in words.
std::unique_ptr<DraftBackend> try_own(const std::string & path, Target & target, const DrafterInfo & info,
                                      DraftBackendOptions options, const LoadProgress & progress, std::string & why) {
    options.n_batch = std::min(graph::kMaxRows, options.n_ctx);
    graph::ModelSpec spec;
    try {
        why = own_draft_refusal(path, target, info, options, spec);
    } catch (const ModelError & error) { // a key of the wrong type
        why = error.what();
    }
    return why.empty() ? own_draft(path, target, info, std::move(spec), options, progress) : nullptr;
}

} // namespace

std::unique_ptr<DraftBackend> draft_backend(const std::string & path, Target & target, const DrafterInfo & info,
                                            const std::string & kernels, DraftBackendOptions options,
                                            const LoadProgress & progress) {
    const bool llama = target.backend().context() != nullptr;
    if (!llama && kernels != "auto" && !target.kernels().starts_with(kernels + "/")) {
        throw DrafterError(path + ": a target on the kernels '" + target.kernels() +
                           "' has its drafter there, not on '" + kernels + "'. Load the target with --kernels llama");
    }
    options.n_batch = std::min(kInjectedRows, options.n_ctx);
    if (dynamic_cast<ggml_graph::GgmlTarget *>(&target.backend()) != nullptr) {
        return ggml_draft(path, target, info, options, progress);
    }
    const bool either = llama && kernels == "auto";
    std::string why;
    if (!llama || kernels != "llama") {
        try {
            if (auto own = try_own(path, target, info, options, progress, why)) {
                return own;
            }
        } catch (const OutOfMemoryError &) {
            if (!either) { // llama.cpp's drafter reads its target's tables where they are
                throw;
            }
        } catch (const BackendError &) { // no further threads
            if (!either) {
                throw;
            }
        }
        if (!either) {
            throw DrafterError(path + ": our own graph cannot run this drafter: " + why +
                               (llama ? "" : ". Use --kernels llama"));
        }
    }
    return llama_draft(path, target, info, options, progress);
}

} // namespace adaspark
