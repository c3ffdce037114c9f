// Errors as API clients see them, and the one table from our error codes to HTTP.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"
#include "server/http.h"

namespace droidspeak {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param;  // empty: null
  std::string code;   // empty: null
  std::string type = "invalid_request_error";
  int retry_after_s = 0;  // 0: no such header
};

// 400 about one field.
ApiError bad_field(std::string message, std::string param, std::string code = "invalid_value");
ApiError model_not_found(const std::string& model);
ApiError to_api_error(const Error& error);
// With the type and code that belong to the status.
ApiError status_error(int status, std::string message);

// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);
HttpResponse error_response(const ApiError& error);

// Value or ApiError.
template <class T>
class [[nodiscard]] ApiResult {
 public:
  ApiResult(T value) : state_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  ApiResult(ApiError error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return state_.index() == 0; }

  T& operator*() {
    check(state_.index() == 0, "value of an ApiResult that holds an error");
    return std::get<0>(state_);
  }

  T* operator->() { return &**this; }

  const ApiError& error() const {
    check(state_.index() == 1, "error() of an ApiResult that holds a value");
    return std::get<1>(state_);
  }

 private:
  std::variant<T, ApiError> state_;
};

}  // namespace droidspeak
