#include "text/jinja/filters.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/json.h"
#include "text/jinja/operators.h"

namespace droidspeak::jinja {

namespace {

Value filter_default(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("default", arguments, {"default_value", "boolean"});
  bool is_missing = self.is_undefined() || (reader.is_set(1) && !is_true(self));
  if (!is_missing) return self;
  return reader.find(0) != nullptr ? *reader.find(0) : make_text(context, "");
}

Value filter_length(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("length", arguments, {});
  return Value(length_of(context, self));
}

Value filter_attr(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("attr", arguments, {"name"});
  if (self.dict() == nullptr) return get_attribute(context, self, reader.text(0));
  auto method = find_method(self, reader.text(0));
  return method ? *method
                : make_undefined(fmt::format("dict has no attribute '{}'", reader.text(0)));
}

void read_separators(const Value& separators, JsonStyle& style) {
  const Sequence* pair = separators.sequence();
  if (pair == nullptr || pair->items.size() != 2 || !pair->items[0].is_text() ||
      !pair->items[1].is_text()) {
    throw TemplateError("tojson(): separators must be a pair of strings");
  }
  style.item_separator = *pair->items[0].text();
  style.key_separator = *pair->items[1].text();
}

Value filter_tojson(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  std::string indent;
  if (reader.find(1) != nullptr && !reader.find(1)->is_none()) {
    if (const std::string* text = reader.find(1)->text()) {
      indent = *text;
    } else {
      constexpr int64_t kMaxIndent = 1000;
      int64_t spaces = reader.integer(1);
      if (spaces > kMaxIndent) throw TemplateError(fmt::format("tojson(): indent of {}", spaces));
      indent.assign(static_cast<size_t>(std::max<int64_t>(spaces, 0)), ' ');
    }
    style.indent = &indent;
    style.item_separator = ",";
  }
  if (reader.find(2) != nullptr && !reader.find(2)->is_none())
    read_separators(*reader.find(2), style);
  style.keys = reader.is_set(3) ? KeyOrder::kSorted : KeyOrder::kAsInserted;
  style.non_ascii = reader.is_set(0) ? NonAscii::kEscaped : NonAscii::kAsIs;
  return make_text(context, to_json(context, self, style));
}

NativeFunction find_filter(std::string_view name) {
  if (name == "default" || name == "d") return filter_default;
  if (name == "length" || name == "count") return filter_length;
  if (name == "attr") return filter_attr;
  if (name == "tojson") return filter_tojson;
  for (auto find :
       {find_text_filter, find_number_filter, find_sequence_filter, find_selection_filter}) {
    if (NativeFunction function = find(name)) return function;
  }
  return nullptr;
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Value apply_filter(Context& context,
                   std::string_view name,
                   const Value& input,
                   const Arguments& arguments) {
  context.work.step();
  NativeFunction function = find_filter(name);
  if (function == nullptr) throw TemplateError(fmt::format("there is no filter named '{}'", name));
  return function(context, input, arguments);
}

}  // namespace droidspeak::jinja
