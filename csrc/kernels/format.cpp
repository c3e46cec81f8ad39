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

// Bytes of 32 values as GGUF stores them, and where their codes begin.
struct BlockLayout {
    std::size_t bytes;
    std::size_t codes;
    std::size_t packed; // bytes of 8 columns x 32 inputs in a panel
};

constexpr BlockLayout block_layout(Format format) {
    switch (format) {
    case Format::q4_0:
        return {18, 2, 16 + 128};
    case Format::q4_1:
        return {20, 4, 32 + 128};
    default:
        return {34, 2, 16 + 256};
    }
}

std::size_t value_bytes(Format format) { return format == Format::f32 ? 4 : 2; }

// Code of input i (0..31) in a GGUF block: Q4 keeps input i in the low and i + 16 in the high nibble of byte i.
uint8_t q4_code(const uint8_t * codes, int32_t i) {
    return i < 16 ? codes[i] & 15 : static_cast<uint8_t>(codes[i - 16] >> 4);
}

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

} // namespace

const char * format_name(Format format) {
    static constexpr const char * kNames[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};
    return kNames[static_cast<int32_t>(format)];
}

std::size_t column_bytes(Format format, int32_t k) {
    const auto n = static_cast<std::size_t>(k);
    return is_quantized(format) ? n / kBlock * block_layout(format).bytes : n * value_bytes(format);
}

std::size_t panel_bytes(Format format, int32_t k) {
    const auto n = static_cast<std::size_t>(k);
    return is_quantized(format) ? n / kBlock * block_layout(format).packed : n * kColumns * value_bytes(format);
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
    const BlockLayout layout = block_layout(format);
    for (int32_t b = 0; b < k / kBlock; ++b) {
        uint8_t * out = panel + static_cast<std::size_t>(b) * layout.packed;
        uint8_t * codes_out = out + (format == Format::q4_1 ? 32 : 16);
        for (int32_t c = 0; c < count; ++c) {
            const uint8_t * block =
                columns + static_cast<std::size_t>(c) * stride + static_cast<std::size_t>(b) * layout.bytes;
            const uint8_t * codes = block + layout.codes;
            std::memcpy(out + 2 * c, block, 2);
            if (format == Format::q4_1) {
                std::memcpy(out + 16 + 2 * c, block + 2, 2);
            }
            for (int32_t i = 0; i < kBlock; ++i) {
                if (format == Format::q8_0) {
                    codes_out[i / 4 * 32 + c * 4 + i % 4] = codes[i];
                } else {
                    const int32_t at = i / 8 * 32 + c * 4 + i % 4;
                    codes_out[at] = static_cast<uint8_t>(codes_out[at] | (q4_code(codes, i) << (i % 8 < 4 ? 0 : 4)));
                }
            }
        }
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
    const BlockLayout layout = block_layout(format);
    for (int32_t b = 0; b < k / kBlock; ++b) {
        const uint8_t * in = panel + static_cast<std::size_t>(b) * layout.packed;
        const uint8_t * codes = in + (format == Format::q4_1 ? 32 : 16);
        const float d = half_to_float(read16(in + 2 * c));
        const float m = format == Format::q4_1 ? half_to_float(read16(in + 16 + 2 * c)) : 0.0F;
        for (int32_t i = 0; i < kBlock; ++i) {
            if (format == Format::q8_0) {
                out[b * kBlock + i] = d * static_cast<float>(static_cast<int8_t>(codes[i / 4 * 32 + c * 4 + i % 4]));
                continue;
            }
            const uint8_t byte = codes[i / 8 * 32 + c * 4 + i % 4];
            const int32_t code = i % 8 < 4 ? byte & 15 : byte >> 4;
            out[b * kBlock + i] =
                format == Format::q4_0 ? d * static_cast<float>(code - 8) : d * static_cast<float>(code) + m;
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
