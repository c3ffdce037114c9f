#include "text/jinja/text_operations.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

std::vector<std::string_view> split_at_spaces(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, Side::kLeft);
  while (!text.empty()) {
    if (max_splits == 0) {
      parts.push_back(text);  // white space at its end stays
      break;
    }
    --max_splits;
    size_t end = 0;
    while (end < text.size() && !is_space(character_at(text, end).code))
      end += character_at(text, end).bytes;
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), Side::kLeft);
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text,
                                       const std::string& separator,
                                       int64_t max_splits) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  while (max_splits != 0) {
    size_t end = find_text(text, separator, start);
    if (end == std::string_view::npos) break;
    parts.push_back(text.substr(start, end - start));
    start = end + separator.size();
    --max_splits;
  }
  parts.push_back(text.substr(start));
  return parts;
}

// Both reversed, so that the linear search from the left can be used.
struct Mirrored {
  std::string text;
  std::string wanted;

  Mirrored(std::string_view forward_text, std::string_view forward_wanted)
      : text(forward_text.rbegin(), forward_text.rend()),
        wanted(forward_wanted.rbegin(), forward_wanted.rend()) {}
};

std::vector<std::string_view> split_at_from_right(std::string_view text,
                                                  const std::string& separator,
                                                  int64_t max_splits) {
  Mirrored mirrored(text, separator);
  std::vector<std::string_view> parts;
  size_t start = 0;
  for (size_t end = 0; max_splits != 0; --max_splits) {
    end = find_text(mirrored.text, mirrored.wanted, start);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(text.size() - end, end - start));
    start = end + separator.size();
  }
  parts.push_back(text.substr(0, text.size() - start));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_at_spaces_from_right(std::string_view text,
                                                         int64_t max_splits) {
  std::vector<std::string_view> parts = split_at_spaces(text, -1);
  auto wanted = static_cast<size_t>(std::max<int64_t>(max_splits, 0));
  if (max_splits < 0 || parts.size() <= wanted + 1) return parts;
  size_t merged = parts.size() - wanted;
  const char* begin = text.data();  // white space at its start stays
  const char* end = parts[merged - 1].data() + parts[merged - 1].size();
  std::vector<std::string_view> result = {{begin, static_cast<size_t>(end - begin)}};
  result.insert(result.end(), parts.begin() + static_cast<std::ptrdiff_t>(merged), parts.end());
  return result;
}

const Value& field_value(const std::string& field, const Arguments& arguments, size_t& next) {
  size_t index = 0;
  auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), index);
  if (field.empty()) {
    index = next++;
  } else if (error != std::errc() || end != field.data() + field.size()) {
    for (const auto& [name, value] : arguments.named) {
      if (name == field) return value;
    }
    throw TemplateError(fmt::format("format() has no value for '{{{}}}'", field));
  }
  if (index >= arguments.positional.size()) {
    throw TemplateError(fmt::format("format() has no value number {}", index));
  }
  return arguments.positional[index];
}

}  // namespace

Value stripped(Context& context, const std::string& text, Side side, const std::string* chars) {
  // Every character of the text may be looked up in all of `chars`.
  context.work.scan(text.size());
  if (chars != nullptr) context.work.step(1 + text.size() / 16 * (1 + chars->size() / 16));
  std::string_view rest = strip(text, side, chars);
  return make_text(context, std::string(rest));
}

Value replace(Context& context, const std::string& text, const Replacement& replacement) {
  const auto& [old_text, new_text, count] = replacement;
  TextBuilder builder(context.work);
  std::string_view view = text;
  int64_t left = count;
  size_t start = 0;
  if (old_text.empty()) {
    for (std::string_view character : split_characters(view)) {
      if (left-- != 0)
        builder.append(new_text);
      else
        left = 0;
      builder.append(character);
    }
    if (left != 0) builder.append(new_text);
    return make_text(context, builder.take());
  }
  while (left-- != 0) {
    size_t at = find_text(view, old_text, start);
    if (at == std::string_view::npos) break;
    builder.append(view.substr(start, at - start));
    builder.append(new_text);
    start = at + old_text.size();
  }
  builder.append(view.substr(start));
  return make_text(context, builder.take());
}

Value split(Context& context,
            const std::string& text,
            const std::string* separator,
            int64_t max_splits,
            SplitFrom side) {
  if (separator != nullptr && separator->empty()) throw TemplateError("split(): empty separator");
  std::vector<std::string_view> parts;
  if (separator == nullptr) {
    parts = side == SplitFrom::kLeft ? split_at_spaces(text, max_splits)
                                     : split_at_spaces_from_right(text, max_splits);
  } else if (side == SplitFrom::kLeft || max_splits < 0) {
    parts = split_at(text, *separator, max_splits);
  } else {
    context.work.scan(text.size());
    parts = split_at_from_right(text, *separator, max_splits);
  }
  std::vector<Value> items;
  for (std::string_view part : parts) items.push_back(make_text(context, std::string(part)));
  return make_sequence(context, SequenceKind::kList, std::move(items));
}

Value join(Context& context, const std::vector<Value>& items, const std::string& separator) {
  TextBuilder builder(context.work);
  for (size_t i = 0; i < items.size(); ++i) {
    context.work.step();
    if (i > 0) builder.append(separator);
    builder.append(items[i].is_text() ? *items[i].text() : to_text(context, items[i]));
  }
  return make_text(context, builder.take());
}

size_t find_last(const std::string& text, const std::string& wanted) {
  Mirrored mirrored(text, wanted);
  size_t found = find_text(mirrored.text, mirrored.wanted);
  return found == std::string::npos ? found : text.size() - found - wanted.size();
}

Value format_braces(Context& context, const std::string& format, const Arguments& arguments) {
  TextBuilder builder(context.work);
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    char c = format[i];
    bool is_doubled = i + 1 < format.size() && format[i + 1] == c;
    if ((c != '{' && c != '}') || is_doubled) {
      builder.append(std::string_view(format).substr(i, 1));
      if (c == '{' || c == '}') ++i;
      continue;
    }
    size_t end = format.find('}', i);
    if (c == '}' || end == std::string::npos)
      throw TemplateError("format(): single brace in the format");
    std::string field = format.substr(i + 1, end - i - 1);
    if (field.find_first_of(":!.[") != std::string::npos) {
      throw TemplateError(
          fmt::format("format(): '{{{}}}' is not supported, only plain fields are", field));
    }
    builder.append(to_text(context, field_value(field, arguments, next)));
    i = end;
  }
  return make_text(context, builder.take());
}

}  // namespace droidspeak::jinja
