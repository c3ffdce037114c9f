#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/characters.h"

namespace droidspeak::jinja {

namespace {

constexpr size_t kTextOverhead = 48;

void require_shallow(int depth) {
  if (depth > kMaxValueDepth) {
    throw TemplateError(fmt::format("lists or dicts nest deeper than {}", kMaxValueDepth));
  }
}

SequenceRef characters_of(Context& context, const std::string& text) {
  context.work.allocate(text.size() * (sizeof(Value) + kTextOverhead));
  auto sequence = std::make_shared<Sequence>();
  for (std::string_view character : split_characters(text)) {
    sequence->items.emplace_back(std::make_shared<const std::string>(character));
  }
  return sequence;
}

SequenceRef keys_of(Context& context, const Dict& dict) {
  context.work.allocate(dict.entries().size() * sizeof(Value));
  auto sequence = std::make_shared<Sequence>();
  for (const auto& [key, value] : dict.entries()) sequence->items.push_back(key);
  return sequence;
}

SequenceRef rest_of_generator(Context& context, const Sequence& generator) {
  auto rest = std::make_shared<Sequence>();
  context.work.allocate((generator.items.size() - generator.cursor) * sizeof(Value));
  rest->items.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.cursor),
                     generator.items.end());
  rest->depth = generator.depth;
  generator.cursor = generator.items.size();
  return rest;
}

bool sequences_equal(Context& context, const Sequence& left, const Sequence& right) {
  if (&left == &right) return true;
  if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
  if (left.kind == SequenceKind::kGenerator) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    if (!equals(context, left.items[i], right.items[i])) return false;
  }
  return true;
}

bool dicts_equal(Context& context, const Dict& left, const Dict& right) {
  if (left.entries().size() != right.entries().size()) return false;
  for (const auto& [key, value] : left.entries()) {
    const Value* other = right.find(key);
    if (other == nullptr || !equals(context, value, *other)) return false;
  }
  return true;
}

bool texts_equal(Context& context, const std::string& left, const std::string& right) {
  if (left.size() != right.size()) return false;
  context.work.scan(left.size());
  return left == right;
}

int compare_sequences(Context& context, const Sequence& left, const Sequence& right) {
  size_t common = std::min(left.items.size(), right.items.size());
  for (size_t i = 0; i < common; ++i) {
    if (!equals(context, left.items[i], right.items[i])) {
      return compare(context, left.items[i], right.items[i]);
    }
  }
  if (left.items.size() == right.items.size()) return 0;
  return left.items.size() < right.items.size() ? -1 : 1;
}

bool can_be_ordered(const Sequence& left, const Sequence& right) {
  return left.kind == right.kind &&
         (left.kind == SequenceKind::kList || left.kind == SequenceKind::kTuple);
}

}  // namespace

std::optional<int64_t> Value::integer() const {
  if (const auto* whole = get<int64_t>()) return *whole;
  if (const auto* flag = get<bool>()) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (const auto* real = get<double>()) return *real;
  if (auto whole = integer()) return static_cast<double>(*whole);
  return std::nullopt;
}

std::optional<size_t> Dict::index_of(const Value& key) const {
  if (const std::string* text = key.text()) {
    auto found = by_text_.find(*text);
    if (found != by_text_.end()) return found->second;
  } else if (auto number = key.number(); number && !std::isnan(*number)) {
    auto found = by_number_.find(*number);
    if (found != by_number_.end()) return found->second;
  } else if (key.is_none()) {
    return of_none_;
  }
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  auto index = index_of(key);
  return index ? &entries_[*index].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  auto found = by_text_.find(key);
  return found == by_text_.end() ? nullptr : &entries_[found->second].second;
}

void Dict::set(const Value& key, Value value) {
  depth_ = std::max(depth_, 1 + depth_of(value));
  require_shallow(depth_);
  if (auto index = index_of(key)) {
    entries_[*index].second = std::move(value);
    return;
  }
  auto number = key.number();
  if (const std::string* text = key.text()) {
    by_text_.emplace(*text, entries_.size());
  } else if (number && !std::isnan(*number)) {
    by_number_.emplace(*number, entries_.size());
  } else if (key.is_none()) {
    of_none_ = entries_.size();
  } else {
    throw TemplateError(fmt::format("a {} cannot be a key of a dict", type_name(key)));
  }
  entries_.emplace_back(key, std::move(value));
}

int depth_of(const Value& value) {
  if (const Sequence* sequence = value.sequence()) return sequence->depth;
  if (const Dict* dict = value.dict()) return dict->depth();
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) return 1 + (*loop)->items->depth;
  if (const auto* callable = value.get<std::shared_ptr<const Callable>>()) {
    return (*callable)->macro != nullptr ? 1 : 1 + depth_of((*callable)->self);
  }
  return 0;
}

Value make_undefined(std::string reason) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(reason))});
}

Value make_text(Context& context, std::string text) {
  context.work.allocate(text.size() + kTextOverhead);
  return Value(Text(std::make_shared<const std::string>(std::move(text))));
}

Value make_sequence(Context& context, SequenceKind kind, std::vector<Value> items) {
  context.work.allocate(items.size() * sizeof(Value) + sizeof(Sequence));
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, 1 + depth_of(item));
  require_shallow(sequence->depth);
  sequence->items = std::move(items);
  return Value(SequenceRef(std::move(sequence)));
}

Value make_dict(Context& context, Dict dict) {
  context.work.allocate(dict.entries().size() * 4 * sizeof(Value) + sizeof(Dict));
  return Value(DictRef(std::make_shared<const Dict>(std::move(dict))));
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (auto number = value.number()) return *number != 0;
  if (const std::string* text = value.text()) return !text->empty();
  if (const Dict* dict = value.dict()) return !dict->entries().empty();
  if (const Sequence* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kGenerator || !sequence->items.empty();
  }
  return true;
}

std::string_view type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_text()) return "str";
  if (value.dict() != nullptr) return "dict";
  if (const Sequence* sequence = value.sequence()) {
    switch (sequence->kind) {
      case SequenceKind::kList:
        return "list";
      case SequenceKind::kTuple:
        return "tuple";
      case SequenceKind::kRange:
        return "range";
      case SequenceKind::kView:
        return sequence->label;
      case SequenceKind::kGenerator:
        return "generator";
    }
  }
  if (value.is<std::shared_ptr<Namespace>>()) return "Namespace";
  return value.is<std::shared_ptr<Loop>>() ? "LoopContext" : "function";
}

bool equals(Context& context, const Value& left, const Value& right) {
  context.work.step();
  if (auto whole = left.integer(), other = right.integer(); whole && other) return *whole == *other;
  if (auto number = left.number(), other = right.number(); number && other)
    return *number == *other;
  if (left.text() && right.text()) return texts_equal(context, *left.text(), *right.text());
  if (left.sequence() && right.sequence()) {
    return sequences_equal(context, *left.sequence(), *right.sequence());
  }
  if (left.dict() && right.dict()) return dicts_equal(context, *left.dict(), *right.dict());
  if (left.is_none() || left.is_undefined()) {
    return left.is_none() ? right.is_none() : right.is_undefined();
  }
  const auto* one = left.get<std::shared_ptr<Namespace>>();
  const auto* other = right.get<std::shared_ptr<Namespace>>();
  return one != nullptr && other != nullptr && *one == *other;
}

int compare(Context& context, const Value& left, const Value& right) {
  context.work.step();
  if (auto whole = left.integer(), other = right.integer(); whole && other) {
    return *whole < *other ? -1 : static_cast<int>(*whole > *other);
  }
  if (auto number = left.number(), other = right.number(); number && other) {
    return *number < *other ? -1 : static_cast<int>(*number > *other);
  }
  if (left.text() && right.text()) {
    context.work.scan(std::min(left.text()->size(), right.text()->size()));
    return left.text()->compare(*right.text());
  }
  if (left.sequence() && right.sequence() && can_be_ordered(*left.sequence(), *right.sequence())) {
    return compare_sequences(context, *left.sequence(), *right.sequence());
  }
  for (const Value* value : {&left, &right}) {
    if (const auto* undefined = value->get<Undefined>()) throw TemplateError(*undefined->reason);
  }
  throw TemplateError(fmt::format("cannot order a {} and a {}", type_name(left), type_name(right)));
}

SequenceRef iterate(Context& context, const Value& value) {
  if (const auto* sequence = value.get<SequenceRef>()) {
    if ((*sequence)->kind != SequenceKind::kGenerator) return *sequence;
    return rest_of_generator(context, **sequence);
  }
  if (value.is_undefined()) return std::make_shared<const Sequence>();
  if (const std::string* text = value.text()) return characters_of(context, *text);
  if (const Dict* dict = value.dict()) return keys_of(context, *dict);
  throw TemplateError(fmt::format("a {} cannot be looped over", type_name(value)));
}

}  // namespace droidspeak::jinja
