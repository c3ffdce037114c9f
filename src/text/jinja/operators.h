// Arithmetic, membership, attributes, items and slices with Python's meaning.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace droidspeak::jinja {

Value apply_binary(Context& context,
                   BinaryOperator operation,
                   const Value& left,
                   const Value& right);
Value negate(const Value& value);
bool contains(Context& context, const Value& container, const Value& item);

// object.name: methods first, then keys of a dict. Undefined when there is no such thing; throws
// TemplateError when `object` is undefined itself.
Value get_attribute(Context& context, const Value& object, const std::string& name);
// object[key]: items first, then methods.
Value get_item(Context& context, const Value& object, const Value& key);
// "a.b.0" as filters take it: get_item for each part.
Value get_path(Context& context, const Value& object, const std::string& path);

struct SliceBounds {
  std::optional<int64_t> start;
  std::optional<int64_t> stop;
  std::optional<int64_t> step;
};

Value slice(Context& context, const Value& object, const SliceBounds& bounds);

// Number of items or characters; throws TemplateError for what has none.
int64_t length_of(Context& context, const Value& value);

// Python's '%' on text: %s, %d, %r, %%.
Value format_percent(Context& context, const std::string& format, const std::vector<Value>& values);

}  // namespace droidspeak::jinja
