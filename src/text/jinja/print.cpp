#include "text/jinja/print.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "text/jinja/characters.h"

namespace droidspeak::jinja {

namespace {

class Printer {
 public:
  explicit Printer(Context& context) : context_(context), builder_(context.work) {}

  std::string take() { return builder_.take(); }

  void print(const Value& value) {
    context_.work.step();
    if (++depth_ > kMaxValueDepth) throw TemplateError("values nest too deep to be printed");
    if (value.is_none()) {
      builder_.append("None");
    } else if (value.is_undefined()) {
      builder_.append("Undefined");
    } else if (const auto* flag = value.get<bool>()) {
      builder_.append(*flag ? "True" : "False");
    } else if (const auto* whole = value.get<int64_t>()) {
      builder_.append(std::to_string(*whole));
    } else if (const auto* real = value.get<double>()) {
      builder_.append(format_float(*real));
    } else if (const std::string* text = value.text()) {
      print_quoted(*text);
    } else if (const Sequence* sequence = value.sequence()) {
      print_sequence(*sequence);
    } else if (const Dict* dict = value.dict()) {
      print_dict(*dict);
    } else {
      print_object(value);
    }
    --depth_;
  }

 private:
  void print_quoted(const std::string& text) {
    context_.work.scan(text.size());
    bool double_quotes =
        text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
    char quote = double_quotes ? '"' : '\'';
    std::string quoted(1, quote);
    for (size_t i = 0; i < text.size();) {
      Character character = character_at(text, i);
      append_escaped(quoted, character.code, quote);
      i += character.bytes;
    }
    quoted.push_back(quote);
    builder_.append(quoted);
  }

  static void append_escaped(std::string& quoted, char32_t code, char quote) {
    auto number = static_cast<uint32_t>(code);
    if (code == static_cast<unsigned char>(quote) || code == '\\') {
      quoted.push_back('\\');
      quoted.push_back(static_cast<char>(code));
    } else if (code == '\n') {
      quoted += "\\n";
    } else if (code == '\r') {
      quoted += "\\r";
    } else if (code == '\t') {
      quoted += "\\t";
    } else if (is_printable(code)) {
      append_character(quoted, code);
    } else if (number < 0x100) {
      quoted += fmt::format("\\x{:02x}", number);
    } else {
      quoted +=
          number < 0x10000 ? fmt::format("\\u{:04x}", number) : fmt::format("\\U{:08x}", number);
    }
  }

  void print_items(const std::vector<Value>& items, std::string_view open, std::string_view close) {
    builder_.append(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) builder_.append(", ");
      print(items[i]);
    }
    builder_.append(close);
  }

  void print_sequence(const Sequence& sequence) {
    switch (sequence.kind) {
      case SequenceKind::kList:
        return print_items(sequence.items, "[", "]");
      case SequenceKind::kTuple:
        return print_items(sequence.items, "(", sequence.items.size() == 1 ? ",)" : ")");
      case SequenceKind::kRange:
        return builder_.append(sequence.label);
      case SequenceKind::kView:
        return print_items(sequence.items, sequence.label + "([", "])");
      case SequenceKind::kGenerator:
        return builder_.append("<generator>");
    }
  }

  void print_dict(const Dict& dict) {
    builder_.append("{");
    bool is_first = true;
    for (const auto& [key, value] : dict.entries()) {
      if (!is_first) builder_.append(", ");
      is_first = false;
      print(key);
      builder_.append(": ");
      print(value);
    }
    builder_.append("}");
  }

  void print_object(const Value& value) {
    if (const auto* space = value.get<std::shared_ptr<Namespace>>()) {
      builder_.append("<Namespace {");
      bool is_first = true;
      for (const auto& [name, item] : (*space)->attributes) {
        builder_.append(fmt::format("{}'{}': ", is_first ? "" : ", ", name));
        is_first = false;
        print(item);
      }
      builder_.append("}>");
    } else if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
      builder_.append(
          fmt::format("<LoopContext {}/{}>", (*loop)->index + 1, (*loop)->items->items.size()));
    } else if (const auto* callable = value.get<std::shared_ptr<const Callable>>()) {
      std::string_view form = (*callable)->macro != nullptr ? "<Macro '{}'>" : "<function {}>";
      builder_.append(fmt::format(fmt::runtime(form), (*callable)->name));
    }
  }

  Context& context_;
  TextBuilder builder_;
  int depth_ = 0;
};

}  // namespace

std::string to_text(Context& context, const Value& value) {
  if (const std::string* text = value.text()) {
    context.work.allocate(text->size());
    return *text;
  }
  return value.is_undefined() ? std::string() : to_repr(context, value);
}

std::string to_repr(Context& context, const Value& value) {
  Printer printer(context);
  printer.print(value);
  return printer.take();
}

Value as_text(Context& context, const Value& value) {
  return value.is_text() ? value : make_text(context, to_text(context, value));
}

std::string format_float(double real) {
  if (std::isnan(real)) return "nan";
  if (std::isinf(real)) return real > 0 ? "inf" : "-inf";
  char buffer[400];
  double size = std::fabs(real);
  bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  auto form = plain ? std::chars_format::fixed : std::chars_format::scientific;
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof(buffer), real, form).ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

}  // namespace droidspeak::jinja
