// Strings and numbers of a schema.
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "grammar/number_grammar.h"
#include "grammar/regex_grammar.h"
#include "grammar/schema_formats.h"
#include "grammar/schema_walk.h"

namespace droidspeak {
namespace {

constexpr size_t kMostLength = 16384;  // of a string whose length is bounded
constexpr int kMostDecimals = 6;       // of a number's bound
constexpr double kMostBound = 1e12;    // of a number that is no integer
constexpr size_t kMostMultiples = 512;

std::vector<GrammarText::Alternative> as_alternatives(const std::vector<std::string>& texts) {
  std::vector<GrammarText::Alternative> alternatives;
  for (const std::string& text : texts) alternatives.push_back({text});
  return alternatives;
}

// A bound in units of 10^-decimals, exactly; `decimals` of the whole range.
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
  if (found->is_number_integer() && std::abs(found->get<double>()) >= kExact)
    refuse_schema(path, fmt::format("'{}' is {}; whole numbers are enforced up to 2^53", keyword,
                                    found->dump()));
  return found->get<double>();
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

// How many digits behind the point the number has, as it is written.
int decimals_of(double value, const std::string& path) {
  double scale = 1;
  for (int decimals = 0; decimals <= kMostDecimals; ++decimals, scale *= 10) {
    if (std::abs(value) <= kMostBound && std::round(value * scale) / scale == value)
      return decimals;
  }
  refuse_schema(path, fmt::format("the bound {} has more than {} digits behind the point or is "
                                  "beyond {}",
                                  value, kMostDecimals, kMostBound));
}

std::vector<std::string> decimals_within(const Bounds& bounds, const std::string& path) {
  int decimals = 2;
  if (bounds.low) decimals = std::max(decimals, decimals_of(*bounds.low, path));
  if (bounds.high) decimals = std::max(decimals, decimals_of(*bounds.high, path));
  double scale = std::pow(10, decimals);
  Bounds scaled = bounds;
  scaled.low = std::round(bounds.low.value_or(-kMostBound) * scale);
  scaled.high = std::round(bounds.high.value_or(kMostBound) * scale);
  IntegerBounds within = integers_within(scaled);
  return integer_range(within.low, within.high, decimals);
}

}  // namespace

GrammarText::RuleId SchemaWalk::visit_string(const SchemaJson& schema, const std::string& path) {
  auto format = schema.find("format");
  auto pattern = schema.find("pattern");
  bool has_length = schema.contains("minLength") || schema.contains("maxLength");
  int num_ways =
      (format != schema.end() ? 1 : 0) + (pattern != schema.end() ? 1 : 0) + (has_length ? 1 : 0);
  if (num_ways > 1) {
    refuse_schema(path,
                  "more than one of 'pattern', 'format' and a length ('minLength', "
                  "'maxLength') cannot be enforced together");
  }
  if (num_ways == 0) return json_.get(JsonRules::Kind::kString);
  if (has_length) {
    size_t low = count_of(schema, "minLength", path, 0);
    size_t high = count_of(schema, "maxLength", path, kUnbounded);
    if (low > kMostLength || (high != kUnbounded && high > kMostLength)) {
      refuse_schema(path, fmt::format("a bounded length above {} cannot be enforced", kMostLength));
    }
    if (low > high) return grammar_.add({});
    return bounded_strings_.get(low, high);
  }
  const SchemaJson& text = pattern != schema.end() ? *pattern : *format;
  if (!text.is_string()) refuse_schema(path, "'pattern' or 'format' is not a string");
  std::string expression = text.get<std::string>();
  if (format != schema.end()) {
    auto known = find_format(expression);
    if (!known) {
      refuse_schema(path, fmt::format("'format' \"{}\" cannot be enforced; expected one of {}",
                                      expression.substr(0, 100), known_formats()));
    }
    expression = *known;
  }
  std::string content;
  try {
    content = regex_to_grammar(expression, RegexPlace::kJsonString, grammar_);
  } catch (const Failure& failure) {
    refuse_schema(path, fmt::format("'pattern': {}", failure.what()));
  }
  return grammar_.add({{"\"\\\"\" (" + content + ") \"\\\"\""}});
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
  std::vector<std::string> ways = decimals_within(bounds, path);
  IntegerBounds whole = integers_within(bounds);
  std::vector<std::string> integers = integer_range(whole.low, whole.high);
  ways.insert(ways.begin(), integers.begin(), integers.end());
  return grammar_.add(as_alternatives(ways));
}

}  // namespace droidspeak
