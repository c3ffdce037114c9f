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

// What the answer must look like, by `response_format` or `structured_outputs`.
void read_output_format(Fields& fields, GenerationFields& generation);
// `format`, which the field `param` says. 400 beside `min_tokens`: it says itself where it may end.
void set_output_format(Fields& fields,
                       GenerationFields& generation,
                       std::string param,
                       OutputFormat format);
// A schema: an object or a boolean, or a string that holds one.
OutputFormat read_schema(Fields& fields, const std::string& name);

// Elements of `array` as token ids >= 0; reports the field `name` otherwise.
std::vector<int32_t> read_token_ids(Fields& fields, const std::string& name, JsonValue array);

// A text, token ids, or a list of either, at least one: a prompt, or what is to be embedded.
std::vector<Prompt> read_prompts(Fields& fields, const std::string& name);

// Messages, tools and what else a template sees.
ChatPrompt read_chat_prompt(Fields& fields);

// The messages of a chat; at least one.
std::vector<ChatTurn> read_messages(Fields& fields);

// `content` of a message: a text, or parts of these types as one text, a line each; "" where there
// is none.
std::string read_content(Fields& message, const std::vector<std::string_view>& types);

ApiError unsupported_content(std::string_view type, const std::string& where);

// Whether the field is there with another value than null, false, 0 or something empty.
bool asks_for_something(const Fields& fields, const std::string& name);
// Whether it is an empty text.
bool is_empty_text(const Fields& fields, const std::string& name);
// 400 that says why, when the field is there with a value that asks for something.
void reject_with(Fields& fields, const std::string& name, const std::string& why);
// 400 for those of `names` that are there with a value that asks for something.
void reject_unsupported(Fields& fields, const std::vector<std::string>& names);
// The same with any value but null: of these false, 0 or something empty is a wish, too, as an
// empty schema is.
void reject_any_value(Fields& fields, const std::vector<std::string>& names);
// The same, but that an empty text passes, too, which asks for none.
void reject_any_text(Fields& fields, const std::vector<std::string>& names);
// 400 for false.
void reject_false(Fields& fields, const std::vector<std::string>& names);
// 400 for any other value than `values`.
void accept_only(Fields& fields,
                 const std::string& name,
                 const std::vector<std::string_view>& values);
// 400 for `name`, which is another one for `right`, how long the answer may be, unless both say the
// same; and for all the names that other calls and servers have for it.
void reject_other_limit(Fields& fields, const std::string& name, const std::string& right);
void reject_other_limits(Fields& fields, const std::string& right);
// 400 for `reasoning`, unless it asks for none.
void reject_reasoning(Fields& fields);
// The field that asks for an answer without thoughts; empty: none does.
std::string field_without_thoughts(const Fields& fields);
// Tells the template what the request says of thoughts.
void read_thoughts(Fields& fields, ChatPrompt& prompt);
// `verbosity` other than the default, "medium".
void reject_verbosity(Fields& fields);
// What no call supports.
void reject_unsupported_features(Fields& fields);

}  // namespace droidspeak::openai
