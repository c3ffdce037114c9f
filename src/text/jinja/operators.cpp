#include "text/jinja/operators.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/methods.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

std::string_view symbol_of(BinaryOperator operation) {
  switch (operation) {
    case BinaryOperator::kAdd:
      return "+";
    case BinaryOperator::kSubtract:
      return "-";
    case BinaryOperator::kMultiply:
      return "*";
    case BinaryOperator::kDivide:
      return "/";
    case BinaryOperator::kFloorDivide:
      return "//";
    case BinaryOperator::kModulo:
      return "%";
    case BinaryOperator::kPower:
      return "**";
  }
  return "?";
}

[[noreturn]] void fail_operands(BinaryOperator operation, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (const auto* undefined = value->get<Undefined>()) throw TemplateError(*undefined->reason);
  }
  throw TemplateError(fmt::format("unsupported operands for {}: {} and {}", symbol_of(operation),
                                  type_name(left), type_name(right)));
}

[[noreturn]] void fail_overflow() {
  throw TemplateError("the result does not fit 64 bits");
}

Value integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) throw TemplateError("division by zero");
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) fail_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) fail_overflow();
  }
  return Value(result);
}

int64_t floor_divide(int64_t left, int64_t right) {
  if (right == 0) throw TemplateError("division by zero");
  if (right == -1) {
    int64_t negated = 0;
    if (__builtin_sub_overflow(int64_t{0}, left, &negated)) fail_overflow();
    return negated;
  }
  int64_t quotient = left / right;
  return (left % right != 0 && (left < 0) != (right < 0)) ? quotient - 1 : quotient;
}

int64_t floor_modulo(int64_t left, int64_t right) {
  if (right == 0) throw TemplateError("division by zero");
  if (right == -1) return 0;
  int64_t rest = left % right;
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

Value integer_arithmetic(BinaryOperator operation, int64_t left, int64_t right) {
  int64_t result = 0;
  bool overflows = false;
  switch (operation) {
    case BinaryOperator::kAdd:
      overflows = __builtin_add_overflow(left, right, &result);
      break;
    case BinaryOperator::kSubtract:
      overflows = __builtin_sub_overflow(left, right, &result);
      break;
    case BinaryOperator::kMultiply:
      overflows = __builtin_mul_overflow(left, right, &result);
      break;
    case BinaryOperator::kDivide:
      if (right == 0) throw TemplateError("division by zero");
      return Value(static_cast<double>(left) / static_cast<double>(right));
    case BinaryOperator::kFloorDivide:
      return Value(floor_divide(left, right));
    case BinaryOperator::kModulo:
      return Value(floor_modulo(left, right));
    case BinaryOperator::kPower:
      return integer_power(left, right);
  }
  if (overflows) fail_overflow();
  return Value(result);
}

double float_modulo(double left, double right) {
  double rest = std::fmod(left, right);
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

Value float_arithmetic(BinaryOperator operation, double left, double right) {
  bool divides = operation == BinaryOperator::kDivide ||
                 operation == BinaryOperator::kFloorDivide || operation == BinaryOperator::kModulo;
  if (divides && right == 0) throw TemplateError("division by zero");
  switch (operation) {
    case BinaryOperator::kAdd:
      return Value(left + right);
    case BinaryOperator::kSubtract:
      return Value(left - right);
    case BinaryOperator::kMultiply:
      return Value(left * right);
    case BinaryOperator::kDivide:
      return Value(left / right);
    case BinaryOperator::kFloorDivide:
      return Value(std::floor(left / right));
    case BinaryOperator::kModulo:
      return Value(float_modulo(left, right));
    case BinaryOperator::kPower:
      return Value(std::pow(left, right));
  }
  return Value();
}

bool is_list_or_tuple(const Value& value) {
  const Sequence* sequence = value.sequence();
  return sequence != nullptr &&
         (sequence->kind == SequenceKind::kList || sequence->kind == SequenceKind::kTuple);
}

Value concatenate(Context& context, const Sequence& left, const Sequence& right) {
  context.work.allocate((left.items.size() + right.items.size()) * sizeof(Value));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return make_sequence(context, left.kind, std::move(items));
}

Value repeat(Context& context, const Value& value, int64_t times) {
  auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (const std::string* text = value.text()) {
    TextBuilder builder(context.work);
    builder.repeat(*text, text->empty() ? 0 : count);
    return make_text(context, builder.take());
  }
  const std::vector<Value>& source = value.sequence()->items;
  if (source.empty()) count = 0;
  context.work.step(count);
  std::vector<Value> items;
  for (uint64_t i = 0; i < count; ++i) {
    context.work.allocate(source.size() * sizeof(Value));
    items.insert(items.end(), source.begin(), source.end());
  }
  return make_sequence(context, value.sequence()->kind, std::move(items));
}

std::optional<Value> apply_to_containers(Context& context,
                                         BinaryOperator operation,
                                         const Value& left,
                                         const Value& right) {
  if (operation == BinaryOperator::kAdd) {
    if (left.text() && right.text()) {
      context.work.allocate(left.text()->size() + right.text()->size());
      return Value(Text(std::make_shared<const std::string>(*left.text() + *right.text())));
    }
    if (is_list_or_tuple(left) && is_list_or_tuple(right) &&
        left.sequence()->kind == right.sequence()->kind) {
      return concatenate(context, *left.sequence(), *right.sequence());
    }
  }
  if (operation == BinaryOperator::kMultiply) {
    auto is_repeatable = [](const Value& value) {
      return value.is_text() || is_list_or_tuple(value);
    };
    if (is_repeatable(left) && right.integer()) return repeat(context, left, *right.integer());
    if (is_repeatable(right) && left.integer()) return repeat(context, right, *left.integer());
  }
  if (operation == BinaryOperator::kModulo && left.text()) {
    bool is_tuple = right.sequence() != nullptr && right.sequence()->kind == SequenceKind::kTuple;
    return format_percent(context, *left.text(),
                          is_tuple ? right.sequence()->items : std::vector<Value>{right});
  }
  return std::nullopt;
}

Value item_of_sequence(const Value& object, int64_t index) {
  const Sequence& sequence = *object.sequence();
  auto size = static_cast<int64_t>(sequence.items.size());
  bool has_items =
      sequence.kind != SequenceKind::kView && sequence.kind != SequenceKind::kGenerator;
  if (has_items && index >= -size && index < size) {
    return sequence.items[static_cast<size_t>(index < 0 ? index + size : index)];
  }
  return make_undefined(fmt::format("{} object has no element {}", type_name(object), index));
}

Value character_of_text(Context& context, const std::string& text, int64_t index) {
  context.work.scan(text.size());
  std::vector<std::string_view> characters = split_characters(text);
  auto size = static_cast<int64_t>(characters.size());
  if (index < -size || index >= size) {
    return make_undefined(fmt::format("str object has no element {}", index));
  }
  return make_text(context,
                   std::string(characters[static_cast<size_t>(index < 0 ? index + size : index)]));
}

[[noreturn]] void fail_undefined(const Undefined& undefined) {
  throw TemplateError(*undefined.reason);
}

// Python's slice.indices: calls `pick` with every index that is in the slice.
template <class Pick>
void for_each_index(int64_t size, const SliceBounds& bounds, Pick pick) {
  int64_t step = bounds.step.value_or(1);
  if (step == 0) throw TemplateError("the step of a slice cannot be zero");
  int64_t lowest = step < 0 ? -1 : 0;
  int64_t highest = step < 0 ? size - 1 : size;
  auto clamp = [&](std::optional<int64_t> bound, int64_t fallback) {
    if (!bound) return fallback;
    int64_t index = *bound < 0 ? (*bound < -size ? lowest : *bound + size) : *bound;
    return std::clamp(index, lowest, std::max(lowest, highest));
  };
  int64_t start = clamp(bounds.start, step < 0 ? highest : lowest);
  int64_t stop = clamp(bounds.stop, step < 0 ? lowest : highest);
  for (int64_t i = start; step < 0 ? i > stop : i < stop;) {
    pick(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
}

}  // namespace

Value apply_binary(Context& context,
                   BinaryOperator operation,
                   const Value& left,
                   const Value& right) {
  if (auto whole = left.integer(), other = right.integer(); whole && other) {
    return integer_arithmetic(operation, *whole, *other);
  }
  if (auto number = left.number(), other = right.number(); number && other) {
    return float_arithmetic(operation, *number, *other);
  }
  if (auto result = apply_to_containers(context, operation, left, right)) return *result;
  fail_operands(operation, left, right);
}

Value negate(const Value& value) {
  if (auto whole = value.integer()) return integer_arithmetic(BinaryOperator::kSubtract, 0, *whole);
  if (const auto* real = value.get<double>()) return Value(-*real);
  if (const auto* undefined = value.get<Undefined>()) fail_undefined(*undefined);
  throw TemplateError(fmt::format("a {} has no sign", type_name(value)));
}

bool contains(Context& context, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (!item.is_text()) {
      throw TemplateError(fmt::format("'in' on a string needs a string, not {}", type_name(item)));
    }
    context.work.scan(text->size());
    return find_text(*text, *item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) return dict->find(item) != nullptr;
  if (container.is_undefined() || container.sequence() != nullptr) {
    SequenceRef items = iterate(context, container);
    for (const Value& candidate : items->items) {
      if (equals(context, candidate, item)) return true;
    }
    return false;
  }
  throw TemplateError(fmt::format("'in' does not work on a {}", type_name(container)));
}

Value get_attribute(Context& context, const Value& object, const std::string& name) {
  context.work.step();
  if (const auto* undefined = object.get<Undefined>()) fail_undefined(*undefined);
  if (auto method = find_method(object, name)) return *method;
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(name)) return *value;
  }
  if (const auto* space = object.get<std::shared_ptr<Namespace>>()) {
    auto found = (*space)->attributes.find(name);
    if (found != (*space)->attributes.end()) return found->second;
  }
  return make_undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), name));
}

Value get_item(Context& context, const Value& object, const Value& key) {
  context.work.step();
  if (const auto* undefined = object.get<Undefined>()) fail_undefined(*undefined);
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(key)) return *value;
  }
  if (auto index = key.integer()) {
    if (object.sequence() != nullptr) return item_of_sequence(object, *index);
    if (const std::string* text = object.text()) return character_of_text(context, *text, *index);
  }
  if (const std::string* name = key.text()) return get_attribute(context, object, *name);
  return make_undefined(
      fmt::format("'{} object' has no element {}", type_name(object), to_repr(context, key)));
}

Value get_path(Context& context, const Value& object, const std::string& path) {
  Value value = object;
  for (size_t start = 0; start <= path.size();) {
    size_t end = std::min(path.find('.', start), path.size());
    std::string part = path.substr(start, end - start);
    int64_t index = 0;
    auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    bool is_index = error == std::errc() && rest == part.data() + part.size() && part[0] != '-';
    value = get_item(context, value, is_index ? Value(index) : make_text(context, part));
    start = end + 1;
  }
  return value;
}

Value slice(Context& context, const Value& object, const SliceBounds& bounds) {
  if (const std::string* text = object.text()) {
    context.work.scan(text->size());
    context.work.allocate(text->size() * sizeof(std::string_view));
    std::vector<std::string_view> characters = split_characters(*text);
    TextBuilder builder(context.work);
    for_each_index(static_cast<int64_t>(characters.size()), bounds,
                   [&](size_t index) { builder.append(characters[index]); });
    return make_text(context, builder.take());
  }
  const Sequence* sequence = object.sequence();
  bool has_items = sequence != nullptr && sequence->kind != SequenceKind::kView &&
                   sequence->kind != SequenceKind::kGenerator;
  if (!has_items) {
    if (const auto* undefined = object.get<Undefined>()) fail_undefined(*undefined);
    return make_undefined(fmt::format("a {} cannot be sliced", type_name(object)));
  }
  context.work.scan(sequence->items.size() * sizeof(Value));
  std::vector<Value> items;
  for_each_index(static_cast<int64_t>(sequence->items.size()), bounds,
                 [&](size_t index) { items.push_back(sequence->items[index]); });
  bool is_tuple = sequence->kind == SequenceKind::kTuple;
  return make_sequence(context, is_tuple ? SequenceKind::kTuple : SequenceKind::kList,
                       std::move(items));
}

int64_t length_of(Context& context, const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.text()) {
    context.work.scan(text->size());
    return static_cast<int64_t>(count_characters(*text));
  }
  if (const Dict* dict = value.dict()) return static_cast<int64_t>(dict->entries().size());
  if (const Sequence* sequence = value.sequence();
      sequence && sequence->kind != SequenceKind::kGenerator) {
    return static_cast<int64_t>(sequence->items.size());
  }
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
    return static_cast<int64_t>((*loop)->items->items.size());
  }
  throw TemplateError(fmt::format("a {} has no length", type_name(value)));
}

Value format_percent(Context& context,
                     const std::string& format,
                     const std::vector<Value>& values) {
  TextBuilder builder(context.work);
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      builder.append(std::string_view(format).substr(i, 1));
      continue;
    }
    char kind = ++i < format.size() ? format[i] : '\0';
    if (kind == '%') {
      builder.append("%");
      continue;
    }
    if (next >= values.size()) throw TemplateError("not enough values for the format string");
    const Value& value = values[next++];
    if (kind == 's') {
      builder.append(to_text(context, value));
    } else if (kind == 'r') {
      builder.append(to_repr(context, value));
    } else if ((kind == 'd' || kind == 'i') && value.number() &&
               std::fabs(*value.number()) < 9e18) {
      builder.append(
          std::to_string(value.integer().value_or(static_cast<int64_t>(*value.number()))));
    } else {
      throw TemplateError(
          fmt::format("format '%{}' with a {} is not supported", kind, type_name(value)));
    }
  }
  if (next < values.size()) throw TemplateError("more values than the format string uses");
  return make_text(context, builder.take());
}

}  // namespace droidspeak::jinja
