#include "engine/backend.h"

#include "engine/error.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include <ggml-backend.h>
#include <llama.h>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace adaspark {

namespace {

std::mutex g_log_mutex;
LogSink g_log_sink;

// ggml's abort callback gets no context, so what it must know about the calling thread is thread-local.
thread_local int t_guard_depth = 0;
thread_local std::string t_errors;
thread_local std::string t_line; // a log line still without its newline (llama.cpp logs some lines in pieces)
thread_local int t_line_level = 20;

constexpr std::size_t kErrorsMax = 4096; // bytes kept for messages

int python_level(ggml_log_level level) {
    switch (level) {
    case GGML_LOG_LEVEL_ERROR:
        return 40;
    case GGML_LOG_LEVEL_WARN:
        return 30;
    case GGML_LOG_LEVEL_INFO:
        return 20;
    default:
        return 10;
    }
}

void on_log(ggml_log_level level, const char * text, void * /*user*/) {
    if (level != GGML_LOG_LEVEL_CONT) {
        t_line_level = python_level(level);
    }
    t_line += text;
    if (t_line.empty() || t_line.back() != '\n') {
        return;
    }
    std::string line;
    line.swap(t_line);
    while (!line.empty() && line.back() == '\n') {
        line.pop_back();
    }
    if (line.empty()) {
        return;
    }
    if (t_line_level >= 40 && t_guard_depth > 0 && t_errors.size() < kErrorsMax) {
        t_errors += (t_errors.empty() ? "" : "; ") + line;
    }
    LogSink sink;
    {
        const std::lock_guard<std::mutex> lock(g_log_mutex);
        sink = g_log_sink;
    }
    if (sink) {
        sink(t_line_level, line);
    }
}

void on_abort(const char * message) {
    if (t_guard_depth > 0) {
        throw BackendError(std::string("ggml stopped with: ") + message +
                           ". Load the model again; please report this with the command that led to it");
    }
    std::fprintf(stderr, "adaspark: ggml aborted: %s\n", message);
}

} // namespace

void backend_start() {
    static std::once_flag once;
    std::call_once(once, [] {
        llama_log_set(on_log, nullptr);
        ggml_set_abort_callback(on_abort);
        llama_backend_init();
    });
}

void log_sink_set(LogSink sink) {
    const std::lock_guard<std::mutex> lock(g_log_mutex);
    g_log_sink = std::move(sink);
}

AbortGuard::AbortGuard() {
    if (t_guard_depth++ == 0) {
        t_errors.clear();
    }
}

AbortGuard::~AbortGuard() { --t_guard_depth; }

std::string AbortGuard::errors() { return t_errors; }

const char * llama_source_version() { return ADASPARK_LLAMA_VERSION; }

std::vector<Device> devices() {
    backend_start();
    std::vector<Device> out;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        Device d;
        d.name = ggml_backend_dev_name(dev);
        d.description = ggml_backend_dev_description(dev);
        switch (ggml_backend_dev_type(dev)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU:
            d.type = "cpu";
            break;
        case GGML_BACKEND_DEVICE_TYPE_GPU:
            d.type = "gpu";
            break;
        case GGML_BACKEND_DEVICE_TYPE_IGPU:
            d.type = "igpu";
            break;
        default:
            d.type = "accel";
            break;
        }
        ggml_backend_dev_memory(dev, &d.memory_free, &d.memory_total);
        if (d.type == "cpu" && memory_available() > 0) {
            d.memory_free = memory_available(); // ggml reports the total for both
        }
        out.push_back(std::move(d));
    }
    return out;
}

std::size_t memory_available() {
#if defined(__linux__)
    std::ifstream in("/proc/meminfo");
    std::string key;
    std::size_t kib = 0;
    std::string unit;
    while (in >> key >> kib) {
        std::getline(in, unit);
        if (key == "MemAvailable:") {
            return kib * 1024;
        }
    }
#endif
    return 0;
}

int32_t physical_cores() {
    int32_t n = 0;
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
        std::set<std::string> cores; // cores as the text of their sibling lists
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (!CPU_ISSET(cpu, &allowed)) {
                continue;
            }
            std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
            std::string siblings;
            if (std::getline(in, siblings)) {
                cores.insert(siblings);
            }
        }
        n = static_cast<int32_t>(cores.size());
    }
#elif defined(__APPLE__)
    // Performance cores where the machine has two kinds: a slow core holds up every barrier.
    std::size_t size = sizeof(n);
    if (sysctlbyname("hw.perflevel0.physicalcpu", &n, &size, nullptr, 0) != 0) {
        size = sizeof(n);
        sysctlbyname("hw.physicalcpu", &n, &size, nullptr, 0);
    }
#endif
    if (n <= 0) {
        n = static_cast<int32_t>(std::thread::hardware_concurrency());
    }
    return std::max<int32_t>(1, n);
}

bool offloads(int32_t n_gpu_layers) { return n_gpu_layers != 0 && llama_supports_gpu_offload(); }

std::string mebibytes(double bytes) {
    std::ostringstream out;
    out.setf(std::ios::fixed);
    out.precision(1);
    out << bytes / (1024.0 * 1024.0) << " MiB";
    return out.str();
}

} // namespace adaspark
