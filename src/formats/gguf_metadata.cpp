// Typed access to what a GgufFile has read.
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "formats/gguf.h"

namespace droidspeak {
namespace {

[[noreturn]] void fail_key(const GgufFile& file, std::string_view key, std::string_view problem) {
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: metadata key {} {}", file.path().string(),
                                                     in_quotes(key), problem));
}

std::string_view kind_of(const GgufValue& value) {
  static constexpr std::string_view kKinds[] = {
      "an unsigned integer",  "an integer",          "a number",           "a bool", "a string",
      "an array of integers", "an array of numbers", "an array of strings"};
  static_assert(std::size(kKinds) == std::variant_size_v<GgufValue>);
  return kKinds[value.index()];
}

[[noreturn]] void fail_kind(const GgufFile& file, std::string_view key, std::string_view needed) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) fail_key(file, key, fmt::format("is missing; {} is needed", needed));
  fail_key(file, key, fmt::format("is {}; {} is needed", kind_of(*value), needed));
}

template <class T>
const T& get(const GgufFile& file, std::string_view key, std::string_view needed) {
  const GgufValue* value = file.find(key);
  const T* typed = value == nullptr ? nullptr : std::get_if<T>(value);
  if (typed == nullptr) fail_kind(file, key, needed);
  return *typed;
}

}  // namespace

const FileTensor* GgufFile::find_tensor(std::string_view name) const {
  auto found = tensor_index_.find(std::string(name));
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::find(std::string_view key) const {
  auto found = metadata_.find(std::string(key));
  return found == metadata_.end() ? nullptr : &found->second;
}

std::string GgufFile::get_string(std::string_view key) const {
  return get<std::string>(*this, key, "a string");
}

int64_t GgufFile::get_int(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) fail_kind(*this, key, "an integer");
  if (const auto* number = std::get_if<int64_t>(value)) return *number;
  const auto* number = std::get_if<uint64_t>(value);
  if (number == nullptr) fail_kind(*this, key, "an integer");
  if (!std::in_range<int64_t>(*number)) {
    fail_key(*this, key, fmt::format("is {}; at most 2^63 - 1 is allowed", *number));
  }
  return static_cast<int64_t>(*number);
}

double GgufFile::get_double(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) fail_kind(*this, key, "a number");
  if (const auto* integer = std::get_if<int64_t>(value)) return static_cast<double>(*integer);
  if (const auto* integer = std::get_if<uint64_t>(value)) return static_cast<double>(*integer);
  double number = get<double>(*this, key, "a number");
  if (!std::isfinite(number)) {
    fail_key(*this, key, fmt::format("is {}; a finite number is needed", number));
  }
  return number;
}

int64_t GgufFile::get_int_or(std::string_view key, int64_t fallback) const {
  return find(key) == nullptr ? fallback : get_int(key);
}

double GgufFile::get_double_or(std::string_view key, double fallback) const {
  return find(key) == nullptr ? fallback : get_double(key);
}

bool GgufFile::get_bool_or(std::string_view key, bool fallback) const {
  return find(key) == nullptr ? fallback : get<bool>(*this, key, "a bool");
}

std::string GgufFile::get_string_or(std::string_view key, std::string fallback) const {
  return find(key) == nullptr ? std::move(fallback) : get_string(key);
}

const std::vector<std::string>& GgufFile::get_strings(std::string_view key) const {
  return get<std::vector<std::string>>(*this, key, "an array of strings");
}

}  // namespace droidspeak
