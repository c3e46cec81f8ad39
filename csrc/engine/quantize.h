// Requantising a GGUF file with llama.cpp's quantiser.
#pragma once

#include <cstdint>
#include <string>

namespace adaspark {

// Writes `destination` whole or not at all. `file_type` and `token_embedding_type` are ggml names ("Q4_0", "Q8_0",
// "F16"); an empty embedding type leaves the choice to llama.cpp. Throws ModelError, std::invalid_argument.
void quantize_file(const std::string & source, const std::string & destination, const std::string & file_type,
                   const std::string & token_embedding_type, int32_t n_threads);

} // namespace adaspark
