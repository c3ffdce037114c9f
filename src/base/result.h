// Value or Error, for failures that are expected while serving.
#pragma once

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return state_.index() == 0; }

  T& operator*() { return value(); }

  const T& operator*() const { return std::get<0>(state_); }

  T* operator->() { return &value(); }

  T& value() {
    check(state_.index() == 0, "value() of a Result that holds an error");
    return std::get<0>(state_);
  }

  const Error& error() const {
    check(state_.index() == 1, "error() of a Result that holds a value");
    return std::get<1>(state_);
  }

  // The value, or a Failure that carries the error.
  T take_or_throw() && {
    if (state_.index() == 1) throw Failure(std::get<1>(state_));
    return std::move(std::get<0>(state_));
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;

  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  explicit operator bool() const { return ok_; }

  const Error& error() const {
    check(!ok_, "error() of a Result that holds a value");
    return error_;
  }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace droidspeak
