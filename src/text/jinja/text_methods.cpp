// Methods of str.
#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_operations.h"

namespace droidspeak::jinja {

namespace {

const std::string& own(Context& context, const Value& self) {
  context.work.scan(self.text()->size());
  return *self.text();
}

Value strip_side(Context& context, const Value& self, const Arguments& arguments, Side side) {
  ArgumentReader reader("strip", arguments, {"chars"});
  const std::string* chars = reader.optional_text(0);
  return stripped(context, own(context, self), side, chars);
}

Value method_strip(Context& context, const Value& self, const Arguments& arguments) {
  return strip_side(context, self, arguments, Side::kBoth);
}

Value method_lstrip(Context& context, const Value& self, const Arguments& arguments) {
  return strip_side(context, self, arguments, Side::kLeft);
}

Value method_rstrip(Context& context, const Value& self, const Arguments& arguments) {
  return strip_side(context, self, arguments, Side::kRight);
}

Value method_split(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("split", arguments, {"sep", "maxsplit"});
  return split(context, own(context, self), reader.optional_text(0), reader.integer(1, -1),
               SplitFrom::kLeft);
}

Value method_rsplit(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("rsplit", arguments, {"sep", "maxsplit"});
  return split(context, own(context, self), reader.optional_text(0), reader.integer(1, -1),
               SplitFrom::kRight);
}

Value method_splitlines(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("splitlines", arguments, {});
  std::vector<Value> lines;
  for (std::string_view line : split_lines(own(context, self))) {
    lines.push_back(make_text(context, std::string(line)));
  }
  return make_sequence(context, SequenceKind::kList, std::move(lines));
}

// Takes one text or a tuple of them.
template <class Matches>
Value matches_any(const Value& self,
                  const Arguments& arguments,
                  std::string_view name,
                  Matches matches) {
  ArgumentReader reader(name, arguments, {"affix"});
  const Value& affix = reader.value(0);
  if (affix.sequence() != nullptr && affix.sequence()->kind == SequenceKind::kTuple) {
    const auto& options = affix.sequence()->items;
    return Value(std::any_of(options.begin(), options.end(), [&](const Value& option) {
      return option.is_text() && matches(*self.text(), *option.text());
    }));
  }
  return Value(static_cast<bool>(matches(*self.text(), reader.text(0))));
}

Value method_startswith(Context& context, const Value& self, const Arguments& arguments) {
  context.work.scan(self.text()->size());
  return matches_any(
      self, arguments, "startswith",
      [](const std::string& text, const std::string& affix) { return text.starts_with(affix); });
}

Value method_endswith(Context& context, const Value& self, const Arguments& arguments) {
  context.work.scan(self.text()->size());
  return matches_any(
      self, arguments, "endswith",
      [](const std::string& text, const std::string& affix) { return text.ends_with(affix); });
}

template <std::string (*kConvert)(std::string_view)>
Value method_convert(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("case conversion", arguments, {});
  return make_text(context, kConvert(own(context, self)));
}

Value method_replace(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("replace", arguments, {"old", "new", "count"});
  return replace(context, own(context, self),
                 {reader.text(0), reader.text(1), reader.integer(2, -1)});
}

int64_t character_index(const std::string& text, size_t position) {
  if (position == std::string::npos) return -1;
  return static_cast<int64_t>(count_characters(std::string_view(text).substr(0, position)));
}

Value method_find(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("find", arguments, {"sub"});
  const std::string& text = own(context, self);
  return Value(character_index(text, find_text(text, reader.text(0))));
}

Value method_rfind(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("rfind", arguments, {"sub"});
  const std::string& text = own(context, self);
  return Value(character_index(text, find_last(text, reader.text(0))));
}

Value method_index(Context& context, const Value& self, const Arguments& arguments) {
  Value found = method_find(context, self, arguments);
  if (*found.integer() < 0) throw TemplateError("index(): substring not found");
  return found;
}

Value method_count(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("count", arguments, {"sub"});
  const std::string& text = own(context, self);
  const std::string& wanted = reader.text(0);
  if (wanted.empty()) return Value(static_cast<int64_t>(count_characters(text)) + 1);
  int64_t count = 0;
  for (size_t i = 0; (i = find_text(text, wanted, i)) != std::string::npos; i += wanted.size())
    ++count;
  return Value(count);
}

Value method_join(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("join", arguments, {"iterable"});
  SequenceRef items = iterate(context, reader.value(0));
  for (const Value& item : items->items) {
    if (!item.is_text()) throw TemplateError(fmt::format("join() of a {}", type_name(item)));
  }
  return join(context, items->items, *self.text());
}

Value method_removeprefix(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("removeprefix", arguments, {"prefix"});
  std::string_view text = own(context, self);
  if (text.starts_with(reader.text(0))) text.remove_prefix(reader.text(0).size());
  return make_text(context, std::string(text));
}

Value method_removesuffix(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("removesuffix", arguments, {"suffix"});
  std::string_view text = own(context, self);
  if (text.ends_with(reader.text(0))) text.remove_suffix(reader.text(0).size());
  return make_text(context, std::string(text));
}

Value three_parts(Context& context,
                  std::string_view before,
                  std::string_view separator,
                  std::string_view after) {
  std::vector<Value> parts;
  for (std::string_view part : {before, separator, after})
    parts.push_back(make_text(context, std::string(part)));
  return make_sequence(context, SequenceKind::kTuple, std::move(parts));
}

Value method_partition(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("partition", arguments, {"sep"});
  std::string_view text = own(context, self);
  const std::string& separator = reader.text(0);
  if (separator.empty()) throw TemplateError("partition(): empty separator");
  size_t at = find_text(text, separator);
  if (at == std::string_view::npos) return three_parts(context, text, "", "");
  return three_parts(context, text.substr(0, at), separator, text.substr(at + separator.size()));
}

template <class Holds>
Value all_characters(Context& context, const Value& self, Holds holds) {
  const std::string& text = own(context, self);
  for (size_t i = 0; i < text.size(); i += character_at(text, i).bytes) {
    if (!holds(character_at(text, i).code)) return Value(false);
  }
  return Value(!text.empty());
}

Value method_isdigit(Context& context, const Value& self, const Arguments&) {
  return all_characters(context, self, is_digit);
}

Value method_isalpha(Context& context, const Value& self, const Arguments&) {
  return all_characters(context, self, is_letter);
}

Value method_isalnum(Context& context, const Value& self, const Arguments&) {
  return all_characters(context, self,
                        [](char32_t code) { return is_letter(code) || is_digit(code); });
}

Value method_isspace(Context& context, const Value& self, const Arguments&) {
  return all_characters(context, self, is_space);
}

Value method_isupper(Context& context, const Value& self, const Arguments&) {
  const std::string& text = own(context, self);
  return Value(has_upper(text) && !has_lower(text));
}

Value method_islower(Context& context, const Value& self, const Arguments&) {
  const std::string& text = own(context, self);
  return Value(has_lower(text) && !has_upper(text));
}

Value method_zfill(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("zfill", arguments, {"width"});
  std::string_view text = own(context, self);
  int64_t missing = reader.integer(0) - static_cast<int64_t>(count_characters(text));
  TextBuilder builder(context.work);
  if (missing > 0 && (text.starts_with('-') || text.starts_with('+'))) {
    builder.append(text.substr(0, 1));
    text.remove_prefix(1);
  }
  builder.repeat("0", static_cast<uint64_t>(std::max<int64_t>(missing, 0)));
  builder.append(text);
  return make_text(context, builder.take());
}

Value method_format(Context& context, const Value& self, const Arguments& arguments) {
  return format_braces(context, own(context, self), arguments);
}

constexpr NamedFunction kMethods[] = {
    {"strip", method_strip},
    {"lstrip", method_lstrip},
    {"rstrip", method_rstrip},
    {"split", method_split},
    {"rsplit", method_rsplit},
    {"splitlines", method_splitlines},
    {"startswith", method_startswith},
    {"endswith", method_endswith},
    {"upper", method_convert<to_upper>},
    {"lower", method_convert<to_lower>},
    {"title", method_convert<title_case>},
    {"capitalize", method_convert<capitalize>},
    {"replace", method_replace},
    {"find", method_find},
    {"rfind", method_rfind},
    {"index", method_index},
    {"count", method_count},
    {"join", method_join},
    {"removeprefix", method_removeprefix},
    {"removesuffix", method_removesuffix},
    {"partition", method_partition},
    {"isdigit", method_isdigit},
    {"isnumeric", method_isdigit},
    {"isdecimal", method_isdigit},
    {"isalpha", method_isalpha},
    {"isalnum", method_isalnum},
    {"isspace", method_isspace},
    {"isupper", method_isupper},
    {"islower", method_islower},
    {"zfill", method_zfill},
    {"format", method_format},
};

}  // namespace

NativeFunction find_text_method(std::string_view name) {
  for (const NamedFunction& method : kMethods) {
    if (method.name == name) return method.function;
  }
  return nullptr;
}

}  // namespace droidspeak::jinja
