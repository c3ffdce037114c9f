#include "text/jinja/json.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "text/jinja/characters.h"
#include "text/jinja/print.h"

namespace droidspeak::jinja {

namespace {

// Builds values while the text is read, in time linear in its length: a tree in between would
// cost a copy, and one that keeps the order of keys a search for every key.
class ValueReader final : public nlohmann::json::json_sax_t {
 public:
  explicit ValueReader(Context& context) : context_(context) {}

  Value take() { return std::move(result_); }

  bool null() override { return add(Value()); }

  bool boolean(bool flag) override { return add(Value(flag)); }

  bool number_integer(int64_t number) override { return add(Value(number)); }

  bool number_unsigned(uint64_t number) override {
    bool fits = number <= static_cast<uint64_t>(INT64_MAX);
    return add(fits ? Value(static_cast<int64_t>(number)) : Value(static_cast<double>(number)));
  }

  bool number_float(double number, const std::string&) override { return add(Value(number)); }

  bool string(std::string& text) override { return add(make_text(context_, std::move(text))); }

  bool binary(nlohmann::json::binary_t&) override { return add(Value()); }

  bool start_object(size_t) override { return open(); }

  bool key(std::string& text) override {
    open_.back().key = make_text(context_, std::move(text));
    return true;
  }

  bool end_object() override {
    Dict dict = std::move(open_.back().dict);
    open_.pop_back();
    return add(make_dict(context_, std::move(dict)));
  }

  bool start_array(size_t) override { return open(); }

  bool end_array() override {
    std::vector<Value> items = std::move(open_.back().items);
    open_.pop_back();
    return add(make_sequence(context_, SequenceKind::kList, std::move(items)));
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) override {
    throw TemplateError(fmt::format("the input is not JSON: {}", error.what()));
  }

 private:
  // An object or array whose end has not come yet.
  struct Open {
    std::optional<Value> key = {};  // an object's, whose value comes next
    Dict dict = {};
    std::vector<Value> items = {};
  };

  bool open() {
    if (open_.size() >= static_cast<size_t>(kMaxValueDepth)) {
      throw TemplateError(fmt::format("the input nests deeper than {}", kMaxValueDepth));
    }
    open_.emplace_back();
    return true;
  }

  bool add(Value value) {
    context_.work.step();
    if (open_.empty()) {
      result_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.key) {
      parent.dict.set(*parent.key, std::move(value));
    } else {
      parent.items.push_back(std::move(value));
    }
    return true;
  }

  Context& context_;
  std::vector<Open> open_;
  Value result_;
};

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
  ValueReader reader(context);
  nlohmann::json::sax_parse(text, &reader);
  return reader.take();
}

std::string to_json(Context& context, const Value& value, const JsonStyle& style) {
  JsonWriter writer(context, style);
  writer.write(value);
  return writer.take();
}

}  // namespace droidspeak::jinja
