#include "text/jinja/functions.h"

#include <ctime>

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

struct RangeBounds {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;

  // Negative sizes and overflow are both "too many" or none.
  uint64_t size() const {
    if (step > 0 ? start >= stop : start <= stop) return 0;
    uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                 : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : ~static_cast<uint64_t>(step) + 1;
    return (distance - 1) / stride + 1;
  }

  std::string label() const {
    if (step == 1) return fmt::format("range({}, {})", start, stop);
    return fmt::format("range({}, {}, {})", start, stop, step);
  }
};

RangeBounds read_range(const Arguments& arguments) {
  ArgumentReader reader("range", arguments, {"start", "stop", "step"});
  if (reader.find(1) == nullptr) return {0, reader.integer(0), 1};
  return {reader.integer(0), reader.integer(1), reader.integer(2, 1)};
}

Value make_range(Context& context, const Value&, const Arguments& arguments) {
  RangeBounds bounds = read_range(arguments);
  if (bounds.step == 0) throw TemplateError("the step of range() cannot be zero");
  if (bounds.size() > static_cast<uint64_t>(kMaxRangeItems)) {
    throw TemplateError(fmt::format("range() of more than {} numbers", kMaxRangeItems));
  }
  auto range = std::make_shared<Sequence>();
  context.work.allocate(bounds.size() * sizeof(Value) + sizeof(Sequence));
  range->kind = SequenceKind::kRange;
  range->label = bounds.label();
  for (uint64_t i = 0; i < bounds.size(); ++i) {
    uint64_t item = static_cast<uint64_t>(bounds.start) + i * static_cast<uint64_t>(bounds.step);
    range->items.emplace_back(static_cast<int64_t>(item));
  }
  return Value(SequenceRef(std::move(range)));
}

void add_pairs(Context& context, const Value& source, Dict& dict) {
  if (const Dict* other = source.dict()) {
    context.work.allocate(other->entries().size() * 4 * sizeof(Value));
    for (const auto& [key, value] : other->entries()) dict.set(key, value);
    return;
  }
  SequenceRef items = iterate(context, source);
  for (const Value& item : items->items) {
    SequenceRef pair = iterate(context, item);
    if (pair->items.size() != 2) throw TemplateError("dict() needs pairs of a key and a value");
    dict.set(pair->items[0], pair->items[1]);
  }
}

Dict read_dict(Context& context, const Arguments& arguments, std::string_view function) {
  if (arguments.positional.size() > 1) {
    throw TemplateError(fmt::format("{}() takes at most one positional argument", function));
  }
  Dict dict;
  if (!arguments.positional.empty()) add_pairs(context, arguments.positional[0], dict);
  for (const auto& [name, value] : arguments.named) dict.set(make_text(context, name), value);
  return dict;
}

Value make_dict_value(Context& context, const Value&, const Arguments& arguments) {
  return make_dict(context, read_dict(context, arguments, "dict"));
}

// The interpreter keeps track of what this makes.
Value make_namespace(Context& context, const Value&, const Arguments& arguments) {
  Dict initial = read_dict(context, arguments, "namespace");
  context.work.allocate(sizeof(Namespace) + initial.entries().size() * 2 * sizeof(Value));
  auto space = std::make_shared<Namespace>();
  for (const auto& [key, value] : initial.entries()) {
    if (!key.is_text()) throw TemplateError("namespace() needs names as keys");
    require_attribute_name(*key.text());
    space->attributes[*key.text()] = value;
  }
  return Value(std::move(space));
}

Value raise_exception(Context& context, const Value&, const Arguments& arguments) {
  ArgumentReader reader("raise_exception", arguments, {"message"});
  throw TemplateError(to_text(context, reader.value(0)));
}

Value strftime_now(Context& context, const Value&, const Arguments& arguments) {
  ArgumentReader reader("strftime_now", arguments, {"format"});
  const std::string& format = reader.text(0);
  if (format.size() > 256)
    throw TemplateError("strftime_now(): the format is longer than 256 bytes");
  if (format.empty()) return make_text(context, "");
  std::time_t now = std::chrono::system_clock::to_time_t(context.now);
  std::tm local{};
  localtime_r(&now, &local);
  // A trailing space tells an empty result from a full buffer.
  std::string text(16384, '\0');
  size_t size = std::strftime(text.data(), text.size(), (format + " ").c_str(), &local);
  if (size == 0) throw TemplateError("strftime_now(): the result is too long");
  text.resize(size - 1);
  return make_text(context, std::move(text));
}

}  // namespace

NativeFunction find_function(std::string_view name) {
  if (name == "range") return make_range;
  if (name == "dict") return make_dict_value;
  if (name == "namespace") return make_namespace;
  if (name == "raise_exception") return raise_exception;
  return name == "strftime_now" ? strftime_now : nullptr;
}

void require_attribute_name(std::string_view name) {
  if (name.starts_with('_')) {
    throw TemplateError(
        fmt::format("a namespace cannot hold '{}': names begin with a letter", name));
  }
}

}  // namespace droidspeak::jinja
