// The engine's errors. The same names exist in Python (adaspark.errors); every message names the thing and the remedy.
#pragma once

#include <stdexcept>
#include <string>

namespace adaspark {

// A message fit to be shown: UTF-8 without control characters, the middle of a very long one left out. Names and texts
// of damaged files end up in messages.
std::string readable(const std::string & text);

// Base of every error of the package.
struct AdaSparkError : std::runtime_error {
    explicit AdaSparkError(const std::string & text) : std::runtime_error(readable(text)) {}
};

// A target file that is missing, damaged, of the wrong kind or architecture.
struct ModelError : AdaSparkError {
    using AdaSparkError::AdaSparkError;
};

// A drafter file that lacks a key, disagrees with the target, or asks for what the engine cannot run.
struct DrafterError : ModelError {
    using ModelError::ModelError;
};

// A prompt or a tree that does not fit the context.
struct ContextFullError : AdaSparkError {
    using AdaSparkError::AdaSparkError;
};

// Weights, cache or compute buffers that do not fit the memory.
struct OutOfMemoryError : AdaSparkError {
    using AdaSparkError::AdaSparkError;
};

// llama.cpp or ggml failed in the middle of work; the object it happened in cannot be used any further.
struct BackendError : AdaSparkError {
    using AdaSparkError::AdaSparkError;
};

} // namespace adaspark
