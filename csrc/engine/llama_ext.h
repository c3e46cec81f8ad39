// The calls of llama.cpp's staging header `llama-ext.h`, kept behind this one file: they may change with any release.
#pragma once

#include <cstdint>

struct llama_context;

namespace adaspark {

// Whether the input of target block `layer` (0-based) is kept for every row of the following decodes.
void taps_enable(llama_context * ctx, int32_t layer, bool on);

// Inputs of block `layer` for the rows of the last decode, [rows][n_embd]; null when not enabled.
const float * taps_rows(llama_context * ctx, int32_t layer);

// Let the drafter return its confidence with each output row.
void confidence_enable(llama_context * ctx);

// Confidence rows of the last decode, [rows][n_embd], the value repeated along the row; null when there is none.
const float * confidence_rows(llama_context * ctx);

} // namespace adaspark
