#include "text/jinja/predicates.h"

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

bool is_callable(const Value& value) {
  // Jinja's undefined values count as callable; calling them fails.
  return value.is<std::shared_ptr<const Callable>>() || value.is<std::shared_ptr<Loop>>() ||
         value.is_undefined();
}

bool is_iterable(const Value& value) {
  return value.is_text() || value.dict() != nullptr || value.sequence() != nullptr ||
         value.is_undefined() || value.is<std::shared_ptr<Loop>>();
}

bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  bool has_items = sequence != nullptr && sequence->kind != SequenceKind::kGenerator &&
                   sequence->kind != SequenceKind::kView;
  return has_items || value.is_text() || value.dict() != nullptr || value.is_undefined();
}

int64_t remainder(Context& context, const Value& value, int64_t divisor) {
  Value rest = apply_binary(context, BinaryOperator::kModulo, value, Value(divisor));
  if (auto number = rest.number()) return *number == 0 ? 0 : (*number == 1 ? 1 : 2);
  throw TemplateError(fmt::format("a {} is not a number", type_name(value)));
}

const Value& operand(const Arguments& arguments, std::string_view name) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    throw TemplateError(fmt::format("the test '{}' takes one argument", name));
  }
  return arguments.positional[0];
}

bool is_same(Context& context, const Value& left, const Value& right) {
  if (left.is<bool>() != right.is<bool>() || left.is<double>() != right.is<double>()) return false;
  if (left.sequence() != nullptr || left.dict() != nullptr) {
    return left.sequence() == right.sequence() && left.dict() == right.dict();
  }
  return equals(context, left, right);
}

std::optional<bool> test_type(std::string_view name, const Value& value) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_text();
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is<int64_t>();
  if (name == "float") return value.is<double>();
  if (name == "boolean") return value.is<bool>();
  if (name == "true") return value.is<bool>() && *value.get<bool>();
  if (name == "false") return value.is<bool>() && !*value.get<bool>();
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "iterable") return is_iterable(value);
  if (name == "sequence") return is_sequence(value);
  if (name == "callable") return is_callable(value);
  if (name == "escaped") return false;
  return std::nullopt;
}

std::optional<bool> test_content(Context& context, std::string_view name, const Value& value) {
  if (name == "even") return remainder(context, value, 2) == 0;
  if (name == "odd") return remainder(context, value, 2) == 1;
  if (name != "upper" && name != "lower") {
    if (name != "filter") return std::nullopt;
    return value.is_text() && is_filter(*value.text());
  }
  std::string text = to_text(context, value);
  return name == "upper" ? has_upper(text) && !has_lower(text)
                         : has_lower(text) && !has_upper(text);
}

std::optional<bool> test_relation(Context& context,
                                  std::string_view name,
                                  const Value& value,
                                  const Arguments& arguments) {
  auto is_named = [&](std::initializer_list<std::string_view> names) {
    for (std::string_view candidate : names) {
      if (candidate == name) return true;
    }
    return false;
  };
  if (is_named({"eq", "equalto", "=="})) return equals(context, value, operand(arguments, name));
  if (is_named({"ne", "!="})) return !equals(context, value, operand(arguments, name));
  if (is_named({"lt", "lessthan", "<"}))
    return compare(context, value, operand(arguments, name)) < 0;
  if (is_named({"le", "<="})) return compare(context, value, operand(arguments, name)) <= 0;
  if (is_named({"gt", "greaterthan", ">"}))
    return compare(context, value, operand(arguments, name)) > 0;
  if (is_named({"ge", ">="})) return compare(context, value, operand(arguments, name)) >= 0;
  if (name == "in") return contains(context, operand(arguments, name), value);
  if (name == "sameas") return is_same(context, value, operand(arguments, name));
  if (name == "divisibleby") {
    auto divisor = operand(arguments, name).integer();
    if (!divisor) throw TemplateError("the test 'divisibleby' takes an integer");
    return remainder(context, value, *divisor) == 0;
  }
  return std::nullopt;
}

}  // namespace

bool apply_test(Context& context,
                std::string_view name,
                const Value& input,
                const Arguments& arguments) {
  context.work.step();
  if (auto holds = test_relation(context, name, input, arguments)) return *holds;
  std::optional<bool> holds = test_type(name, input);
  if (!holds) holds = test_content(context, name, input);
  if (!holds) throw TemplateError(fmt::format("there is no test named '{}'", name));
  if (!arguments.positional.empty() || !arguments.named.empty()) {
    throw TemplateError(fmt::format("the test '{}' takes no argument", name));
  }
  return *holds;
}

}  // namespace droidspeak::jinja
