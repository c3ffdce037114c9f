// What is refused by name, because an answer without it would not be what was asked for.
#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "server/openai/generation_fields.h"

namespace droidspeak::openai {

namespace {

bool asks_for_nothing(JsonValue value) {
  switch (value.kind()) {
    case JsonKind::kNull:
      return true;
    case JsonKind::kBoolean:
      return !value.boolean();
    case JsonKind::kInteger:
    case JsonKind::kDecimal:
      return value.number() == 0;
    case JsonKind::kString:
      return value.string().empty();
    case JsonKind::kArray:
    case JsonKind::kObject:
      return value.size() == 0;
  }
  panic("unknown JsonKind");
}

bool is_text(const std::optional<JsonValue>& value, std::string_view text) {
  return value && value->is(JsonKind::kString) && value->string() == text;
}

bool is_false(const std::optional<JsonValue>& value) {
  return value && value->is(JsonKind::kBoolean) && !value->boolean();
}

void reject_other_than_one(Fields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (fields.number(name).value_or(1) != 1) fields.reject(name, "other than 1 is not supported");
  }
}

// What other servers sample or give otherwise, unless these are told to leave it.
void reject_other_sampling(Fields& fields) {
  reject_unsupported(fields, {"return_token_ids", "no_repeat_ngram_size", "stop_regex",
                              "prompt_embeds", "min_new_tokens", "stop_strings"});
  reject_any_value(fields, {"structural_tag", "thinking_token_budget"});
  reject_false(fields, {"detokenize", "include_reasoning"});
  const bool wants_spaces = fields.boolean("spaces_between_special_tokens").value_or(false);
  if (wants_spaces && !fields.boolean("skip_special_tokens").value_or(true))
    fields.reject("spaces_between_special_tokens",
                  "is true, which is not supported beside 'skip_special_tokens' of false");
  const bool samples = fields.number("temperature").value_or(1) != 0;
  if (!fields.boolean("do_sample").value_or(true) && samples) {
    fields.reject("do_sample",
                  "is false, which takes a 'temperature' of 0: the likeliest token is taken then");
  }
  reject_other_than_one(fields, {"length_penalty", "repeat_penalty", "typical_p"});
}

// {"enabled": false} or {"effort": "none"}
bool says_no_reasoning(const std::optional<JsonValue>& reasoning) {
  if (!reasoning || !reasoning->is(JsonKind::kObject)) return false;
  return is_false(reasoning->find("enabled")) || is_text(reasoning->find("effort"), "none");
}

// Beside them.
bool has_other_wish(const JsonValue& reasoning) {
  for (const auto& [name, value] : reasoning.members()) {
    const bool is_none = name == "effort" && is_text(value, "none");
    if (!is_none && !asks_for_nothing(value)) return true;
  }
  return false;
}

void reject_thinking(Fields& fields) {
  if (!is_text(fields.find("reasoning_effort"), "none"))
    reject_unsupported(fields, {"reasoning_effort"});
  if (is_false(fields.find("thinking"))) return;
  std::optional<Fields> thinking = fields.object("thinking");
  if (!thinking) return;
  std::string type = thinking->required_string("type", kAnyLength);
  if (!thinking->has_failed() && type != "disabled")
    fields.reject("thinking", "other than {\"type\": \"disabled\"} is not supported");
}

}  // namespace

bool asks_for_something(const Fields& fields, const std::string& name) {
  auto value = fields.find(name);
  return value && !asks_for_nothing(*value);
}

bool is_empty_text(const Fields& fields, const std::string& name) {
  return is_text(fields.find(name), "");
}

void reject_with(Fields& fields, const std::string& name, const std::string& why) {
  if (asks_for_something(fields, name)) fields.reject(name, why);
}

void reject_unsupported(Fields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    reject_with(fields, name, "is not supported by this server");
}

void reject_any_value(Fields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (fields.find(name)) fields.reject(name, "is not supported by this server");
  }
}

void reject_any_text(Fields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!is_empty_text(fields, name)) reject_any_value(fields, {name});
  }
}

void reject_false(Fields& fields, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (!fields.boolean(name).value_or(true))
      fields.reject(name, "other than true is not supported");
  }
}

void accept_only(Fields& fields,
                 const std::string& name,
                 const std::vector<std::string_view>& values) {
  auto value = fields.string(name, kAnyLength);
  if (!value || std::ranges::find(values, *value) != values.end()) return;
  fields.reject(name, fmt::format("'{}' is not supported by this server", abbreviated(*value)));
}

void reject_other_limit(Fields& fields, const std::string& name, const std::string& right) {
  const auto value = fields.find(name);
  const auto limit = fields.find(right);
  const bool is_same = value && limit && value->is(JsonKind::kInteger) &&
                       limit->is(JsonKind::kInteger) && value->integer() == limit->integer();
  // Not always nothing: elsewhere 0 of these are none.
  const bool is_wish =
      name == "max_new_tokens" ? value.has_value() : asks_for_something(fields, name);
  if (is_wish && !is_same)
    fields.reject(name, fmt::format("is not supported here: use '{}'", right));
}

void reject_other_limits(Fields& fields, const std::string& right) {
  for (const char* name :
       {"max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens"}) {
    if (name != right) reject_other_limit(fields, name, right);
  }
}

void reject_reasoning(Fields& fields) {
  const auto reasoning = fields.find("reasoning");
  if (says_no_reasoning(reasoning) && !has_other_wish(*reasoning)) return;
  reject_unsupported(fields, {"reasoning"});
}

std::string field_without_thoughts(const Fields& fields) {
  if (is_text(fields.find("reasoning_effort"), "none")) return "reasoning_effort";
  if (says_no_reasoning(fields.find("reasoning"))) return "reasoning";
  return is_false(fields.find("thinking")) ? "thinking" : "";
}

void reject_verbosity(Fields& fields) {
  auto verbosity = fields.string("verbosity", kAnyLength);
  if (verbosity && *verbosity != "medium") {
    fields.reject("verbosity", "other than 'medium' is not supported");
  }
}

void reject_unsupported_features(Fields& fields) {
  reject_other_sampling(fields);
  reject_thinking(fields);
  reject_verbosity(fields);
  accept_only(fields, "truncation", {"disabled"});
  reject_unsupported(fields, {"functions", "function_call", "suffix", "use_beam_search",
                              "include_stop_str_in_output", "truncate_prompt_tokens",
                              "logits_processors", "continue_final_message", "chat_template",
                              "documents", "audio", "prediction", "web_search_options",
                              "return_tokens_as_token_ids", "bad_words", "lora", "lora_path"});
  // How other servers are told what an answer must look like: one that does not would be wrong.
  reject_any_value(fields, {"allowed_token_ids", "json_schema"});
  reject_any_text(fields, {"grammar", "regex", "ebnf"});
  if (auto modalities = fields.array("modalities")) {
    for (size_t i = 0; i < modalities->size(); ++i) {
      JsonValue item = modalities->at(i);
      bool is_text = item.is(JsonKind::kString) && item.string() == "text";
      if (!is_text) fields.reject("modalities", "other than [\"text\"] is not supported");
    }
  }
}

}  // namespace droidspeak::openai
