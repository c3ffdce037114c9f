#include "grammar/number_grammar.h"

#include <algorithm>

#include <fmt/format.h>

namespace droidspeak {
namespace {

// Writes digits of numbers of one length, with a point before the last `decimals` ones.
class DigitWriter {
 public:
  DigitWriter(size_t length, size_t decimals) : point_(length - decimals), length_(length) {}

  // Everything from `low` to `high`, whose digits before `index` are equal and written.
  std::string between(const std::string& low, const std::string& high, size_t index) const {
    if (index == length_) return "";
    if (low[index] == high[index])
      return digit(low[index], low[index], index) + between(low, high, index + 1);
    std::vector<std::string> ways;
    ways.push_back(digit(low[index], low[index], index) + at_least(low, index + 1));
    if (low[index] + 1 < high[index]) {
      ways.push_back(
          digit(static_cast<char>(low[index] + 1), static_cast<char>(high[index] - 1), index) +
          any(index + 1));
    }
    ways.push_back(digit(high[index], high[index], index) + at_most(high, index + 1));
    return choice(ways);
  }

 private:
  static std::string choice(const std::vector<std::string>& ways) {
    std::string text = "(";
    for (size_t i = 0; i < ways.size(); ++i) text += (i > 0 ? "| " : "") + ways[i];
    return text + ") ";
  }

  std::string digit(char first, char last, size_t index) const {
    std::string text = index == point_ ? "\".\" " : "";
    return text +
           (first == last ? fmt::format("\"{}\" ", first) : fmt::format("[{}-{}] ", first, last));
  }

  std::string any(size_t index) const {
    std::string text;
    for (size_t i = index; i < length_; ++i) text += digit('0', '9', i);
    return text;
  }

  std::string at_least(const std::string& low, size_t index) const {
    if (low.find_first_not_of('0', index) == std::string::npos) return any(index);
    std::string same = digit(low[index], low[index], index) + at_least(low, index + 1);
    if (low[index] == '9') return same;
    return choice({same, digit(static_cast<char>(low[index] + 1), '9', index) + any(index + 1)});
  }

  std::string at_most(const std::string& high, size_t index) const {
    if (high.find_first_not_of('9', index) == std::string::npos) return any(index);
    std::string same = digit(high[index], high[index], index) + at_most(high, index + 1);
    if (high[index] == '0') return same;
    return choice({same, digit('0', static_cast<char>(high[index] - 1), index) + any(index + 1)});
  }

  const size_t point_;
  const size_t length_;
};

// 0 <= low <= high.
std::vector<std::string> natural_range(int64_t low, int64_t high, int decimals) {
  std::vector<std::string> ways;
  auto shortest = static_cast<size_t>(decimals) + 1;
  int64_t first = low;
  while (first <= high) {
    size_t length = std::max(std::to_string(first).size(), shortest);
    int64_t longest = 9;
    for (size_t i = 1; i < length; ++i) longest = longest * 10 + 9;
    int64_t last = std::min(high, longest);
    DigitWriter writer(length, static_cast<size_t>(decimals));
    ways.push_back(writer.between(fmt::format("{:0{}}", first, length),
                                  fmt::format("{:0{}}", last, length), 0));
    first = last + 1;
  }
  return ways;
}

}  // namespace

std::vector<std::string> integer_range(int64_t low, int64_t high, int decimals) {
  std::vector<std::string> ways;
  if (low > high) return ways;
  if (high >= 0) ways = natural_range(std::max<int64_t>(low, 0), high, decimals);
  if (low >= 0) return ways;
  for (const std::string& way : natural_range(std::max<int64_t>(1, -high), -low, decimals))
    ways.push_back("\"-\" " + way);
  return ways;
}

}  // namespace droidspeak
