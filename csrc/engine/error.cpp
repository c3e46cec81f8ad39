#include "engine/error.h"

#include <cstdint>

namespace adaspark {

namespace {

constexpr std::size_t kLongest = 2000; // bytes of a message

// Bytes of the valid UTF-8 character at `at`; 0 when there is none.
std::size_t character(const std::string & text, std::size_t at) {
    const auto byte = [&](std::size_t i) -> uint32_t {
        return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0U;
    };
    const uint32_t first = byte(0);
    if (first < 0x80) {
        return 1;
    }
    const std::size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4) {
        return 0;
    }
    uint32_t code = first & (0x7FU >> size);
    for (std::size_t i = 1; i < size; ++i) {
        if ((byte(i) & 0xC0U) != 0x80U) {
            return 0;
        }
        code = code << 6 | (byte(i) & 0x3FU);
    }
    const uint32_t least = size == 4 ? 0x10000 : size == 3 ? 0x800 : 0x80;
    return code < least || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000) ? 0 : size;
}

} // namespace

std::string readable(const std::string & text) {
    const bool cut = text.size() > kLongest;
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        if (cut && at >= kLongest / 2 && at < text.size() - kLongest / 2) {
            out += " ... ";
            at = text.size() - kLongest / 2;
        }
        const std::size_t size = character(text, at);
        if (size == 0) {
            out += "\xEF\xBF\xBD"; // U+FFFD
        } else if (size == 1 && static_cast<uint8_t>(text[at]) < 0x20) {
            out += ' ';
        } else {
            out += text.substr(at, size);
        }
        at += size == 0 ? 1 : size;
    }
    return out;
}

} // namespace adaspark
