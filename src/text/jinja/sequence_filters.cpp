// Filters that order, join and reshape sequences.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_operations.h"

namespace droidspeak::jinja {

namespace {

enum class Case { kIgnored, kCounts };

Case read_case(const ArgumentReader& reader, size_t index) {
  return reader.is_set(index) ? Case::kCounts : Case::kIgnored;
}

// What an item is compared by: itself or the value at `path`, in lower case unless case counts.
Value key_of(Context& context, const Value& item, const std::string* path, Case letter_case) {
  Value key = path != nullptr ? get_path(context, item, *path) : item;
  if (letter_case == Case::kCounts || !key.is_text()) return key;
  return make_text(context, to_lower(*key.text()));
}

const std::string* read_path(Context& context,
                             const ArgumentReader& reader,
                             size_t index,
                             Value& storage) {
  const Value* attribute = reader.find(index);
  if (attribute == nullptr || attribute->is_none()) return nullptr;
  storage = as_text(context, *attribute);
  return storage.text();
}

Value filter_join(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("join", arguments, {"d", "attribute"});
  Value storage;
  const std::string* path = read_path(context, reader, 1, storage);
  Value separator =
      reader.find(0) != nullptr ? as_text(context, *reader.find(0)) : make_text(context, "");
  SequenceRef items = iterate(context, self);
  if (path == nullptr) return join(context, items->items, *separator.text());
  std::vector<Value> values;
  for (const Value& item : items->items) values.push_back(get_path(context, item, *path));
  return join(context, values, *separator.text());
}

Value filter_first(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("first", arguments, {});
  const Sequence* generator = self.sequence();
  if (generator != nullptr && generator->kind == SequenceKind::kGenerator) {
    if (generator->cursor < generator->items.size()) return generator->items[generator->cursor++];
    return make_undefined("there is no first item: the sequence is empty");
  }
  if (self.is_text() && !self.text()->empty()) return get_item(context, self, Value(int64_t{0}));
  SequenceRef items = iterate(context, self);
  if (!items->items.empty()) return items->items.front();
  return make_undefined("there is no first item: the sequence is empty");
}

void require_not_generator(const Value& value, std::string_view filter) {
  const Sequence* sequence = value.sequence();
  if (sequence != nullptr && sequence->kind == SequenceKind::kGenerator) {
    throw TemplateError(fmt::format("{} of a generator: make it a list first", filter));
  }
}

Value filter_last(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("last", arguments, {});
  require_not_generator(self, "last");
  if (self.is_text() && !self.text()->empty()) return get_item(context, self, Value(int64_t{-1}));
  SequenceRef items = iterate(context, self);
  if (!items->items.empty()) return items->items.back();
  return make_undefined("there is no last item: the sequence is empty");
}

Value filter_list(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("list", arguments, {});
  SequenceRef items = iterate(context, self);
  context.work.scan(items->items.size() * sizeof(Value));
  return make_sequence(context, SequenceKind::kList, items->items);
}

Value filter_reverse(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("reverse", arguments, {});
  if (self.is_text()) return slice(context, self, {std::nullopt, std::nullopt, -1});
  SequenceRef items = iterate(context, self);
  return make_sequence(context, SequenceKind::kGenerator,
                       {items->items.rbegin(), items->items.rend()});
}

Value filter_items(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("items", arguments, {});
  std::vector<Value> pairs;
  if (!self.is_undefined()) {
    if (self.dict() == nullptr)
      throw TemplateError(fmt::format("items of a {}, not a dict", type_name(self)));
    for (const auto& [key, value] : self.dict()->entries()) {
      pairs.push_back(make_sequence(context, SequenceKind::kTuple, {key, value}));
    }
  }
  return make_sequence(context, SequenceKind::kGenerator, std::move(pairs));
}

enum class Direction { kUp, kDown };

struct Keyed {
  Value key;
  Value item;
};

// Stable, also downwards, as Python's sorted().
Value sorted(Context& context, std::vector<Keyed> keyed, Direction direction) {
  auto is_before = [&](const Keyed& left, const Keyed& right) {
    return direction == Direction::kUp ? compare(context, left.key, right.key) < 0
                                       : compare(context, right.key, left.key) < 0;
  };
  std::stable_sort(keyed.begin(), keyed.end(), is_before);
  std::vector<Value> items;
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return make_sequence(context, SequenceKind::kList, std::move(items));
}

Value filter_dictsort(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  if (self.dict() == nullptr) throw TemplateError(fmt::format("dictsort of a {}", type_name(self)));
  const std::string* by = reader.optional_text(1);
  bool by_value = by != nullptr && *by == "value";
  if (by != nullptr && !by_value && *by != "key")
    throw TemplateError("dictsort(): by 'key' or 'value'");
  std::vector<Keyed> keyed;
  for (const auto& [key, value] : self.dict()->entries()) {
    Value pair = make_sequence(context, SequenceKind::kTuple, {key, value});
    keyed.push_back({key_of(context, by_value ? value : key, nullptr, read_case(reader, 0)), pair});
  }
  return sorted(context, std::move(keyed), reader.is_set(2) ? Direction::kDown : Direction::kUp);
}

// Keys of several attributes, "a,b", compare one after the other.
Value sort_key(Context& context, const Value& item, const std::string* paths, Case letter_case) {
  if (paths == nullptr || paths->find(',') == std::string::npos) {
    return key_of(context, item, paths, letter_case);
  }
  std::vector<Value> keys;
  for (size_t start = 0; start <= paths->size();) {
    size_t end = std::min(paths->find(',', start), paths->size());
    std::string path = paths->substr(start, end - start);
    keys.push_back(key_of(context, item, &path, letter_case));
    start = end + 1;
  }
  return make_sequence(context, SequenceKind::kList, std::move(keys));
}

Value filter_sort(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Value storage;
  const std::string* paths = read_path(context, reader, 2, storage);
  std::vector<Keyed> keyed;
  SequenceRef items = iterate(context, self);
  for (const Value& item : items->items) {
    keyed.push_back({sort_key(context, item, paths, read_case(reader, 1)), item});
  }
  return sorted(context, std::move(keyed), reader.is_set(0) ? Direction::kDown : Direction::kUp);
}

Value filter_unique(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("unique", arguments, {"case_sensitive", "attribute"});
  Value storage;
  const std::string* path = read_path(context, reader, 1, storage);
  Dict seen;
  std::vector<Value> kept;
  SequenceRef items = iterate(context, self);
  for (const Value& item : items->items) {
    Value key = key_of(context, item, path, read_case(reader, 0));
    if (seen.find(key) != nullptr) continue;
    context.work.allocate(4 * sizeof(Value));
    seen.set(key, Value(true));
    kept.push_back(item);
  }
  return make_sequence(context, SequenceKind::kGenerator, std::move(kept));
}

// The extreme item: `sign` is 1 for the largest, -1 for the smallest.
Value extreme(Context& context, const Value& self, const ArgumentReader& reader, int sign) {
  Value storage;
  const std::string* path = read_path(context, reader, 1, storage);
  std::optional<Keyed> best;
  SequenceRef items = iterate(context, self);
  for (const Value& item : items->items) {
    Value key = key_of(context, item, path, read_case(reader, 0));
    if (!best || compare(context, key, best->key) * sign > 0) best = Keyed{key, item};
  }
  return best ? best->item : make_undefined("there is no extreme item: the sequence is empty");
}

Value filter_min(Context& context, const Value& self, const Arguments& arguments) {
  return extreme(context, self, ArgumentReader("min", arguments, {"case_sensitive", "attribute"}),
                 -1);
}

Value filter_max(Context& context, const Value& self, const Arguments& arguments) {
  return extreme(context, self, ArgumentReader("max", arguments, {"case_sensitive", "attribute"}),
                 1);
}

Value filter_sum(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("sum", arguments, {"attribute", "start"});
  Value storage;
  const std::string* path = read_path(context, reader, 0, storage);
  Value total = reader.find(1) != nullptr ? *reader.find(1) : Value(int64_t{0});
  SequenceRef items = iterate(context, self);
  for (const Value& item : items->items) {
    Value part = path != nullptr ? get_path(context, item, *path) : item;
    if (part.is_text()) throw TemplateError("sum of strings: use join");
    total = apply_binary(context, BinaryOperator::kAdd, total, part);
  }
  return total;
}

Value filter_batch(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("batch", arguments, {"linecount", "fill_with"});
  int64_t size = reader.integer(0);
  if (size < 1 || size > kMaxRangeItems) throw TemplateError(fmt::format("batch(): size {}", size));
  std::vector<Value> batches;
  std::vector<Value> batch;
  auto flush = [&] {
    batches.push_back(make_sequence(context, SequenceKind::kList, std::exchange(batch, {})));
  };
  SequenceRef items = iterate(context, self);
  for (const Value& item : items->items) {
    if (batch.size() == static_cast<size_t>(size)) flush();
    batch.push_back(item);
  }
  if (!batch.empty()) {
    const Value* fill = reader.find(1);
    while (fill != nullptr && !fill->is_none() && batch.size() < static_cast<size_t>(size))
      batch.push_back(*fill);
    flush();
  }
  return make_sequence(context, SequenceKind::kGenerator, std::move(batches));
}

constexpr NamedFunction kSequenceFilters[] = {
    {"join", filter_join},   {"first", filter_first},       {"last", filter_last},
    {"list", filter_list},   {"reverse", filter_reverse},   {"items", filter_items},
    {"sort", filter_sort},   {"dictsort", filter_dictsort}, {"unique", filter_unique},
    {"min", filter_min},     {"max", filter_max},           {"sum", filter_sum},
    {"batch", filter_batch},
};

}  // namespace

NativeFunction find_sequence_filter(std::string_view name) {
  for (const NamedFunction& filter : kSequenceFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace droidspeak::jinja
