// Filters over text.
#include <algorithm>

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_operations.h"

namespace droidspeak::jinja {

namespace {

Value filter_trim(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("trim", arguments, {"chars"});
  Value text = as_text(context, self);
  return stripped(context, *text.text(), Side::kBoth, reader.optional_text(0));
}

template <std::string (*kConvert)(std::string_view)>
Value filter_convert(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("case conversion", arguments, {});
  Value text = as_text(context, self);
  context.work.scan(text.text()->size());
  return make_text(context, kConvert(*text.text()));
}

bool starts_word(char32_t code) {
  return is_space(code) || code == '-' || code == '(' || code == '{' || code == '[' || code == '<';
}

// The first character behind a space or opening bracket is upper case, the rest lower.
std::string capitalize_words(std::string_view text) {
  std::string result;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    Character character = character_at(text, i);
    i += character.bytes;
    if (!starts_word(character.code)) continue;
    result += capitalize(text.substr(start, i - character.bytes - start));
    result += text.substr(i - character.bytes, character.bytes);
    start = i;
  }
  return result + capitalize(text.substr(start));
}

Value filter_string(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("string", arguments, {});
  return as_text(context, self);
}

Value filter_replace(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("replace", arguments, {"old", "new", "count"});
  Value text = as_text(context, self);
  Value old_text = as_text(context, reader.value(0));
  Value new_text = as_text(context, reader.value(1));
  context.work.scan(text.text()->size());
  return replace(context, *text.text(),
                 {*old_text.text(), *new_text.text(), reader.integer(2, -1)});
}

std::string read_indention(const ArgumentReader& reader) {
  if (reader.find(0) != nullptr && reader.find(0)->is_text()) return reader.text(0);
  constexpr int64_t kMaxWidth = 1000;
  int64_t width = reader.integer(0, 4);
  if (width > kMaxWidth) throw TemplateError(fmt::format("indent(): width of {}", width));
  return std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
}

Value filter_indent(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("indent", arguments, {"width", "first", "blank"});
  std::string indention = read_indention(reader);
  std::string text = to_text(context, self) + "\n";
  context.work.scan(text.size());
  TextBuilder builder(context.work);
  if (reader.is_set(1)) builder.append(indention);
  bool is_first = true;
  for (std::string_view line : split_lines(text)) {
    if (!is_first) {
      builder.append("\n");
      if (!line.empty() || reader.is_set(2)) builder.append(indention);
    }
    is_first = false;
    builder.append(line);
  }
  return make_text(context, builder.take());
}

Value filter_escape(Context& context, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("escape", arguments, {});
  constexpr std::string_view kSpecial = "&<>'\"";
  constexpr std::string_view kEntities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  Value text = as_text(context, self);
  TextBuilder builder(context.work);
  for (const char& c : *text.text()) {
    size_t special = kSpecial.find(c);
    builder.append(special == std::string_view::npos ? std::string_view(&c, 1)
                                                     : kEntities[special]);
  }
  return make_text(context, builder.take());
}

Value filter_format(Context& context, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) throw TemplateError("format: named values are not supported");
  Value text = as_text(context, self);
  return format_percent(context, *text.text(), arguments.positional);
}

constexpr NamedFunction kTextFilters[] = {
    {"trim", filter_trim},
    {"upper", filter_convert<to_upper>},
    {"lower", filter_convert<to_lower>},
    {"capitalize", filter_convert<capitalize>},
    {"title", filter_convert<capitalize_words>},
    {"string", filter_string},
    {"safe", filter_string},
    {"replace", filter_replace},
    {"indent", filter_indent},
    {"escape", filter_escape},
    {"e", filter_escape},
    {"forceescape", filter_escape},
    {"format", filter_format},
};

}  // namespace

NativeFunction find_text_filter(std::string_view name) {
  for (const NamedFunction& filter : kTextFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace droidspeak::jinja
