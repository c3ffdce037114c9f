#include <array>

#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"

namespace droidspeak::openai {

namespace {

using Kind = OutputFormat::Kind;

std::optional<OutputFormat> read_response_format(Fields& fields) {
  std::optional<Fields> format = fields.object("response_format");
  if (!format) return std::nullopt;
  std::string type = format->required_string("type", kAnyLength);
  bool is_object = type == "json_object";
  if (is_object && format->find("schema")) return read_schema(*format, "schema");
  if (is_object) return OutputFormat{Kind::kJsonObject, {}};
  if (type == "json_schema") {
    if (!format->find("json_schema")) format->missing("json_schema");
    std::optional<Fields> members = format->object("json_schema");
    if (!members) return std::nullopt;
    members->required_string("name", kMaxSchemaNameBytes);
    members->boolean("strict");  // it is enforced either way
    return read_schema(*members, "schema");
  }
  if (!format->has_failed() && type != "text") {
    format->invalid("type", fmt::format("'{}' is not 'text', 'json_object' or 'json_schema'",
                                        abbreviated(type)));
  }
  return std::nullopt;
}

std::optional<OutputFormat> read_choices(Fields& fields) {
  std::optional<JsonValue> choices = fields.array("choice");
  if (!choices) return std::nullopt;
  if (choices->size() == 0) fields.invalid("choice", "empty array; expected at least one text");
  fields.check_count("choice", choices->size(), kMaxOutputChoices);
  for (size_t i = 0; i < choices->size() && !fields.has_failed(); ++i) {
    JsonValue item = choices->at(i);
    if (!item.is(JsonKind::kString)) {
      fields.wrong_type(fmt::format("choice[{}]", i), "a string", item.kind());
    } else if (item.string().empty()) {
      fields.invalid(fmt::format("choice[{}]", i), "it is empty");
    }
  }
  OutputFormat format{Kind::kChoice, choices->text()};
  fields.check_length("choice", format.text, kMaxOutputChoiceBytes);
  return format;
}

constexpr std::array<const char*, 4> kKinds = {"json", "regex", "choice", "grammar"};

std::optional<OutputFormat> read_structured_outputs(Fields& fields) {
  std::optional<Fields> wanted = fields.object("structured_outputs");
  if (!wanted) return std::nullopt;
  reject_unsupported(*wanted,
                     {"json_object", "structural_tag", "disable_fallback", "disable_any_whitespace",
                      "disable_additional_properties", "whitespace_pattern"});
  int num_kinds = 0;
  for (const char* kind : kKinds) num_kinds += wanted->find(kind) ? 1 : 0;
  if (num_kinds != 1) {
    fields.invalid(
        "structured_outputs",
        fmt::format("it has {} of json, regex, choice and grammar; expected one", num_kinds));
    return std::nullopt;
  }
  if (wanted->find("json")) return read_schema(*wanted, "json");
  if (wanted->find("choice")) return read_choices(*wanted);
  if (auto regex = wanted->string("regex", kMaxRegexBytes))
    return OutputFormat{Kind::kRegex, std::move(*regex)};
  auto grammar = wanted->string("grammar", kMaxGrammarBytes);
  return OutputFormat{Kind::kEbnf, std::move(grammar).value_or("")};
}

// Of earlier versions of vLLM.
void reject_former_fields(Fields& fields) {
  for (const char* kind : kKinds) {
    const std::string name = fmt::format("guided_{}", kind);
    const bool is_text = std::string_view(kind) == "regex" || std::string_view(kind) == "grammar";
    if (fields.find(name) && !(is_text && is_empty_text(fields, name))) {
      fields.reject(name,
                    fmt::format("is not supported; give it as 'structured_outputs.{}'", kind));
    }
  }
  reject_unsupported(fields, {"guided_decoding_backend", "guided_whitespace_pattern"});
}

}  // namespace

namespace {

// A schema that came as text, as JSON of our own writing: other texts are put around it.
std::string schema_text(Fields& fields, const std::string& name, const std::string& text) {
  ApiResult<JsonDocument> document = JsonDocument::parse(text);
  bool is_schema = document && (document->root().is(JsonKind::kObject) ||
                                document->root().is(JsonKind::kBoolean));
  if (is_schema) return document->root().text();
  fields.invalid(name, "it is not the text of a JSON schema");
  return {};
}

}  // namespace

OutputFormat read_schema(Fields& fields, const std::string& name) {
  OutputFormat format{Kind::kJsonSchema, {}};
  std::optional<JsonValue> schema = fields.find(name);
  if (!schema) {
    fields.missing(name);
  } else if (schema->is(JsonKind::kString)) {
    format.text = schema_text(fields, name, schema->string());
  } else if (schema->is(JsonKind::kObject) || schema->is(JsonKind::kBoolean)) {
    format.text = schema->text();
  } else {
    fields.wrong_type(name, "a JSON schema", schema->kind());
  }
  fields.check_length(name, format.text, kMaxSchemaBytes);
  return format;
}

void read_output_format(Fields& fields, GenerationFields& generation) {
  reject_former_fields(fields);
  if (fields.has_failed()) return;
  auto response = read_response_format(fields);
  auto structured = read_structured_outputs(fields);
  if (response && structured)
    fields.invalid("structured_outputs", "not allowed beside 'response_format'");
  if (response) {
    set_output_format(fields, generation, "response_format", std::move(*response));
  } else if (structured) {
    set_output_format(fields, generation, "structured_outputs", std::move(*structured));
  }
}

void set_output_format(Fields& fields,
                       GenerationFields& generation,
                       std::string param,
                       OutputFormat format) {
  generation.output_param = std::move(param);
  generation.output_format = std::move(format);
  if (generation.min_tokens > 0)
    fields.invalid("min_tokens", "not allowed where the answer's format says when it ends");
}

}  // namespace droidspeak::openai
