// Weight formats our kernels multiply, and their packed layout: panels of 16 columns, read once from front to back.
//
// A weight matrix has `n` columns (outputs) of `k` values (inputs). Panel p holds columns 16p .. 16p+15; a last panel
// that is not full is filled with zeros. Packing keeps the exact value of every weight. Inside a panel:
//   f32, f16, bf16  for each input: 16 values, one a column
//   the others      all scales, rounded up to 64 bytes, then all codes
//
// Scales, 16 columns each:
//   q8_0 q4_0 q5_0  for each 32 inputs: f16 d                  value = d * (code - offset)
//   q4_1 q5_1       for each 32 inputs: f16 d, f16 m           value = d * code + m
//   q4_k q5_k       for each 256 inputs: f16 d, f16 e, then for each 32 inputs of them: u8 s, u8 t
//                                                              value = d * s * code - e * t
//   q6_k            for each 256 inputs: f16 d, then for each 32 inputs of them: i8 s of the first 16, i8 s of the rest
//                                                              value = d * s * (code - 32)
// Codes, for each 32 inputs, as vectors u = 0..7 of 64 bytes: byte 4c + j of vector u is the code of input 4u + j of
// column c. q8_0 has them as they are. The others keep the low four bits of vectors 2v and 2v + 1 in the low and the
// high half of one stored vector v; then, for the fifth (and sixth) bit, one bit a byte: 8 bytes for each of the 8
// vectors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace adaspark::kernels {

enum class Format : int32_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };

inline constexpr int32_t kColumns = 16; // columns of a panel
inline constexpr int32_t kBlock = 32;   // inputs that share a scale; int8 activations have one scale for as many
inline constexpr int32_t kCodes = 64;   // bytes of a row of int8 activations in a block
inline constexpr int32_t kSuper = 256;  // inputs that share the scale of the scales of q4_k, q5_k and q6_k

// Whether activations are multiplied as int8 (one scale for each 32) rather than as F32.
inline constexpr bool is_quantized(Format format) { return format >= Format::q8_0; }
inline constexpr bool is_super(Format format) { return format >= Format::q4_k; }
inline constexpr bool has_minimum(Format format) {
    return format == Format::q4_1 || format == Format::q5_1 || format == Format::q4_k || format == Format::q5_k;
}
// Bits of a code; what a code is too large by.
inline constexpr int32_t code_bits(Format format) {
    return format == Format::q8_0                                                       ? 8
           : format == Format::q6_k                                                     ? 6
           : format == Format::q5_0 || format == Format::q5_1 || format == Format::q5_k ? 5
                                                                                        : 4;
}
inline constexpr int32_t code_offset(Format format) {
    return format == Format::q4_0 ? 8 : format == Format::q5_0 ? 16 : format == Format::q6_k ? 32 : 0;
}

// Inputs a column of this format has a multiple of, and what one unit of them takes in a panel.
inline constexpr int32_t unit_inputs(Format format) {
    return is_super(format) ? kSuper : is_quantized(format) ? 32 : 1;
}
inline constexpr int32_t scale_head(Format format) { // bytes before the scales of 32 inputs, once a super-block
    return !is_super(format) ? 0 : format == Format::q6_k ? 32 : 64;
}
inline constexpr int32_t scale_bytes(Format format) { // of 32 inputs
    return is_super(format) || !has_minimum(format) ? 32 : 64;
}
inline constexpr int32_t code_bytes(Format format) { // of 32 inputs
    return format == Format::q8_0 ? 512 : 256 + 64 * (code_bits(format) - 4);
}

const char * format_name(Format format);

// Bytes of the scales of one packed panel, rounded up to whole cache lines, of the whole panel, and of one column as
// GGUF stores it. `k` is a multiple of unit_inputs(format).
inline constexpr std::size_t panel_scales(Format format, int32_t k) {
    const int32_t unit = scale_head(format) + unit_inputs(format) / kBlock * scale_bytes(format);
    return is_quantized(format) ? static_cast<std::size_t>(k / unit_inputs(format) * unit + 63) / 64 * 64 : 0;
}
inline constexpr std::size_t panel_bytes(Format format, int32_t k) {
    return is_quantized(format) ? panel_scales(format, k) + static_cast<std::size_t>(k / kBlock) *
                                                                static_cast<std::size_t>(code_bytes(format))
                                : static_cast<std::size_t>(k) * kColumns * (format == Format::f32 ? 4 : 2);
}
std::size_t column_bytes(Format format, int32_t k);
inline int32_t panels(int32_t n) { return (n + kColumns - 1) / kColumns; }

// Pack `count` (1..16) columns that lie one after another in GGUF's layout.
void pack_panel(Format format, int32_t k, const uint8_t * columns, int32_t count, uint8_t * panel);

// The F32 values of column `column` of a packed matrix (an embedding's row).
void unpack_column(Format format, int32_t k, const uint8_t * packed, int32_t column, float * out);

float half_to_float(uint16_t h);
uint16_t float_to_half(float f); // to nearest, ties to even, as the hardware does

} // namespace adaspark::kernels
