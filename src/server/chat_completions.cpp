#include <algorithm>

#include "server/answer.h"
#include "server/engine_requests.h"
#include "server/handlers.h"
#include "server/prompt_logprobs.h"

namespace droidspeak {

namespace {

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(const Service& service, const openai::ChatRequest& request, size_t num_choices)
      : service_(service),
        has_logprobs_(request.num_top_logprobs >= 0),
        prompt_logprobs_(request.generation.prompt_logprobs),
        has_begun_(num_choices, false) {}

  const char* whole_object() const override { return "chat.completion"; }

  const char* chunk_object() const override { return "chat.completion.chunk"; }

  void write_choice(JsonWriter& json,
                    const Generation& /*generation*/,
                    int32_t index,
                    const WholeChoice& choice) override {
    json.begin_object();
    json.key("index").integer(index);
    json.key("message").begin_object();
    json.key("role").text("assistant");
    json.key("content").text(choice.text);
    json.key("refusal").null();
    json.end_object();
    write_logprobs(json, choice.tokens);
    json.key("finish_reason").text(to_string(choice.finish));
    json.end_object();
  }

  void write_rest(JsonWriter& json, const Generation& generation) override {
    if (!prompt_logprobs_) return;
    json.key("prompt_logprobs");
    write_prompt_logprobs(json, service_, generation.prompt_logprobs(0), *prompt_logprobs_);
  }

  std::vector<std::string> chunk_choices(const Generation& /*generation*/,
                                         const ChoicePiece& piece) override {
    std::vector<std::string> chunks;
    size_t index = static_cast<size_t>(piece.choice);
    if (!has_begun_[index]) chunks.push_back(role_chunk(piece.choice));
    has_begun_[index] = true;
    if (!piece.text.empty() || (has_logprobs_ && !piece.tokens.empty())) {
      chunks.push_back(content_chunk(piece));
    }
    if (piece.finish) chunks.push_back(finish_chunk(piece.choice, *piece.finish));
    return chunks;
  }

 private:
  static std::string role_chunk(int32_t index) {
    JsonWriter json;
    json.begin_object().key("index").integer(index);
    json.key("delta").begin_object();
    json.key("role").text("assistant").key("content").text("");
    json.end_object();
    json.key("logprobs").null().key("finish_reason").null().end_object();
    return std::move(json).take();
  }

  std::string content_chunk(const ChoicePiece& piece) const {
    JsonWriter json;
    json.begin_object().key("index").integer(piece.choice);
    json.key("delta").begin_object().key("content").text(piece.text).end_object();
    write_logprobs(json, piece.tokens);
    json.key("finish_reason").null().end_object();
    return std::move(json).take();
  }

  static std::string finish_chunk(int32_t index, FinishReason reason) {
    JsonWriter json;
    json.begin_object().key("index").integer(index);
    json.key("delta").begin_object().end_object();
    json.key("logprobs").null().key("finish_reason").text(to_string(reason)).end_object();
    return std::move(json).take();
  }

  void write_logprobs(JsonWriter& json, const std::vector<SampledToken>& tokens) const {
    json.key("logprobs");
    if (!has_logprobs_) {
      json.null();
      return;
    }
    json.begin_object().key("content").begin_array();
    for (const SampledToken& token : tokens) {
      json.begin_object();
      write_token(json, {token.token, token.logprob});
      json.key("top_logprobs").begin_array();
      for (const TokenLogprob& other : token.top) {
        json.begin_object();
        write_token(json, other);
        json.end_object();
      }
      json.end_array().end_object();
    }
    json.end_array().key("refusal").null().end_object();
  }

  void write_token(JsonWriter& json, TokenLogprob token) const {
    std::string_view bytes = service_.token_bytes(token.token);
    json.key("token").text(bytes);
    json.key("logprob").single_number(std::max(token.logprob, kLowestLogprob));
    json.key("bytes").begin_array();
    for (char byte : bytes) json.integer(static_cast<unsigned char>(byte));
    json.end_array();
  }

  const Service& service_;
  const bool has_logprobs_;
  const std::optional<int32_t> prompt_logprobs_;
  std::vector<bool> has_begun_;
};

ApiResult<Answer> read_request(Service& service, HttpRequest& request) {
  ApiResult<WorkSlots::Slot> slot = service.take_work_slot(request);
  if (!slot) return slot.error();
  ApiResult<openai::ChatRequest> chat = openai::parse_chat_request(std::move(request.body));
  request.release_body();
  if (!chat) return chat.error();
  const openai::GenerationFields& fields = chat->generation;
  std::optional<Service::Model> model = service.find_model(fields.model);
  if (!model) return model_not_found(fields.model);
  ApiResult<std::vector<int32_t>> prompt = service.encode_chat(std::move(chat->prompt));
  if (!prompt) return prompt.error();

  EngineRequestOptions options;
  options.variant = model->variant;
  options.tenant = request.caller.tenant;
  options.prompts = {std::move(*prompt)};
  options.prompt_param = "messages";
  options.num_top_logprobs = chat->num_top_logprobs;
  auto requests = make_engine_requests(service, fields, std::move(options));
  if (!requests) return requests.error();
  if (auto error = reserve_memory(service, *requests, fields.num_choices, request)) return *error;
  size_t num_choices = requests->size() * static_cast<size_t>(fields.num_choices);
  return Answer{service.new_id("chatcmpl"), fields.model, fields,
                make_generation(service, fields, std::move(*requests)),
                std::make_shared<ChatFormat>(service, *chat, num_choices)};
}

}  // namespace

HttpResponse chat_completions(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_request(service, request);
  if (!answer) return error_response(answer.error());
  return answer_request(request, std::move(*answer));
}

}  // namespace droidspeak
