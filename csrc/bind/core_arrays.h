// What the bindings of the core share: one init function a topic, and arrays across the binding, contiguous and of the
// right type, taken without conversion.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>

namespace adaspark::bind {

namespace py = pybind11;

template <class T> using Array = py::array_t<T, py::array::c_style>;

template <class T> std::span<const T> view(const Array<T> & a) { return {a.data(), static_cast<size_t>(a.size())}; }

template <class T> Array<T> to_array(std::span<const T> values) {
    Array<T> out(static_cast<py::ssize_t>(values.size()));
    std::copy(values.begin(), values.end(), out.mutable_data());
    return out;
}

template <class T> Array<T> to_array(const T * values, int32_t n) {
    return to_array(std::span<const T>{values, static_cast<size_t>(n)});
}

template <class T> Array<T> to_matrix(const T * values, int32_t rows, int32_t columns) {
    Array<T> out({static_cast<py::ssize_t>(rows), static_cast<py::ssize_t>(columns)});
    std::copy_n(values, static_cast<size_t>(rows) * static_cast<size_t>(columns), out.mutable_data());
    return out;
}

inline void require(bool ok, const char * message) {
    if (!ok) {
        throw std::invalid_argument(message);
    }
}

void init_tree(py::module_ & m);
void init_learners(py::module_ & m);
void init_text(py::module_ & m);
void init_scheduler(py::module_ & m);

} // namespace adaspark::bind
