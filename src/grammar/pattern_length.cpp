#include "grammar/pattern_length.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "grammar/grammar_text.h"

namespace droidspeak {
namespace {

// How many bytes the class at the beginning has; 0 when there is none.
size_t class_bytes(std::string_view text) {
  if (text.starts_with(".")) return 1;
  if (text.starts_with("\\"))
    return text.size() > 1 && std::string_view("dDwWsS").find(text[1]) != std::string::npos ? 2 : 0;
  if (!text.starts_with("[")) return 0;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == ']') return i + 1;
    if (text[i] == '[') return 0;
    if (text[i] == '\\') ++i;
  }
  return 0;
}

struct Repeats {
  size_t low = 1;
  size_t high = 1;
};

std::optional<size_t> read_number(std::string_view text) {
  size_t number = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || stop != end || error != std::errc()) return std::nullopt;
  return number;
}

std::optional<Repeats> read_repeats(std::string_view text) {
  if (text.empty()) return Repeats{};
  if (text == "*") return Repeats{0, kUnbounded};
  if (text == "+") return Repeats{1, kUnbounded};
  if (text == "?") return Repeats{0, 1};
  if (!text.starts_with("{") || !text.ends_with("}")) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  size_t comma = text.find(',');
  auto low = read_number(text.substr(0, comma));
  if (!low) return std::nullopt;
  if (comma == std::string_view::npos) return Repeats{*low, *low};
  std::string_view last = text.substr(comma + 1);
  auto high = last.empty() ? kUnbounded : read_number(last);
  if (!high) return std::nullopt;
  return Repeats{*low, *high};
}

}  // namespace

std::optional<std::string> with_length(std::string_view pattern, size_t low, size_t high) {
  if (!pattern.starts_with("^") || !pattern.ends_with("$")) return std::nullopt;
  std::string_view inner = pattern.substr(1, pattern.size() - 2);
  size_t end = class_bytes(inner);
  auto repeats = end > 0 ? read_repeats(inner.substr(end)) : std::nullopt;
  if (!repeats) return std::nullopt;
  low = std::max(low, repeats->low);
  high = std::min(high, repeats->high);
  if (low > high) return std::nullopt;
  std::string most = high == kUnbounded ? "" : std::to_string(high);
  return fmt::format("^{}{{{},{}}}$", inner.substr(0, end), low, most);
}

}  // namespace droidspeak
