// What a file may say that llama.cpp loads without a question and then aborts on, never ends with or crashes on.
#pragma once

#include <string>

namespace adaspark {

class GgufFile;

// What is wrong with a target's or a drafter's file, naming the key or the tensor, and the remedy; empty when it is
// sound. Throws ModelError on a key of the wrong type.
std::string load_fault(const GgufFile & file);

} // namespace adaspark
