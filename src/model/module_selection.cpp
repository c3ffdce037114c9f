#include "model/module_selection.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/utf8.h"
#include "model/json_fields.h"

namespace droidspeak {
namespace {

// Trainers write some that name every module in every place: a few KiB, a few thousand steps.
constexpr RegexLimits kSelectionLimits{.pattern_bytes = 16 * 1024, .match_steps = 100'000};
constexpr size_t kMostShown = 120;

Regex whole_path(const JsonFields& json, std::string_view field) {
  const std::string text = json.get_string(field);
  try {
    Regex alone(text, kSelectionLimits);  // what is balanced only inside the one below is wrong
    return Regex(fmt::format(R"(\A(?:{})\z)", text),
                 {.pattern_bytes = kSelectionLimits.pattern_bytes + 32,
                  .match_steps = kSelectionLimits.match_steps});
  } catch (const Failure& failure) {
    json.refuse(field, fmt::format("a list of names or a regular expression: {}", failure.what()));
  }
}

// At a character's end.
std::string cut(const std::string& text) {
  if (text.size() <= kMostShown) return text;
  const std::string_view begin = std::string_view(text).substr(0, kMostShown);
  return std::string(begin.substr(0, valid_utf8_prefix(begin))) + "...";
}

}  // namespace

ModuleSelection::ModuleSelection(const JsonFields& json, std::string_view field)
    : where_(fmt::format("{}: field \"{}\"", json.path().string(), field)),
      shown_(fmt::format("{} (missing)", field)) {
  if (!json.has(field)) return;
  if (json.is_text(field)) {
    expression_ = whole_path(json, field);
    shown_ = fmt::format("{} ({})", field, cut(json.get_string(field)));
    return;
  }
  if (!json.is_list(field)) json.refuse(field, "a list of names or a regular expression");
  const std::vector<std::string> names = json.get_strings(field);
  names_ = {names.begin(), names.end()};
  shown_ = fmt::format("{} ({})", field, cut(fmt::format("{}", fmt::join(names, ", "))));
}

bool ModuleSelection::has(const std::string& module) const {
  if (expression_) {
    try {
      TextRange match;
      return Regex::Matches(*expression_, module).next(match);
    } catch (const Failure& failure) {
      throw Failure(failure.code(), fmt::format("{}: {}", where_, failure.what()));
    }
  }
  if (names_.empty()) return false;
  for (size_t begin = 0; begin != std::string::npos;) {
    if (names_.contains(module.substr(begin))) return true;
    const size_t dot = module.find('.', begin);
    begin = dot == std::string::npos ? dot : dot + 1;
  }
  return false;
}

}  // namespace droidspeak
