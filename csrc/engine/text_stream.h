// Token bytes to text that can be shown: whole UTF-8 characters only, never a piece of a stop string.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace adaspark {

class TextStream {
  public:
    explicit TextStream(std::vector<std::string> stops = {});

    // Add the bytes of one token. True when a stop string is complete: the text ends before it and nothing more is
    // taken. The first stop to be completed wins, the longest of those completed by the same byte.
    bool push(const std::string & bytes);

    // Text that became certain since the last call: valid UTF-8, invalid bytes replaced by U+FFFD.
    std::string take();

    // No more bytes will come: release what was held back for a stop string. A character cut off by the token budget
    // is dropped. take() returns the rest.
    void finish();

    bool stopped() const { return stopped_; }

  private:
    std::size_t held_back() const;

    std::vector<std::string> stops_;
    std::size_t longest_stop_ = 0; // bytes
    std::string pending_;          // bytes not yet given out
    bool stopped_ = false;
    bool finished_ = false;
};

} // namespace adaspark
