#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"

namespace droidspeak::openai {

namespace {

constexpr const char* kPromptKinds = "a string, token ids, or an array of either";

void empty_prompt(Fields& fields, const std::string& name) {
  fields.fail(bad_field(
      fmt::format("Invalid '{}': empty. Expected at least one token of text.", name), name));
}

Prompt read_one_prompt(Fields& fields, const std::string& name, JsonValue value) {
  if (value.is(JsonKind::kString)) {
    if (value.string().empty()) empty_prompt(fields, name);
    return value.string();
  }
  if (!value.is(JsonKind::kArray)) {
    fields.wrong_type(name, kPromptKinds, value.kind());
    return std::string();
  }
  if (value.size() == 0) empty_prompt(fields, name);
  return read_token_ids(fields, name, value);
}

}  // namespace

std::vector<Prompt> read_prompts(Fields& fields, const std::string& name) {
  std::optional<JsonValue> value = fields.find(name);
  if (!value) {
    fields.missing(name);
    return {};
  }
  bool is_list = value->is(JsonKind::kArray) && value->size() > 0 &&
                 (value->at(0).is(JsonKind::kString) || value->at(0).is(JsonKind::kArray));
  if (!is_list) return {read_one_prompt(fields, name, *value)};
  if (!fields.check_count(name, value->size(), kMaxPrompts)) return {};
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < value->size() && !fields.has_failed(); ++i) {
    prompts.push_back(read_one_prompt(fields, name, value->at(i)));
  }
  return prompts;
}

}  // namespace droidspeak::openai
