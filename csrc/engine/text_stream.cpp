#include "engine/text_stream.h"

#include <algorithm>
#include <string_view>

namespace adaspark {

namespace {

// Bytes of the character that starts with `lead`; 0 for a byte that starts none.
std::size_t character_size(unsigned char lead) {
    if (lead < 0x80) {
        return 1;
    }
    if (lead >= 0xC2 && lead <= 0xDF) {
        return 2;
    }
    if (lead >= 0xE0 && lead <= 0xEF) {
        return 3;
    }
    return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// May `byte` follow as byte `i` (from 1) of a character led by `lead`? Rules out overlong forms and surrogates.
bool continues(unsigned char lead, std::size_t i, unsigned char byte) {
    if (i == 1) {
        switch (lead) {
        case 0xE0:
            return byte >= 0xA0 && byte <= 0xBF;
        case 0xED:
            return byte >= 0x80 && byte <= 0x9F;
        case 0xF0:
            return byte >= 0x90 && byte <= 0xBF;
        case 0xF4:
            return byte >= 0x80 && byte <= 0x8F;
        default:
            break;
        }
    }
    return byte >= 0x80 && byte <= 0xBF;
}

const char * const kReplacement = "\xEF\xBF\xBD";

// Appends the characters of `in` to `out`, stopping at an unfinished one. Returns the bytes consumed.
std::size_t decode(std::string_view in, std::string & out) {
    std::size_t at = 0;
    while (at < in.size()) {
        const auto lead = static_cast<unsigned char>(in[at]);
        const std::size_t size = character_size(lead);
        std::size_t have = 1;
        while (size > 0 && have < size && at + have < in.size() &&
               continues(lead, have, static_cast<unsigned char>(in[at + have]))) {
            ++have;
        }
        if (size > 0 && have == size) {
            out.append(in.substr(at, size));
        } else if (size > 0 && at + have == in.size()) {
            break; // the rest of this character may still come
        } else {
            out.append(kReplacement);
        }
        at += have;
    }
    return at;
}

} // namespace

TextStream::TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase(stops_, std::string());
    for (const std::string & stop : stops_) {
        longest_stop_ = std::max(longest_stop_, stop.size());
    }
}

bool TextStream::push(const std::string & bytes) {
    if (stopped_) {
        return true;
    }
    // Byte by byte, so that the result does not depend on how the text was cut into tokens.
    for (const char byte : bytes) {
        pending_.push_back(byte);
        std::size_t cut = 0;
        for (const std::string & stop : stops_) {
            if (pending_.ends_with(stop)) {
                cut = std::max(cut, stop.size());
            }
        }
        if (cut > 0) {
            pending_.resize(pending_.size() - cut);
            stopped_ = true;
            return true;
        }
    }
    return false;
}

std::size_t TextStream::held_back() const {
    if (stopped_ || finished_ || longest_stop_ == 0) {
        return 0;
    }
    // The longest end of the pending bytes that begins a stop string.
    for (std::size_t n = std::min(pending_.size(), longest_stop_ - 1); n > 0; --n) {
        const std::string_view end = std::string_view(pending_).substr(pending_.size() - n);
        for (const std::string & stop : stops_) {
            if (stop.size() > n && std::string_view(stop).starts_with(end)) {
                return n;
            }
        }
    }
    return 0;
}

std::string TextStream::take() {
    std::string out;
    const std::string_view certain = std::string_view(pending_).substr(0, pending_.size() - held_back());
    pending_.erase(0, decode(certain, out));
    return out;
}

void TextStream::finish() { finished_ = true; }

} // namespace adaspark
