#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::openai {

ApiResult<CompletionRequest> parse_completion_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  CompletionRequest request;
  read_generation_fields(fields, request.generation);
  read_output_format(fields, request.generation);
  request.prompts = read_prompts(fields, "prompt");
  reject_unsupported(fields, {"tools", "system", "instructions", "stop_sequences", "output_config",
                              "text", "top_logprobs", "chat_template_kwargs", "enable_thinking"});
  reject_reasoning(fields);
  accept_only(fields, "service_tier", {"auto", "default"});
  reject_other_limits(fields, "max_tokens");
  read_chat_tools(fields);  // without tools some choices mean nothing
  request.is_echoed = fields.boolean("echo").value_or(false);
  request.adds_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  request.num_top_logprobs = static_cast<int32_t>(fields.integer("logprobs", {0, 20}).value_or(-1));
  IntegerRange range{request.is_echoed ? 0 : 1, std::numeric_limits<int32_t>::max()};
  request.generation.max_tokens =
      static_cast<int32_t>(fields.integer("max_tokens", range).value_or(16));
  size_t num_choices = request.prompts.size() * static_cast<size_t>(request.generation.num_choices);
  if (num_choices > kMaxChoices) {
    fields.fail(
        bad_field(fmt::format("Invalid 'n': {} choices of each of {} prompts; expected at "
                              "most {} choices in all.",
                              request.generation.num_choices, request.prompts.size(), kMaxChoices),
                  "n", "integer_above_max_value"));
  }
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
