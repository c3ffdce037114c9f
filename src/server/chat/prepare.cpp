#include "server/chat/prepare.h"

#include <utility>

#include "server/chat/tool_format.h"
#include "server/engine_requests.h"

namespace droidspeak {

ApiResult<PreparedChat> prepare_chat(Service& service,
                                     openai::ChatRequest& chat,
                                     HttpRequest& request) {
  openai::GenerationFields& fields = chat.generation;
  std::optional<Service::Model> model = service.find_model(fields.model);
  if (!model) return model_not_found(fields.model);
  const CallSyntax* syntax = nullptr;
  if (const ToolOffer& offer = chat.prompt.tools; offer.is_open()) {
    syntax = &call_syntax(service.tool_dialect().syntax);
    auto format = tool_format(offer, {*syntax, fields.output_format});
    if (!format) return format.error();
    fields.output_format = std::move(*format);
    fields.output_param = "tools";
    if (fields.min_tokens > 0) {
      return bad_field("Invalid 'min_tokens': not allowed where tools may be called.",
                       "min_tokens");
    }
    fields.skips_special_tokens = false;  // some models begin calls with one
  }
  auto prompt = service.encode_chat(std::move(chat.prompt));
  if (!prompt) return prompt.error();

  EngineRequestOptions options;
  options.variant = model->variant;
  options.tenant = request.caller.tenant;
  options.prompts = {std::move(prompt->tokens)};
  options.prompt_param = "messages";
  options.num_top_logprobs = chat.num_top_logprobs;
  auto requests = make_engine_requests(service, fields, std::move(options));
  if (!requests) return requests.error();
  if (auto error = reserve_memory(service, *requests, fields.num_choices, request)) return *error;
  return PreparedChat{make_generation(service, fields, std::move(*requests)),
                      AnswerParser(syntax, prompt->beginning)};
}

}  // namespace droidspeak
