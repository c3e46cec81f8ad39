// Process-wide state of llama.cpp and ggml: start-up, logs, aborts, devices, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace adaspark {

// Start llama.cpp once per process, with our log and abort callbacks. Cheap to call again; thread-safe.
void backend_start();

// Receives (level, line without its newline); levels are those of Python's logging: 10, 20, 30, 40.
using LogSink = std::function<void(int, const std::string &)>;

// Replace the log sink; an empty one drops the lines. Thread-safe.
void log_sink_set(LogSink sink);

// Runs ggml code on this thread so that an abort inside becomes a BackendError instead of the end of the process.
// Only aborts on the calling thread can be turned: one on a ggml worker still ends the process, after its message
// has reached stderr. Collects the error lines logged meanwhile.
class AbortGuard {
  public:
    AbortGuard();
    ~AbortGuard();
    AbortGuard(const AbortGuard &) = delete;
    AbortGuard & operator=(const AbortGuard &) = delete;

    // Error lines llama.cpp logged on this thread since the guard began, joined by "; ". Empty when there were none.
    static std::string errors();
};

// Version of the llama.cpp sources this was built with.
const char * llama_source_version();

struct Device {
    std::string name;
    std::string description;
    std::string type;         // "cpu", "gpu", "igpu" or "accel"
    std::size_t memory_free;  // bytes
    std::size_t memory_total; // bytes
};

std::vector<Device> devices();

// Bytes of main memory that can still be taken without swapping; 0 when the system does not tell.
std::size_t memory_available();

// Physical cores this process may run on, at least 1: ggml's kernels gain nothing from a second thread on one core.
int32_t physical_cores();

// Whether a model loaded with this many layers on the GPU (-1 = all) has any there in this build.
bool offloads(int32_t n_gpu_layers);

// "123.4 MiB"
std::string mebibytes(double bytes);

} // namespace adaspark
