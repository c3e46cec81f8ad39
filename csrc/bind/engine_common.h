// What the engine's binding files share. Bindings adapt types, hold lifetimes and the GIL; they decide nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <stdexcept>

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/drafter.h"
#include "engine/error.h"
#include "engine/target.h"

namespace adaspark::bind {

namespace py = pybind11;

// Model files may hold text that is not UTF-8: reading one must not fail on it.
inline py::str text(const char * s) {
    return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(s, static_cast<py::ssize_t>(std::strlen(s)), "replace"));
}

// A target and what stands on it. Python objects hold the slot, never the engine's objects: close() frees them at
// once, whoever still holds a Python object, and a later use of one is an error and not a crash.
struct Slot {
    std::unique_ptr<Target> target;
    std::unique_ptr<Drafter> drafter; // destroyed first: it hangs on the target
    std::atomic<bool> busy{false};

    ~Slot() { close(); }
    void close() {
        drafter.reset();
        target.reset();
    }
    Target & get() const {
        if (!target) {
            throw BackendError("this model is closed. Load it again");
        }
        return *target;
    }
};

// Holds a slot for one call. A second thread inside it would corrupt the cache, so it gets an error instead.
class Lease {
  public:
    explicit Lease(Slot & slot) : slot_(slot) {
        if (slot_.busy.exchange(true)) {
            throw std::runtime_error("this model is in use by another call; one thread at a time");
        }
    }
    ~Lease() { slot_.busy.store(false); }
    Lease(const Lease &) = delete;
    Lease & operator=(const Lease &) = delete;

  private:
    Slot & slot_;
};

// Runs Python callbacks from engine code that holds no GIL. A Python error (or Ctrl-C) is kept, stops the engine's
// work through its "false stops" protocol, and is raised again when the engine has returned.
class Callbacks {
  public:
    template <typename F> bool run(F && call) {
        const py::gil_scoped_acquire gil;
        try {
            if (PyErr_CheckSignals() != 0) {
                throw py::error_already_set();
            }
            return call();
        } catch (...) {
            error_ = std::current_exception();
            return false;
        }
    }
    void rethrow() const {
        if (error_) {
            std::rethrow_exception(error_);
        }
    }

  private:
    std::exception_ptr error_;
};

using Ints = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;

// Integers from a sequence or an array; floats are an error and not rounded.
inline Ints as_ints(const py::object & object) {
    if (py::isinstance<py::array>(object)) {
        const char kind = py::reinterpret_borrow<py::array>(object).dtype().kind();
        if (kind != 'i' && kind != 'u') {
            throw py::type_error("token ids must be integers");
        }
        return Ints(object);
    }
    return Ints(py::cast(py::cast<std::vector<int32_t>>(object)));
}

inline std::span<const int32_t> view(const Ints & ints) { return {ints.data(), static_cast<std::size_t>(ints.size())}; }

template <typename T> py::array_t<T> copy_array(std::span<const T> values, std::vector<py::ssize_t> shape) {
    py::array_t<T> out(std::move(shape));
    std::copy(values.begin(), values.end(), out.mutable_data());
    return out;
}

// The engine's prefill progress on top of an optional Python one; also where Ctrl-C is seen during a long prompt.
inline PrefillProgress prefill_progress(Callbacks & callbacks, const py::object & progress) {
    return [&callbacks, &progress](int32_t done, int32_t all) {
        return callbacks.run([&] { return progress.is_none() || py::cast<bool>(progress(done, all)); });
    };
}

inline LoadProgress load_progress(Callbacks & callbacks, const py::object & progress) {
    return [&callbacks, &progress](float share) {
        return callbacks.run([&] { return progress.is_none() || py::cast<bool>(progress(share)); });
    };
}

void init_backend(py::module_ & m);
void init_target(py::module_ & m);
void init_drafter(py::module_ & m);
void init_session(py::module_ & m);

} // namespace adaspark::bind
