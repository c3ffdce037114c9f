#include "text/jinja/arguments.h"

#include <algorithm>

#include <fmt/format.h>

namespace droidspeak::jinja {

ArgumentReader::ArgumentReader(std::string_view function,
                               const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters)
    : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters_.size()) {
    throw TemplateError(fmt::format("{}() takes at most {} arguments, not {}", function_,
                                    parameters_.size(), arguments.positional.size()));
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end()) {
      throw TemplateError(fmt::format("{}() has no parameter '{}'", function_, name));
    }
    const Value*& slot = values_[static_cast<size_t>(found - parameters_.begin())];
    if (slot != nullptr) throw TemplateError(fmt::format("{}() got '{}' twice", function_, name));
    slot = &value;
  }
}

void ArgumentReader::fail(size_t index, std::string_view wanted) const {
  const Value* value = values_[index];
  if (value == nullptr) {
    throw TemplateError(fmt::format("{}() needs the argument '{}'", function_, parameters_[index]));
  }
  if (const auto* undefined = value->get<Undefined>()) throw TemplateError(*undefined->reason);
  throw TemplateError(fmt::format("argument '{}' of {}() must be {}, not {}", parameters_[index],
                                  function_, wanted, type_name(*value)));
}

const Value& ArgumentReader::value(size_t index) const {
  if (values_[index] == nullptr) fail(index, "given");
  return *values_[index];
}

const std::string& ArgumentReader::text(size_t index) const {
  if (values_[index] == nullptr || !values_[index]->is_text()) fail(index, "a string");
  return *values_[index]->text();
}

const std::string* ArgumentReader::optional_text(size_t index) const {
  if (values_[index] == nullptr || values_[index]->is_none()) return nullptr;
  return &text(index);
}

int64_t ArgumentReader::integer(size_t index) const {
  auto whole = values_[index] != nullptr ? values_[index]->integer() : std::nullopt;
  if (!whole) fail(index, "an integer");
  return *whole;
}

int64_t ArgumentReader::integer(size_t index, int64_t fallback) const {
  if (values_[index] == nullptr || values_[index]->is_none()) return fallback;
  return integer(index);
}

bool ArgumentReader::is_set(size_t index) const {
  return values_[index] != nullptr && is_true(*values_[index]);
}

}  // namespace droidspeak::jinja
