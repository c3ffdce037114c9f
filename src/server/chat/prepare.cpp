#include "server/chat/prepare.h"

#include <set>
#include <string>
#include <utility>

#include "server/chat/tool_format.h"
#include "server/engine_requests.h"

namespace droidspeak {

namespace {

// Thoughts end where the text says so.
bool is_end_of_thoughts_special(const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens = tokenizer.encode("</think>", SpecialTokens::kParse);
  return tokens.size() == 1 && tokenizer.is_special(tokens.front());
}

}  // namespace

ApiResult<PreparedChat> prepare_chat(Service& service,
                                     openai::ChatRequest& chat,
                                     HttpRequest& request,
                                     WorkSlots::Slot slot) {
  openai::GenerationFields& fields = chat.generation;
  std::optional<Service::Model> model = service.find_model(fields.model);
  if (!model) return model_not_found(fields.model);
  const CallSyntax* syntax = nullptr;
  using Calls = AnswerParser::Calls;
  const Calls calls = fields.output_format ? Calls::kInsteadOfText : Calls::kBesideText;
  std::set<std::string> tool_names;
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
    for (const Tool& tool : offer.tools) tool_names.insert(tool.name);
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
  if (auto error = reserve_memory(service, *requests, fields, request)) return *error;
  { WorkSlots::Slot done = std::move(slot); }
  bool is_thinking = prompt->beginning == AnswerParser::Beginning::kReasoning;
  if (fields.output_format && is_thinking) {
    fields.output_format->begins = OutputFormat::Begins::kAfterReasoning;
    fields.skips_special_tokens = false;  // the format counts them as text
  }
  if (is_end_of_thoughts_special(service.tokenizer())) fields.skips_special_tokens = false;
  if (auto error = add_grammar(service, fields, *requests, request)) return *error;
  return PreparedChat{make_generation(service, fields, std::move(*requests)),
                      AnswerParser(syntax, prompt->beginning, std::move(tool_names), calls)};
}

}  // namespace droidspeak
