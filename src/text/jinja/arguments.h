// Reads the arguments of a filter, test, method or function by position or name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace droidspeak::jinja {

class ArgumentReader {
 public:
  // Throws TemplateError for too many arguments, unknown names, and the same one twice.
  ArgumentReader(std::string_view function,
                 const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters);

  // Null when not given.
  const Value* find(size_t index) const { return values_[index]; }

  // The rest throw TemplateError naming function and parameter: when missing without a fallback, or
  // of the wrong type.
  const Value& value(size_t index) const;
  const std::string& text(size_t index) const;
  const std::string* optional_text(size_t index) const;  // null when not given or none
  int64_t integer(size_t index) const;
  int64_t integer(size_t index, int64_t fallback) const;
  bool is_set(size_t index) const;  // given and true

 private:
  [[noreturn]] void fail(size_t index, std::string_view wanted) const;

  std::string_view function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

}  // namespace droidspeak::jinja
