#include "kernels/format.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace adaspark::kernels {

namespace {

uint16_t read16(const uint8_t * at) {
    uint16_t v = 0;
    std::memcpy(&v, at, sizeof(v));
    return v;
}

std::size_t value_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

float float_value(Format format, const uint8_t * at) {
    float out = 0.0F;
    if (format == Format::f32) {
        std::memcpy(&out, at, sizeof(out));
    } else if (format == Format::f16) {
        out = half_to_float(read16(at));
    } else {
        out = std::bit_cast<float>(static_cast<uint32_t>(read16(at)) << 16);
    }
    return out;
}

// ---- GGUF's blocks -------------------------------------------------------------------------------------------------

// Bytes of one unit (32 or 256 inputs) as GGUF stores it.
std::size_t unit_bytes(Format format) {
    switch (format) {
    case Format::q4_0:
        return 18;
    case Format::q4_1:
        return 20;
    case Format::q5_0:
        return 22;
    case Format::q5_1:
        return 24;
    case Format::q8_0:
        return 34;
    case Format::q4_k:
        return 144;
    case Format::q5_k:
        return 176;
    default:
        return 210; // q6_k
    }
}

int32_t bit(const uint8_t * bits, int32_t i) { return bits[i / 8] >> (i % 8) & 1; }
int32_t nibble(const uint8_t * codes, int32_t i, bool high) { return high ? codes[i] >> 4 : codes[i] & 15; }

// Code of input i of a unit.
template <Format F> uint8_t gguf_code(const uint8_t * unit, int32_t i) {
    const int32_t half = i % 32; // inputs of a 32: the first 16 in the low, the rest in the high nibbles
    const int32_t pair = i / 64; // K-quants: 64 inputs in 32 bytes, the first 32 in the low nibbles
    const bool high = i / 32 % 2 != 0;
    int32_t code = 0;
    switch (F) {
    case Format::q8_0:
        code = unit[2 + i];
        break;
    case Format::q4_0:
        code = nibble(unit + 2, half % 16, half >= 16);
        break;
    case Format::q4_1:
        code = nibble(unit + 4, half % 16, half >= 16);
        break;
    case Format::q5_0:
        code = nibble(unit + 6, half % 16, half >= 16) | bit(unit + 2, half) << 4;
        break;
    case Format::q5_1:
        code = nibble(unit + 8, half % 16, half >= 16) | bit(unit + 4, half) << 4;
        break;
    case Format::q4_k:
        code = nibble(unit + 16, 32 * pair + half, high);
        break;
    case Format::q5_k:
        code = nibble(unit + 48, 32 * pair + half, high) | (unit[16 + half] >> (i / 32) & 1) << 4;
        break;
    default: { // q6_k: 128 inputs in 64 bytes of low bits and 32 bytes of high ones
        const int32_t at = i % 128;
        code = nibble(unit + 64 * (i / 128), at % 64, at >= 64) |
               (unit[128 + 32 * (i / 128) + half] >> (at / 32 * 2) & 3) << 4;
    }
    }
    return static_cast<uint8_t>(code);
}

// Scale (first) and minimum's scale (second) of 32 inputs of a q4_k or q5_k unit: 6 bits each, packed in 12 bytes.
void six_bit_scales(const uint8_t * packed, int32_t j, uint8_t * scale, uint8_t * minimum) {
    if (j < 4) {
        *scale = packed[j] & 63;
        *minimum = packed[j + 4] & 63;
    } else {
        *scale = static_cast<uint8_t>((packed[j + 4] & 15) | packed[j - 4] >> 6 << 4);
        *minimum = static_cast<uint8_t>(packed[j + 4] >> 4 | packed[j] >> 6 << 4);
    }
}

// ---- panels --------------------------------------------------------------------------------------------------------

std::size_t scale_unit(Format format) { // bytes of a unit's scales in a panel
    return static_cast<std::size_t>(scale_head(format) + unit_inputs(format) / kBlock * scale_bytes(format));
}

void pack_scales(Format format, const uint8_t * unit, int32_t c, uint8_t * out) {
    if (!is_super(format)) {
        std::memcpy(out + 2 * c, unit, 2);
        if (has_minimum(format)) {
            std::memcpy(out + 32 + 2 * c, unit + 2, 2);
        }
        return;
    }
    const bool six = format == Format::q6_k;
    std::memcpy(out + 2 * c, unit + (six ? 208 : 0), 2);
    if (!six) {
        std::memcpy(out + 32 + 2 * c, unit + 2, 2);
    }
    for (int32_t j = 0; j < kSuper / kBlock; ++j) {
        uint8_t * at = out + scale_head(format) + 32 * j + c;
        if (six) {
            at[0] = unit[192 + 2 * j];
            at[16] = unit[193 + 2 * j];
        } else {
            six_bit_scales(unit + 4, j, at, at + 16);
        }
    }
}

template <Format F> void put_code(uint8_t * block, int32_t i, int32_t c, uint8_t code) {
    const int32_t vector = i / 4;
    const int32_t lane = 4 * c + i % 4;
    if constexpr (F == Format::q8_0) {
        block[64 * vector + lane] = code;
        return;
    }
    uint8_t & low = block[64 * (vector / 2) + lane];
    low = static_cast<uint8_t>(low | (code & 15) << (vector % 2 * 4));
    for (int32_t extra = 0; extra < code_bits(F) - 4; ++extra) {
        uint8_t & bits = block[256 + 64 * extra + 8 * vector + lane / 8];
        bits = static_cast<uint8_t>(bits | (code >> (4 + extra) & 1) << (lane % 8));
    }
}

uint8_t get_code(Format format, const uint8_t * block, int32_t i, int32_t c) {
    const int32_t vector = i / 4;
    const int32_t lane = 4 * c + i % 4;
    if (format == Format::q8_0) {
        return block[64 * vector + lane];
    }
    int32_t code = nibble(block, 64 * (vector / 2) + lane, vector % 2 != 0);
    for (int32_t extra = 0; extra < code_bits(format) - 4; ++extra) {
        code |= bit(block + 256 + 64 * extra + 8 * vector, lane) << (4 + extra);
    }
    return static_cast<uint8_t>(code);
}

// A template, so that packing a model of many gigabytes asks for the format once and not at every weight.
template <Format F> void pack_units(int32_t k, const uint8_t * columns, int32_t count, uint8_t * panel) {
    constexpr int32_t kInputs = unit_inputs(F);
    uint8_t * codes = panel + panel_scales(F, k);
    for (int32_t c = 0; c < count; ++c) {
        const uint8_t * unit = columns + static_cast<std::size_t>(c) * column_bytes(F, k);
        for (int32_t u = 0; u < k / kInputs; ++u, unit += unit_bytes(F)) {
            pack_scales(F, unit, c, panel + static_cast<std::size_t>(u) * scale_unit(F));
            for (int32_t i = 0; i < kInputs; ++i) {
                const int32_t block = (u * kInputs + i) / kBlock;
                put_code<F>(codes + static_cast<std::ptrdiff_t>(block) * code_bytes(F), i % kBlock, c,
                            gguf_code<F>(unit, i));
            }
        }
    }
}

} // namespace

const char * format_name(Format format) {
    static constexpr const char * kNames[] = {"F32",  "F16",  "BF16", "Q8_0", "Q4_0", "Q4_1",
                                              "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};
    return kNames[static_cast<int32_t>(format)];
}

std::size_t column_bytes(Format format, int32_t k) {
    return static_cast<std::size_t>(k / unit_inputs(format)) *
           (is_quantized(format) ? unit_bytes(format) : value_bytes(format));
}

void pack_panel(Format format, int32_t k, const uint8_t * columns, int32_t count, uint8_t * panel) {
    std::memset(panel, 0, panel_bytes(format, k));
    const std::size_t stride = column_bytes(format, k);
    if (!is_quantized(format)) {
        const std::size_t size = value_bytes(format);
        for (int32_t c = 0; c < count; ++c) {
            for (int32_t i = 0; i < k; ++i) {
                std::memcpy(panel + static_cast<std::size_t>(i * kColumns + c) * size,
                            columns + static_cast<std::size_t>(c) * stride + static_cast<std::size_t>(i) * size, size);
            }
        }
        return;
    }
    switch (format) {
    case Format::q8_0:
        return pack_units<Format::q8_0>(k, columns, count, panel);
    case Format::q4_0:
        return pack_units<Format::q4_0>(k, columns, count, panel);
    case Format::q4_1:
        return pack_units<Format::q4_1>(k, columns, count, panel);
    case Format::q5_0:
        return pack_units<Format::q5_0>(k, columns, count, panel);
    case Format::q5_1:
        return pack_units<Format::q5_1>(k, columns, count, panel);
    case Format::q4_k:
        return pack_units<Format::q4_k>(k, columns, count, panel);
    case Format::q5_k:
        return pack_units<Format::q5_k>(k, columns, count, panel);
    default:
        return pack_units<Format::q6_k>(k, columns, count, panel);
    }
}

void unpack_column(Format format, int32_t k, const uint8_t * packed, int32_t column, float * out) {
    const uint8_t * panel = packed + static_cast<std::size_t>(column / kColumns) * panel_bytes(format, k);
    const int32_t c = column % kColumns;
    if (!is_quantized(format)) {
        for (int32_t i = 0; i < k; ++i) {
            out[i] = float_value(format, panel + static_cast<std::size_t>(i * kColumns + c) * value_bytes(format));
        }
        return;
    }
    const uint8_t * codes = panel + panel_scales(format, k);
    const int32_t blocks = unit_inputs(format) / kBlock; // of a unit
    for (int32_t b = 0; b < k / kBlock; ++b) {
        const uint8_t * unit = panel + static_cast<std::size_t>(b / blocks) * scale_unit(format);
        const uint8_t * scales = unit + scale_head(format) + b % blocks * scale_bytes(format);
        const uint8_t * block = codes + static_cast<std::ptrdiff_t>(b) * code_bytes(format);
        const float d = half_to_float(read16(unit + 2 * c));
        float scale[2] = {d, d}; // of the first and the second 16 inputs
        float minimum = 0.0F;
        if (format == Format::q6_k) {
            scale[0] = d * static_cast<float>(static_cast<int8_t>(scales[c]));
            scale[1] = d * static_cast<float>(static_cast<int8_t>(scales[16 + c]));
        } else if (is_super(format)) {
            scale[0] = scale[1] = d * static_cast<float>(scales[c]);
            minimum = -half_to_float(read16(unit + 32 + 2 * c)) * static_cast<float>(scales[16 + c]);
        } else if (has_minimum(format)) {
            minimum = half_to_float(read16(unit + 32 + 2 * c));
        }
        for (int32_t i = 0; i < kBlock; ++i) {
            const uint8_t code = get_code(format, block, i, c);
            const int32_t q = format == Format::q8_0 ? static_cast<int8_t>(code) : code - code_offset(format);
            out[b * kBlock + i] = scale[i / 16] * static_cast<float>(q) + minimum;
        }
    }
}

float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
    const uint32_t rest = h & 0x7fffU;
    if (rest >= 0x7c00U) { // infinity; a NaN stays one and becomes quiet
        return std::bit_cast<float>(sign | 0x7f800000U | ((rest & 0x3ffU) << 13) | (rest > 0x7c00U ? 0x400000U : 0U));
    }
    if (rest < 0x400U) { // subnormal: rest x 2^-24 is exact
        const float v = static_cast<float>(rest) * 0x1p-24F;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(v));
    }
    return std::bit_cast<float>(sign | ((rest << 13) + (112U << 23)));
}

uint16_t float_to_half(float f) {
    const auto bits = std::bit_cast<uint32_t>(f);
    const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
    const uint32_t rest = bits & 0x7fffffffU;
    if (rest > 0x7f800000U) {
        return static_cast<uint16_t>(sign | 0x7e00U | ((rest >> 13) & 0x3ffU));
    }
    if (rest >= 0x477ff000U) { // rounds beyond the largest half
        return static_cast<uint16_t>(sign | 0x7c00U);
    }
    if (rest < 0x38800000U) { // subnormal or zero: the sum's last bits are the rounded result
        const float shifted = std::bit_cast<float>(rest) + 0.5F;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
    }
    const uint32_t odd = (rest >> 13) & 1U;
    return static_cast<uint16_t>(sign | ((rest - 0x38000000U + 0xfffU + odd) >> 13));
}

} // namespace adaspark::kernels
