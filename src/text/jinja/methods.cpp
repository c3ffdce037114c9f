#include "text/jinja/methods.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/operators.h"

namespace droidspeak::jinja {

namespace {

constexpr std::array<std::string_view, 13> kRefused = {
    "append", "clear",   "extend", "insert",     "pop", "popitem", "remove",
    "update", "reverse", "sort",   "setdefault", "add", "discard"};

Value bind(std::string_view name, NativeFunction function, const Value& self) {
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->native = function;
  callable->self = self;
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

Value pair_of(Context& context, const Dict::Entry& entry) {
  return make_sequence(context, SequenceKind::kTuple, {entry.first, entry.second});
}

Value make_view(Context& context, std::vector<Value> items, std::string_view label) {
  Value list = make_sequence(context, SequenceKind::kView, std::move(items));
  auto view = std::make_shared<Sequence>(*list.sequence());
  view->label = label;
  return Value(SequenceRef(std::move(view)));
}

Value dict_get(Context&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("get", arguments, {"key", "default"});
  if (const Value* found = self.dict()->find(reader.value(0))) return *found;
  return reader.find(1) != nullptr ? *reader.find(1) : Value();
}

Value dict_items(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("items", arguments, {});
  std::vector<Value> items;
  for (const auto& entry : self.dict()->entries()) items.push_back(pair_of(context, entry));
  return make_view(context, std::move(items), "dict_items");
}

Value dict_keys(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("keys", arguments, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->entries()) items.push_back(key);
  return make_view(context, std::move(items), "dict_keys");
}

Value dict_values(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("values", arguments, {});
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->entries()) items.push_back(value);
  return make_view(context, std::move(items), "dict_values");
}

Value copy_of_self(Context&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("copy", arguments, {});
  return self;
}

Value sequence_index(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("index", arguments, {"value"});
  const auto& items = self.sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equals(context, items[i], reader.value(0))) return Value(static_cast<int64_t>(i));
  }
  throw TemplateError("index(): the value is not in the list");
}

Value sequence_count(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("count", arguments, {"value"});
  int64_t count = 0;
  for (const Value& item : self.sequence()->items)
    count += equals(context, item, reader.value(0)) ? 1 : 0;
  return Value(count);
}

Loop& loop_of(const Value& self) {
  return **self.get<std::shared_ptr<Loop>>();
}

Value loop_cycle(Context&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty())
    throw TemplateError("loop.cycle() needs something to cycle through");
  return arguments.positional[loop_of(self).index % arguments.positional.size()];
}

Value loop_changed(Context& context, const Value& self, const Arguments& arguments) {
  Loop& loop = loop_of(self);
  Value seen = make_sequence(context, SequenceKind::kTuple, arguments.positional);
  bool has_changed = !loop.last_seen || !equals(context, *loop.last_seen, seen);
  // Holding the loop itself would make a cycle that is never freed.
  for (const Value& item : arguments.positional) {
    if (depth_of(item) > 1) throw TemplateError("loop.changed() of nested values is not supported");
  }
  loop.last_seen = std::move(seen);
  return Value(has_changed);
}

std::optional<Value> loop_item(const Loop& loop, size_t index, std::string_view name) {
  if (index < loop.items->items.size()) return loop.items->items[index];
  return make_undefined(fmt::format("there is no {}", name));
}

std::optional<Value> loop_attribute(const Value& object, std::string_view name) {
  const Loop& loop = loop_of(object);
  auto index = static_cast<int64_t>(loop.index);
  auto size = static_cast<int64_t>(loop.items->items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index == size - 1);
  if (name == "length") return Value(size);
  if (name == "depth") return Value(int64_t{1});
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem") return loop_item(loop, loop.index - 1, "previous item");
  if (name == "nextitem") return loop_item(loop, loop.index + 1, "next item");
  if (name == "cycle") return bind(name, loop_cycle, object);
  if (name == "changed") return bind(name, loop_changed, object);
  return std::nullopt;
}

NativeFunction find_dict_method(std::string_view name) {
  if (name == "get") return dict_get;
  if (name == "items") return dict_items;
  if (name == "keys") return dict_keys;
  if (name == "values") return dict_values;
  return name == "copy" ? copy_of_self : nullptr;
}

NativeFunction find_sequence_method(const Sequence& sequence, std::string_view name) {
  bool has_items =
      sequence.kind != SequenceKind::kGenerator && sequence.kind != SequenceKind::kView;
  if (!has_items) return nullptr;
  if (name == "index") return sequence_index;
  if (name == "count") return sequence_count;
  return name == "copy" && sequence.kind == SequenceKind::kList ? copy_of_self : nullptr;
}

bool is_refused(const Value& object, std::string_view name) {
  bool can_change = object.dict() != nullptr || (object.sequence() != nullptr &&
                                                 object.sequence()->kind == SequenceKind::kList);
  if (!can_change || std::find(kRefused.begin(), kRefused.end(), name) == kRefused.end())
    return false;
  bool of_both = name == "clear" || name == "pop";
  bool of_dict = name == "popitem" || name == "update" || name == "setdefault";
  bool of_set = name == "add" || name == "discard";
  return of_both || (!of_set && of_dict == (object.dict() != nullptr));
}

}  // namespace

std::optional<Value> find_method(const Value& object, std::string_view name) {
  if (is_refused(object, name)) {
    return make_undefined(fmt::format("{}.{}() would change its object, which templates may not",
                                      type_name(object), name));
  }
  NativeFunction function = nullptr;
  if (object.is_text()) {
    function = find_text_method(name);
  } else if (object.dict() != nullptr) {
    function = find_dict_method(name);
  } else if (object.sequence() != nullptr) {
    function = find_sequence_method(*object.sequence(), name);
  } else if (object.is<std::shared_ptr<Loop>>()) {
    return loop_attribute(object, name);
  }
  if (function == nullptr) return std::nullopt;
  return bind(name, function, object);
}

}  // namespace droidspeak::jinja
