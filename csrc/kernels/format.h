// Weight formats our kernels multiply, and their packed layout: panels of 8 columns, read once from front to back.
//
// A weight matrix has `n` columns (outputs) of `k` values (inputs). Panel p holds columns 8p .. 8p+7; a last panel that
// is not full is filled with zeros. Packing keeps the exact value of every weight. Inside a panel:
//   f32, f16, bf16  for each input: 8 values, one a column
//   q4_0            for each 32 inputs: 8 f16 scales, then 4 x 32 bytes; byte 4c + j of vector v holds inputs 8v + j
//   (low
//                   nibble) and 8v + 4 + j (high nibble) of column c
//   q4_1            the same with 8 f16 minimums behind the scales
//   q8_0            for each 32 inputs: 8 f16 scales, then 8 x 32 bytes; byte 4c + j of vector v is input 4v + j of
//   column c
#pragma once

#include <cstddef>
#include <cstdint>

namespace adaspark::kernels {

enum class Format : int32_t { f32, f16, bf16, q8_0, q4_0, q4_1 };

inline constexpr int32_t kColumns = 8; // columns of a panel
inline constexpr int32_t kBlock = 32;  // inputs that share a scale; int8 activations have one scale for as many

// Whether activations are multiplied as int8 (one scale for each 32) rather than as F32.
inline constexpr bool is_quantized(Format format) { return format >= Format::q8_0; }

const char * format_name(Format format);

// Bytes of one column as GGUF stores it, and of one packed panel. `k` is a multiple of 32 for quantised formats.
std::size_t column_bytes(Format format, int32_t k);
std::size_t panel_bytes(Format format, int32_t k);
inline int32_t panels(int32_t n) { return (n + kColumns - 1) / kColumns; }

// Pack `count` (1..8) columns that lie one after another in GGUF's layout.
void pack_panel(Format format, int32_t k, const uint8_t * columns, int32_t count, uint8_t * panel);

// The F32 values of column `column` of a packed matrix (an embedding's row).
void unpack_column(Format format, int32_t k, const uint8_t * packed, int32_t column, float * out);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f); // to nearest, ties to even, as the hardware does

} // namespace adaspark::kernels
