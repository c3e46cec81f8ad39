// One description of a struct's fields serves saving and loading: `template <class A> void fields(A & a)` calls
// a(field) for each. Values are raw little-endian bytes, so a restored learner is bit for bit the saved one.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace adaspark::core {

class Writer {
  public:
    static constexpr bool reading = false;

    explicit Writer(std::vector<uint8_t> & out) : out_(out) {}

    template <class... T> void operator()(T &... values) { (put(values), ...); }

  private:
    template <class T> void put(T & value) {
        if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
            const size_t at = out_.size();
            out_.resize(at + sizeof(T));
            std::memcpy(out_.data() + at, &value, sizeof(T));
        } else if constexpr (std::is_array_v<T>) {
            for (auto & element : value) {
                put(element);
            }
        } else {
            value.fields(*this);
        }
    }

    std::vector<uint8_t> & out_;
};

// Reads past the end leave zeros and clear ok().
class Reader {
  public:
    static constexpr bool reading = true;

    explicit Reader(std::span<const uint8_t> in) : in_(in) {}

    template <class... T> void operator()(T &... values) { (get(values), ...); }

    bool ok() const { return ok_; }
    bool at_end() const { return in_.empty(); }

  private:
    template <class T> void get(T & value) {
        if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
            value = T{};
            if (in_.size() < sizeof(T)) {
                ok_ = false;
                in_ = {};
                return;
            }
            std::memcpy(&value, in_.data(), sizeof(T));
            in_ = in_.subspan(sizeof(T));
        } else if constexpr (std::is_array_v<T>) {
            for (auto & element : value) {
                get(element);
            }
        } else {
            value.fields(*this);
        }
    }

    std::span<const uint8_t> in_;
    bool ok_ = true;
};

// Changes nothing and remembers whether every floating-point field is a finite number.
class FiniteCheck {
  public:
    static constexpr bool reading = false;

    template <class... T> void operator()(T &... values) { (look(values), ...); }

    bool ok() const { return ok_; }

  private:
    template <class T> void look(T & value) {
        if constexpr (std::is_floating_point_v<T>) {
            ok_ = ok_ && std::isfinite(value);
        } else if constexpr (std::is_array_v<T>) {
            for (auto & element : value) {
                look(element);
            }
        } else if constexpr (!std::is_arithmetic_v<T> && !std::is_enum_v<T>) {
            value.fields(*this);
        }
    }

    bool ok_ = true;
};

} // namespace adaspark::core
