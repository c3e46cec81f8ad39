#include "engine/llama_ext.h"

#include <llama-ext.h>

namespace adaspark {

void taps_enable(llama_context * ctx, int32_t layer, bool on) {
    llama_set_embeddings_layer_inp(ctx, static_cast<uint32_t>(layer), on);
}

const float * taps_rows(llama_context * ctx, int32_t layer) {
    return llama_get_embeddings_layer_inp(ctx, static_cast<uint32_t>(layer));
}

void confidence_enable(llama_context * ctx) { llama_set_embeddings_nextn(ctx, true, /*masked=*/true); }

const float * confidence_rows(llama_context * ctx) { return llama_get_embeddings_nextn(ctx); }

} // namespace adaspark
