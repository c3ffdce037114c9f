#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "text/jinja/characters.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

using Json = nlohmann::ordered_json;

Value from_json(Context& context, const Json& json, int depth) {
  if (depth > kMaxValueDepth) {
    throw TemplateError(fmt::format("the input nests deeper than {}", kMaxValueDepth));
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.get<bool>());
    case Json::value_t::number_integer:
      return Value(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return Value(json.get<double>());
      return Value(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value(json.get<double>());
    case Json::value_t::string:
      return make_text(context, json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) items.push_back(from_json(context, item, depth + 1));
      return make_sequence(context, SequenceKind::kList, std::move(items));
    }
    case Json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) {
        dict.set(make_text(context, key), from_json(context, item, depth + 1));
      }
      return make_dict(context, std::move(dict));
    }
    default:
      return Value();
  }
}

class JsonWriter {
 public:
  JsonWriter(Context& context, const JsonStyle& style)
      : context_(context), style_(style), builder_(context.work) {}

  std::string take() { return builder_.take(); }

  void write(const Value& value) {
    context_.work.step();
    if (value.is_none()) {
      builder_.append("null");
    } else if (const auto* flag = value.get<bool>()) {
      builder_.append(*flag ? "true" : "false");
    } else if (const auto* whole = value.get<int64_t>()) {
      builder_.append(std::to_string(*whole));
    } else if (const auto* real = value.get<double>()) {
      builder_.append(number_text(*real));
    } else if (const std::string* text = value.text()) {
      write_text(*text);
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict);
    } else if (const Sequence* sequence = value.sequence();
               sequence != nullptr && is_array(*sequence)) {
      write_array(*sequence);
    } else if (const auto* undefined = value.get<Undefined>()) {
      throw TemplateError(fmt::format("tojson of an undefined value: {}", *undefined->reason));
    } else {
      throw TemplateError(fmt::format("tojson cannot write a {}", type_name(value)));
    }
  }

 private:
  static bool is_array(const Sequence& sequence) {
    return sequence.kind == SequenceKind::kList || sequence.kind == SequenceKind::kTuple;
  }

  static std::string number_text(double real) {
    if (std::isnan(real)) return "NaN";
    if (std::isinf(real)) return real > 0 ? "Infinity" : "-Infinity";
    return format_float(real);
  }

  void write_text(const std::string& text) {
    context_.work.scan(text.size());
    std::string quoted = "\"";
    for (size_t i = 0; i < text.size();) {
      Character character = character_at(text, i);
      append_escaped(quoted, character.code);
      i += character.bytes;
    }
    quoted.push_back('"');
    builder_.append(quoted);
  }

  void append_escaped(std::string& quoted, char32_t code) const {
    constexpr std::string_view kPlain = "\"\\\n\r\t\f\b";
    constexpr std::string_view kNames = "\"\\nrtfb";
    size_t known = code < 0x80 ? kPlain.find(static_cast<char>(code)) : std::string_view::npos;
    auto number = static_cast<uint32_t>(code);
    if (known != std::string_view::npos) {
      quoted.push_back('\\');
      quoted.push_back(kNames[known]);
    } else if (number < 0x20 ||
               (number >= 0x7F && number < 0x10000 && escapes_non_ascii() && number != 0x7F)) {
      quoted += fmt::format("\\u{:04x}", number);
    } else if (number >= 0x10000 && escapes_non_ascii()) {
      quoted += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((number - 0x10000) >> 10),
                            0xDC00 + ((number - 0x10000) & 0x3FF));
    } else {
      append_character(quoted, code);
    }
  }

  bool escapes_non_ascii() const { return style_.non_ascii == NonAscii::kEscaped; }

  void write_array(const Sequence& sequence) {
    if (sequence.items.empty()) return builder_.append("[]");
    builder_.append("[");
    ++level_;
    for (size_t i = 0; i < sequence.items.size(); ++i) {
      begin_item(i);
      write(sequence.items[i]);
    }
    end_items("]");
  }

  void write_dict(const Dict& dict) {
    if (dict.entries().empty()) return builder_.append("{}");
    builder_.append("{");
    ++level_;
    size_t index = 0;
    for (const Dict::Entry* entry : ordered(dict)) {
      begin_item(index++);
      write_text(key_text(entry->first));
      builder_.append(style_.key_separator);
      write(entry->second);
    }
    end_items("}");
  }

  std::vector<const Dict::Entry*> ordered(const Dict& dict) {
    std::vector<const Dict::Entry*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.keys == KeyOrder::kSorted) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* left, const auto* right) {
        return compare(context_, left->first, right->first) < 0;
      });
    }
    return entries;
  }

  std::string key_text(const Value& key) {
    if (const auto* flag = key.get<bool>()) return *flag ? "true" : "false";
    if (key.is_none()) return "null";
    if (const auto* real = key.get<double>()) return number_text(*real);
    return to_text(context_, key);
  }

  void begin_item(size_t index) {
    if (index > 0) builder_.append(style_.item_separator);
    new_line();
  }

  void end_items(std::string_view close) {
    --level_;
    new_line();
    builder_.append(close);
  }

  void new_line() {
    if (style_.indent == nullptr) return;
    builder_.append("\n");
    builder_.repeat(*style_.indent, level_);
  }

  Context& context_;
  const JsonStyle& style_;
  TextBuilder builder_;
  uint64_t level_ = 0;
};

}  // namespace

Value parse_json(Context& context, std::string_view text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw TemplateError(fmt::format("the input is not JSON: {}", error.what()));
  }
  return from_json(context, json, 0);
}

std::string to_json(Context& context, const Value& value, const JsonStyle& style) {
  JsonWriter writer(context, style);
  writer.write(value);
  return writer.take();
}

}  // namespace droidspeak::jinja
