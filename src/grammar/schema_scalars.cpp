// Strings and numbers of a schema.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "grammar/number_grammar.h"
#include "grammar/pattern_length.h"
#include "grammar/regex_grammar.h"
#include "grammar/schema_formats.h"
#include "grammar/schema_walk.h"

namespace droidspeak {
namespace {

constexpr size_t kMostLength = 16384;  // of a string whose length is bounded, whatever the bound
constexpr int kMostDecimals = 14;      // of a number within bounds
constexpr size_t kMostMultiples = 512;

std::vector<GrammarText::Alternative> as_alternatives(const std::vector<std::string>& texts) {
  std::vector<GrammarText::Alternative> alternatives;
  for (const std::string& text : texts) alternatives.push_back({text});
  return alternatives;
}

struct Bounds {
  std::optional<double> low = {};
  std::optional<double> high = {};
  bool excludes_low = false;
  bool excludes_high = false;
};

std::optional<double> number_at(const SchemaJson& schema,
                                const char* keyword,
                                const std::string& path) {
  auto found = schema.find(keyword);
  if (found == schema.end()) return std::nullopt;
  if (!found->is_number())
    refuse_schema(path, fmt::format("'{}' is {}; expected a number", keyword, found->dump()));
  constexpr double kExact = 9007199254740992;  // whole numbers beyond are rounded
  const auto value = found->get<double>();
  // No answer comes near those that have more digits than answers have.
  const bool is_rounded =
      std::abs(value) >= kExact && std::abs(value) < static_cast<double>(kMostInteger);
  if (found->is_number_integer() && is_rounded)
    refuse_schema(path, fmt::format("'{}' is {}; whole numbers are enforced up to 2^53", keyword,
                                    found->dump()));
  return value;
}

Bounds bounds_of(const SchemaJson& schema, const std::string& path) {
  Bounds bounds;
  bounds.low = number_at(schema, "minimum", path);
  bounds.high = number_at(schema, "maximum", path);
  auto above = number_at(schema, "exclusiveMinimum", path);
  auto below = number_at(schema, "exclusiveMaximum", path);
  if (above && (!bounds.low || *above >= *bounds.low)) {
    bounds.low = above;
    bounds.excludes_low = true;
  }
  if (below && (!bounds.high || *below <= *bounds.high)) {
    bounds.high = below;
    bounds.excludes_high = true;
  }
  return bounds;
}

struct IntegerBounds {
  int64_t low = -kMostInteger;
  int64_t high = kMostInteger;
};

IntegerBounds integers_within(const Bounds& bounds) {
  IntegerBounds result;
  constexpr auto kMost = static_cast<double>(kMostInteger);
  if (bounds.low) {
    double low = std::ceil(std::clamp(*bounds.low, -kMost, kMost));
    result.low = std::max(result.low, static_cast<int64_t>(low));
    if (bounds.excludes_low && low == *bounds.low) ++result.low;
  }
  if (bounds.high) {
    double high = std::floor(std::clamp(*bounds.high, -kMost, kMost));
    result.high = std::min(result.high, static_cast<int64_t>(high));
    if (bounds.excludes_high && high == *bounds.high) --result.high;
  }
  return result;
}

// Numbers of 15 digits stay apart when they are read as doubles, and in their order.
constexpr double kMostUnits = 999'999'999'999'999;

// Whether the number is a multiple of 10^-decimals of at most 15 digits.
bool has_decimals(double value, int decimals) {
  double scale = std::pow(10, decimals);
  return std::abs(value * scale) <= kMostUnits && std::round(value * scale) / scale == value;
}

// How many digits behind the point the number has, as it is written; 0 where they are too many.
int decimals_of(const std::optional<double>& value) {
  for (int decimals = 0; value && decimals <= kMostDecimals; ++decimals) {
    if (has_decimals(*value, decimals)) return decimals;
  }
  return 0;
}

// Numbers with a point. A bound of too many digits is moved inwards.
std::vector<std::string> decimals_within(const Bounds& bounds) {
  const int decimals = std::max({2, decimals_of(bounds.low), decimals_of(bounds.high)});
  const double scale = std::pow(10, decimals);
  double low = -kMostUnits;
  double high = kMostUnits;
  if (bounds.low) {
    double first = has_decimals(*bounds.low, decimals)
                       ? std::round(*bounds.low * scale) + (bounds.excludes_low ? 1 : 0)
                       : std::floor(*bounds.low * scale) + 1;
    low = std::max(low, first);
  }
  if (bounds.high) {
    double last = has_decimals(*bounds.high, decimals)
                      ? std::round(*bounds.high * scale) - (bounds.excludes_high ? 1 : 0)
                      : std::ceil(*bounds.high * scale) - 1;
    high = std::min(high, last);
  }
  if (low > high) return {};
  return integer_range(static_cast<int64_t>(low), static_cast<int64_t>(high), decimals);
}

}  // namespace

GrammarText::RuleId SchemaWalk::visit_string(const SchemaJson& schema, const std::string& path) {
  Length length{count_of(schema, "minLength", path, 0),
                count_of(schema, "maxLength", path, kUnbounded)};
  if (length.low > length.high) return grammar_.add({});
  if (schema.contains("pattern") || schema.contains("format"))
    return visit_pattern(schema, length, path);
  if (length.low == 0 && length.high == kUnbounded) return json_.get(JsonRules::Kind::kString);
  if (length.low > kMostLength)
    refuse_schema(path, fmt::format("'minLength' above {} cannot be enforced", kMostLength));
  if (length.high != kUnbounded) length.high = std::min(length.high, kMostLength);
  return bounded_strings_.get(length.low, length.high);
}

GrammarText::RuleId SchemaWalk::visit_pattern(const SchemaJson& schema,
                                              const Length& length,
                                              const std::string& path) {
  const bool is_format = schema.contains("format");
  const bool has_length = length.low > 0 || length.high != kUnbounded;
  if (is_format && schema.contains("pattern"))
    refuse_schema(path, "'pattern' and 'format' cannot be enforced together");
  const SchemaJson& text = schema[is_format ? "format" : "pattern"];
  if (!text.is_string()) refuse_schema(path, "'pattern' or 'format' is not a string");
  std::string expression = text.get<std::string>();
  if (is_format) {
    auto known = find_format(expression);
    if (!known) {
      refuse_schema(path, fmt::format("'format' \"{}\" cannot be enforced; expected one of {}",
                                      expression.substr(0, 100), known_formats()));
    }
    expression = *known;
  } else if (has_length) {
    expression = with_length(expression, length.low, length.high).value_or(expression);
  }
  RegexGrammar content;
  try {
    content = regex_to_grammar(expression, RegexPlace::kJsonString, grammar_);
  } catch (const Failure& failure) {
    refuse_schema(path, fmt::format("'pattern': {}", failure.what()));
  }
  if (content.shortest < length.low || content.longest > length.high) {
    refuse_schema(path,
                  "a length ('minLength', 'maxLength') beside 'pattern' or 'format' can only be "
                  "enforced where all that match have it, or with patterns like ^[a-z]+$");
  }
  return grammar_.add({{"\"\\\"\" (" + content.text + ") \"\\\"\""}});
}

GrammarText::RuleId SchemaWalk::visit_integer(const SchemaJson& schema, const std::string& path) {
  Bounds bounds = bounds_of(schema, path);
  if (schema.value("format", SchemaJson()) == "int32") {
    bounds.low = std::max(bounds.low.value_or(-2147483648.0), -2147483648.0);
    bounds.high = std::min(bounds.high.value_or(2147483647.0), 2147483647.0);
  }
  auto step = number_at(schema, "multipleOf", path);
  if (!bounds.low && !bounds.high && !step) return json_.get(JsonRules::Kind::kInteger);
  IntegerBounds within = integers_within(bounds);
  if (!step || *step == 1)
    return grammar_.add(as_alternatives(integer_range(within.low, within.high)));
  if (*step < 1 || *step != std::floor(*step) || *step > 1e15)
    refuse_schema(
        path, fmt::format("'multipleOf' {} cannot be enforced; expected a whole number", *step));
  auto unit = static_cast<int64_t>(*step);
  int64_t first = within.low / unit + (within.low > 0 && within.low % unit != 0 ? 1 : 0);
  int64_t last = within.high / unit - (within.high < 0 && within.high % unit != 0 ? 1 : 0);
  if (last - first >= static_cast<int64_t>(kMostMultiples)) {
    refuse_schema(path, fmt::format("'multipleOf' cannot be enforced for more than {} numbers; "
                                    "expected 'minimum' and 'maximum' that leave fewer",
                                    kMostMultiples));
  }
  std::vector<Alternative> alternatives;
  for (int64_t i = first; i <= last; ++i)
    alternatives.push_back({literal_text(std::to_string(i * unit))});
  return grammar_.add(std::move(alternatives));
}

GrammarText::RuleId SchemaWalk::visit_number(const SchemaJson& schema, const std::string& path) {
  if (schema.contains("multipleOf")) {
    if (schema["multipleOf"] == 1) return visit_integer(schema, path);
    refuse_schema(path, "'multipleOf' of a number cannot be enforced; expected type integer");
  }
  Bounds bounds = bounds_of(schema, path);
  if (!bounds.low && !bounds.high) return json_.get(JsonRules::Kind::kNumber);
  std::vector<std::string> ways = decimals_within(bounds);
  IntegerBounds whole = integers_within(bounds);
  constexpr auto kMost = static_cast<int64_t>(kMostUnits);
  std::vector<std::string> integers =
      integer_range(std::max(whole.low, -kMost), std::min(whole.high, kMost));
  ways.insert(ways.begin(), integers.begin(), integers.end());
  return grammar_.add(as_alternatives(ways));
}

}  // namespace droidspeak
