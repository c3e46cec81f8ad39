// Loading through llama.cpp with typed errors; shared by target and drafter.
#pragma once

#include <functional>
#include <string>

#include <llama.h>

namespace adaspark {

// llama_model_load_from_file with progress. Throws ModelError (refused, stopped), OutOfMemoryError.
llama_model * model_load(const std::string & path, llama_model_params params,
                         const std::function<bool(float)> & progress);

// llama_init_from_model. Throws OutOfMemoryError with the bytes needed and free, naming `flag` as the remedy;
// ModelError when llama.cpp refuses for another reason.
llama_context * context_open(const std::string & path, llama_model * model, const llama_context_params & params,
                             const char * flag);

} // namespace adaspark
