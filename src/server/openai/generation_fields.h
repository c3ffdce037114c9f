// Pieces that the request readers share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/openai/fields.h"
#include "server/openai/requests.h"

namespace droidspeak::openai {

// The body as one JSON object.
ApiResult<JsonDocument> parse_object(std::string_view body);

// All but max_tokens, which the two calls name differently.
void read_generation_fields(Fields& fields, GenerationFields& generation);

// What the answer must look like, by `response_format` or `structured_outputs`. Schemas are taken
// from `body`, the whole request's text, to keep the order of their keys.
void read_output_format(Fields& fields, std::string_view body, GenerationFields& generation);

// Elements of `array` as token ids >= 0; reports the field `name` otherwise.
std::vector<int32_t> read_token_ids(Fields& fields, const std::string& name, JsonValue array);

// `template_arguments` is the text of the field of that name, see member_text().
inline constexpr const char* kTemplateArguments = "chat_template_kwargs";
ChatPrompt read_chat_prompt(Fields& fields, std::string template_arguments);

// 400 for those of `names` that are there with a value that asks for something.
void reject_unsupported(Fields& fields, const std::vector<std::string>& names);

}  // namespace droidspeak::openai
