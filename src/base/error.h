// Errors as values and as exceptions. One `Error` serves both: `Result<T>` for what is expected
// while serving, `Failure` for what ends a command or the process.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace droidspeak {

enum class ErrorCode {
  kInvalidArgument,
  kNotFound,
  kExhausted,
  kCancelled,
  kUnavailable,
  kDataCorrupt,
  kInternal,
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;  // names the thing, the value, and what would be right
};

class Failure : public std::runtime_error {
 public:
  explicit Failure(const Error& error) : std::runtime_error(error.message), code_(error.code) {}

  Failure(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

  ErrorCode code() const { return code_; }

  Error error() const { return {code_, what()}; }

 private:
  ErrorCode code_;
};

}  // namespace droidspeak
