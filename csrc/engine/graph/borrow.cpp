// What a drafter takes of a target that our graph need not know: two tables, read as they are. llama.cpp does the same
// (models/dflash.cpp): whatever the target's own forward does to its embedding (gemma, granite: a scale) or its logits
// (a bias, a scale, soft capping), a drafter's forward does not. Only the scale that comes with an NVFP4 head it takes
// too: our kernels do not multiply that format.
#include "engine/error.h"
#include "engine/gguf_file.h"
#include "engine/graph/spec.h"
#include "kernels/kernels.h"

#include <ggml.h>
#include <gguf.h>

namespace adaspark::graph {

namespace {

// The tensor in whichever part of the file has it; one without a name where none has.
TensorRef find(const std::vector<GgufFile> & parts, const char * name) {
    for (const GgufFile & part : parts) {
        const int64_t id = gguf_find_tensor(part.context(), name);
        if (id < 0) {
            continue;
        }
        const std::vector<int64_t> shape = part.tensor_shape(name);
        return {name,
                shape[0],
                shape[1],
                shape[2] * shape[3],
                static_cast<int32_t>(gguf_get_tensor_type(part.context(), id)),
                gguf_get_data_offset(part.context()) + gguf_get_tensor_offset(part.context(), id),
                gguf_get_tensor_size(part.context(), id),
                part.path()};
    }
    return {};
}

// Why it cannot serve, in words.
std::string fault(const TensorRef & t, int64_t k, int64_t n) {
    if (!t) {
        return "no embedding to borrow";
    }
    if (t.k != k || t.n != n || t.experts != 1) {
        return "the shape of the target's '" + t.name + "'";
    }
    return multiplied(t.type) ? ""
                              : std::string("format ") + ggml_type_name(static_cast<ggml_type>(t.type)) +
                                    " of the target's '" + t.name + "'";
}

} // namespace

std::string borrow_tables(const std::string & target_path, int64_t n_vocab, ModelSpec & drafter) {
    if (drafter.embedding) { // the head too, where there is no other
        return "";
    }
    std::vector<GgufFile> parts;
    parts.emplace_back(target_path);
    const std::vector<std::string> paths = parts.front().parts();
    for (std::size_t i = 1; i < paths.size(); ++i) {
        parts.emplace_back(paths[i], /*later_part=*/true);
    }
    TensorRef embedding = find(parts, "token_embd.weight");
    std::string why = fault(embedding, drafter.n_embd, n_vocab);
    TensorRef head; // none: the embedding is the head
    if (why.empty() && !drafter.output) {
        head = find(parts, "output.weight");
        why = head ? fault(head, drafter.n_embd, n_vocab) : "";
    }
    if (why.empty()) {
        drafter.embedding = std::move(embedding);
        if (!drafter.output) {
            drafter.output = std::move(head);
        }
    }
    return why;
}

} // namespace adaspark::graph
