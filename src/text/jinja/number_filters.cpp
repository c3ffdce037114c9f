// Filters that make or change numbers.
#include <charconv>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>

#include "text/jinja/arguments.h"
#include "text/jinja/characters.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"

namespace droidspeak::jinja {

namespace {

constexpr double kInt64Limit = 9.2e18;

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  int64_t whole = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return whole;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  double real = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), real);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return real;
}

std::optional<int64_t> truncate(double real) {
  if (!(std::fabs(real) < kInt64Limit)) return std::nullopt;
  return static_cast<int64_t>(real);
}

void require_defined(const Value& value) {
  if (const auto* undefined = value.get<Undefined>()) throw TemplateError(*undefined->reason);
}

Value filter_int(Context&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("int", arguments, {"default", "base"});
  require_defined(self);
  int64_t base = reader.integer(1, 10);
  if (base < 2 || base > 36) throw TemplateError(fmt::format("int(): base {}", base));
  std::optional<int64_t> whole = self.integer();
  if (const auto* real = self.get<double>()) whole = truncate(*real);
  if (const std::string* text = self.text()) {
    whole = parse_integer(*text, static_cast<int>(base));
    if (auto real = parse_float(*text); !whole && real) whole = truncate(*real);
  }
  if (whole) return Value(*whole);
  return reader.find(0) != nullptr ? *reader.find(0) : Value(int64_t{0});
}

Value filter_float(Context&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("float", arguments, {"default"});
  require_defined(self);
  std::optional<double> real = self.number();
  if (const std::string* text = self.text()) real = parse_float(*text);
  if (real) return Value(*real);
  return reader.find(0) != nullptr ? *reader.find(0) : Value(0.0);
}

Value filter_abs(Context&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("abs", arguments, {});
  require_defined(self);
  if (auto whole = self.integer()) return *whole < 0 ? negate(self) : Value(*whole);
  if (const auto* real = self.get<double>()) return Value(std::fabs(*real));
  throw TemplateError(fmt::format("abs of a {}", type_name(self)));
}

// Correct on the exact binary value, half to even, as Python's round().
double round_decimal(double real, int64_t precision) {
  if (precision < 0) {
    double scale = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(real / scale) * scale;
  }
  return std::strtod(fmt::format("{:.{}f}", real, static_cast<int>(precision)).c_str(), nullptr);
}

Value filter_round(Context&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader("round", arguments, {"precision", "method"});
  require_defined(self);
  int64_t precision = reader.integer(0, 0);
  if (precision < -300 || precision > 300)
    throw TemplateError(fmt::format("round(): precision {}", precision));
  const std::string* method = reader.optional_text(1);
  auto number = self.number();
  if (!number) throw TemplateError(fmt::format("round of a {}", type_name(self)));
  if (method == nullptr || *method == "common") {
    if (self.integer() && precision >= 0) return Value(*self.integer());
    if (self.integer()) return Value(truncate(round_decimal(*number, precision)).value_or(0));
    return Value(std::isfinite(*number) ? round_decimal(*number, precision) : *number);
  }
  if (*method != "ceil" && *method != "floor") {
    throw TemplateError(fmt::format("round(): method '{}', not common, ceil or floor", *method));
  }
  double scale = std::pow(10.0, static_cast<double>(precision));
  double scaled = *number * scale;
  return Value((*method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

constexpr NamedFunction kNumberFilters[] = {
    {"int", filter_int},
    {"float", filter_float},
    {"abs", filter_abs},
    {"round", filter_round},
};

}  // namespace

NativeFunction find_number_filter(std::string_view name) {
  for (const NamedFunction& filter : kNumberFilters) {
    if (filter.name == name) return filter.function;
  }
  return nullptr;
}

}  // namespace droidspeak::jinja
