// Values of the template language: Python's, as far as templates can see them. Values are cheap to
// copy: text, sequences and dicts are immutable and shared. Only namespaces can change, and the
// interpreter that made them empties them at the end, so cycles through them do not leak.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja/work.h"

namespace droidspeak::jinja {

class Value;
class Dict;
struct Sequence;
struct Namespace;
struct Callable;
struct Loop;
struct Scope;
struct Macro;

using Text = std::shared_ptr<const std::string>;
using SequenceRef = std::shared_ptr<const Sequence>;
using DictRef = std::shared_ptr<const Dict>;

// Prints as nothing and is false; any other use fails with `reason`.
struct Undefined {
  Text reason;
};

struct None {};

class Value {
 public:
  Value() : data_(None{}) {}

  template <class T>
  explicit Value(T data) : data_(std::move(data)) {}

  template <class T>
  const T* get() const {
    return std::get_if<T>(&data_);
  }

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }

  bool is_undefined() const { return is<Undefined>(); }

  bool is_none() const { return is<None>(); }

  bool is_text() const { return is<Text>(); }

  bool is_number() const { return is<int64_t>() || is<double>() || is<bool>(); }

  // Null unless of that type.
  const std::string* text() const { return is<Text>() ? get<Text>()->get() : nullptr; }

  const Sequence* sequence() const {
    return is<SequenceRef>() ? get<SequenceRef>()->get() : nullptr;
  }

  const Dict* dict() const { return is<DictRef>() ? get<DictRef>()->get() : nullptr; }

  // Booleans count as 0 and 1, as in Python.
  std::optional<int64_t> integer() const;
  std::optional<double> number() const;

 private:
  std::variant<None,
               Undefined,
               bool,
               int64_t,
               double,
               Text,
               SequenceRef,
               DictRef,
               std::shared_ptr<Namespace>,
               std::shared_ptr<const Callable>,
               std::shared_ptr<Loop>>
      data_;
};

enum class SequenceKind { kList, kTuple, kRange, kView, kGenerator };

struct Sequence {
  SequenceKind kind = SequenceKind::kList;
  std::vector<Value> items;
  int depth = 1;              // 1 + the deepest item
  std::string label;          // how a range prints; the type name of a view
  mutable size_t cursor = 0;  // kGenerator: items before it were consumed
};

// Keeps insertion order. Keys are texts, numbers, booleans and none.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  // Throws TemplateError when the key cannot be one.
  void set(const Value& key, Value value);

  const std::vector<Entry>& entries() const { return entries_; }

  int depth() const { return depth_; }

 private:
  std::optional<size_t> index_of(const Value& key) const;

  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_text_;  // views into the keys of entries_
  std::map<double, size_t> by_number_;
  std::optional<size_t> of_none_;
  int depth_ = 1;
};

struct Namespace {
  std::map<std::string, Value, std::less<>> attributes;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

using NativeFunction = Value (*)(Context&, const Value& self, const Arguments&);

// A function, a method bound to `self`, or a macro with the scope it was defined in.
struct Callable {
  std::string name;
  NativeFunction native = nullptr;
  Value self;
  const Macro* macro = nullptr;
  std::shared_ptr<Scope> scope;
};

struct Loop {
  SequenceRef items;
  size_t index = 0;
  std::optional<Value> last_seen;  // of loop.changed
};

int depth_of(const Value& value);

Value make_undefined(std::string reason);
// The following charge the allowance; sequences and dicts are refused beyond kMaxValueDepth.
Value make_text(Context& context, std::string text);
Value make_sequence(Context& context, SequenceKind kind, std::vector<Value> items);
Value make_dict(Context& context, Dict dict);

bool is_true(const Value& value);
// Python's name of the type, for messages.
std::string_view type_name(const Value& value);
bool equals(Context& context, const Value& left, const Value& right);
// Negative, zero or positive; throws TemplateError when Python would refuse to order the two.
int compare(Context& context, const Value& left, const Value& right);
// The items a loop over `value` sees; consumes generators. Throws TemplateError for scalars.
SequenceRef iterate(Context& context, const Value& value);

}  // namespace droidspeak::jinja
