#include "server/embedder.h"

#include <chrono>

#include <fmt/format.h>

#include "server/engine_requests.h"
#include "server/openai/limits.h"

namespace droidspeak {

namespace {

constexpr std::chrono::milliseconds kCheckInterval{50};

ApiError not_for_embeddings(const std::string& model) {
  return bad_field(fmt::format("The model '{}' is not for embeddings: its family declares no "
                               "'pooling' for it.",
                               model),
                   "model", "unsupported_value");
}

ApiResult<std::vector<int32_t>> encode(const Service& service,
                                       const TextsToEmbed& wanted,
                                       size_t index) {
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&wanted.texts[index])) return *tokens;
  const auto& text = std::get<std::string>(wanted.texts[index]);
  const char* param = wanted.params[index].c_str();
  return wanted.adds_special_tokens ? service.encode_prompt(text, param)
                                    : service.encode(text, param);
}

openai::GenerationFields fields_of(const TextsToEmbed& wanted, size_t dimensions) {
  openai::GenerationFields fields;
  fields.model = wanted.model;
  fields.max_tokens = 0;
  fields.priority = wanted.priority;
  fields.sharing.mode = SharingRequest::Mode::kOff;
  fields.kept_bytes = wanted.kept_bytes + wanted.texts.size() * dimensions * sizeof(float);
  return fields;
}

// `common` is what all of them have.
ApiResult<std::vector<GenerationRequest>> make_requests(Service& service,
                                                        const openai::GenerationFields& fields,
                                                        const EngineRequestOptions& common,
                                                        TextsToEmbed& wanted) {
  std::vector<GenerationRequest> requests;
  size_t total = 0;
  for (size_t i = 0; i < wanted.texts.size(); ++i) {
    ApiResult<std::vector<int32_t>> tokens = encode(service, wanted, i);
    if (!tokens) return tokens.error();
    wanted.texts[i] = std::string();
    total += tokens->size();
    if (total > openai::kMaxPromptTokens) {
      return bad_field(fmt::format("Invalid '{}': more than {} tokens in all texts together; send "
                                   "fewer at a time.",
                                   wanted.params[i], openai::kMaxPromptTokens),
                       wanted.params[i], "array_above_max_length");
    }
    EngineRequestOptions options = common;
    options.prompts.emplace_back(std::move(*tokens));
    options.prompt_param = wanted.params[i].c_str();
    auto made = make_engine_requests(service, fields, std::move(options));
    if (!made) return made.error();
    requests.push_back(std::move(made->front()));
  }
  return requests;
}

std::shared_ptr<RequestNotes> notes_of(const std::string& model, int64_t prompt_tokens) {
  auto notes = std::make_shared<RequestNotes>();
  JsonWriter name;
  name.text(model);
  notes->fields.emplace_back("model", std::move(name).take());
  notes->fields.emplace_back("prompt_tokens", std::to_string(prompt_tokens));
  return notes;
}

ApiResult<EmbeddedTexts> wait_for_all(Generation& generation, const HttpRequest& request) {
  if (auto started = generation.start(); !started) return to_api_error(started.error());
  while (!generation.is_done()) {
    std::optional<GenerationEvent> event = generation.next(kCheckInterval);
    if (!request.is_connected()) return status_error(499, "The client went away.");
    if (!event) continue;
    if (auto* error = std::get_if<Error>(&*event)) return to_api_error(*error);
  }
  EmbeddedTexts embedded;
  for (int32_t i = 0; i < static_cast<int32_t>(generation.num_choices()); ++i) {
    embedded.embeddings.push_back(generation.embedding(i));
    embedded.prompt_tokens += static_cast<int64_t>(generation.request(i).prompt->size());
  }
  return embedded;
}

}  // namespace

ApiResult<EmbeddedTexts> embed_texts(Service& service,
                                     TextsToEmbed wanted,
                                     HttpRequest& request,
                                     WorkSlots::Slot slot) {
  std::optional<Service::Model> model = service.find_model(wanted.model);
  if (!model) return model_not_found(wanted.model);
  if (model->variant->pooling == Pooling::kNone) return not_for_embeddings(wanted.model);
  auto dimensions = static_cast<size_t>(service.engine().config().d_model);
  if (wanted.texts.size() * dimensions > openai::kMaxEmbeddingValues) {
    return bad_field(
        fmt::format("Invalid '{}': {} texts of {} numbers each; expected at most {} numbers in "
                    "all. Send fewer texts at a time.",
                    wanted.params.back(), wanted.texts.size(), dimensions,
                    openai::kMaxEmbeddingValues),
        wanted.params.back(), "array_above_max_length");
  }
  openai::GenerationFields fields = fields_of(wanted, dimensions);
  EngineRequestOptions common;
  common.variant = model->variant;
  common.tenant = request.caller.tenant;
  common.wants_embedding = true;
  auto requests = make_requests(service, fields, common, wanted);
  if (!requests) return requests.error();
  if (auto error = reserve_memory(service, *requests, fields, request)) return *error;
  { WorkSlots::Slot done = std::move(slot); }
  auto generation = make_generation(service, fields, std::move(*requests));
  ApiResult<EmbeddedTexts> embedded = wait_for_all(*generation, request);
  if (embedded) embedded->notes = notes_of(wanted.model, embedded->prompt_tokens);
  return embedded;
}

HttpResponse with_usage(JsonWriter json, const EmbeddedTexts& embedded) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").integer(embedded.prompt_tokens);
  json.key("total_tokens").integer(embedded.prompt_tokens).end_object().end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  response.notes = embedded.notes;
  return response;
}

}  // namespace droidspeak
