#include <algorithm>

#include "server/chat/prepare.h"
#include "server/completion_face.h"
#include "server/handlers.h"
#include "server/prompt_logprobs.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

using EventKind = AnswerEvent::Kind;
using ItemKind = AnswerItem::Kind;

class ChatFormat final : public AnswerFormat {
 public:
  ChatFormat(Service& service, const PreparedChat& chat, const openai::ChatRequest& request)
      : service_(service),
        has_logprobs_(request.num_top_logprobs >= 0),
        prompt_logprobs_(request.generation.prompt_logprobs),
        choices_(chat.generation->num_choices(), Choice{chat.parser}) {}

  const char* whole_object() const override { return "chat.completion"; }

  const char* chunk_object() const override { return "chat.completion.chunk"; }

  void write_choice(JsonWriter& json,
                    const Generation& /*generation*/,
                    int32_t index,
                    const WholeChoice& choice) override {
    Choice& state = choices_[static_cast<size_t>(index)];
    std::vector<AnswerItem> items = parse_answer(state.parser, choice.text);
    if (choice.finish == FinishReason::kStop) state.is_in_call = drop_cut_calls(items) > 0;
    state.num_calls = std::ranges::count(items, ItemKind::kCall, &AnswerItem::kind);
    json.begin_object();
    json.key("index").integer(index);
    json.key("message").begin_object();
    json.key("role").text("assistant");
    write_content(json, items, state);
    if (state.num_calls > 0) write_calls(json, items);
    json.key("refusal").null();
    json.end_object();
    write_logprobs(json, choice.tokens);
    json.key("finish_reason").text(finish_reason(state, choice.finish));
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
    Choice& choice = choices_[static_cast<size_t>(piece.choice)];
    if (!choice.has_begun) chunks.push_back(role_chunk(piece.choice));
    choice.has_begun = true;
    std::vector<AnswerEvent> events = choice.parser.push(piece.text);
    if (piece.finish) {
      for (AnswerEvent& event : choice.parser.finish()) events.push_back(std::move(event));
    }
    if (has_logprobs_) {
      choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      bool is_last = piece.finish && !choice.tokens.empty();
      if (events.empty() && is_last) events.push_back({EventKind::kText, ""});
    }
    for (const AnswerEvent& event : events) {
      if (event.kind == EventKind::kCallBegin) choice.is_in_call = true;
      if (event.kind == EventKind::kCallEnd) choice.is_in_call = false;
      if (event.kind != EventKind::kCallEnd) chunks.push_back(delta_chunk(piece.choice, event));
    }
    if (piece.finish) chunks.push_back(finish_chunk(piece.choice, *piece.finish));
    return chunks;
  }

 private:
  struct Choice {
    AnswerParser parser;
    bool has_begun = false;
    bool is_in_call = false;  // at the end: the last call was cut off
    int64_t num_calls = 0;
    std::vector<SampledToken> tokens = {};  // whose logprobs have not been shown
  };

  static const char* finish_reason(const Choice& choice, FinishReason reason) {
    bool has_called = choice.num_calls > 0 && !choice.is_in_call && reason == FinishReason::kStop;
    return has_called ? "tool_calls" : to_string(reason);
  }

  static void write_content(JsonWriter& json,
                            const std::vector<AnswerItem>& items,
                            const Choice& choice) {
    std::string content;
    std::string reasoning;
    for (const AnswerItem& item : items) {
      if (item.kind == ItemKind::kText) content += item.text;
      if (item.kind == ItemKind::kReasoning) reasoning += item.text;
    }
    json.key("content");
    if (choice.num_calls > 0) {
      json.text_or_null(content);
    } else {
      json.text(content);
    }
    if (!reasoning.empty()) json.key("reasoning_content").text(reasoning);
  }

  void write_calls(JsonWriter& json, const std::vector<AnswerItem>& items) {
    json.key("tool_calls").begin_array();
    for (const AnswerItem& item : items) {
      if (item.kind != ItemKind::kCall) continue;
      json.begin_object();
      json.key("id").text(service_.new_call_id("call")).key("type").text("function");
      json.key("function").begin_object();
      json.key("name").text(item.name).key("arguments").text(item.text);
      json.end_object().end_object();
    }
    json.end_array();
  }

  static std::string role_chunk(int32_t index) {
    JsonWriter json;
    json.begin_object().key("index").integer(index);
    json.key("delta").begin_object();
    json.key("role").text("assistant").key("content").text("");
    json.end_object();
    json.key("logprobs").null().key("finish_reason").null().end_object();
    return std::move(json).take();
  }

  std::string delta_chunk(int32_t index, const AnswerEvent& event) {
    Choice& choice = choices_[static_cast<size_t>(index)];
    JsonWriter json;
    json.begin_object().key("index").integer(index);
    json.key("delta").begin_object();
    if (event.kind == EventKind::kText) {
      json.key("content").text(event.text);
    } else if (event.kind == EventKind::kReasoning) {
      json.key("reasoning_content").text(event.text);
    } else {
      write_call_delta(json, choice, event);
    }
    json.end_object();
    write_logprobs(json, std::exchange(choice.tokens, {}));
    json.key("finish_reason").null().end_object();
    return std::move(json).take();
  }

  void write_call_delta(JsonWriter& json, Choice& choice, const AnswerEvent& event) {
    bool is_begin = event.kind == EventKind::kCallBegin;
    if (is_begin) ++choice.num_calls;
    json.key("tool_calls").begin_array().begin_object();
    json.key("index").integer(choice.num_calls - 1);
    if (is_begin) json.key("id").text(service_.new_call_id("call")).key("type").text("function");
    json.key("function").begin_object();
    if (is_begin) json.key("name").text(event.text);
    json.key("arguments").text(is_begin ? "" : event.text);
    json.end_object().end_object().end_array();
  }

  std::string finish_chunk(int32_t index, FinishReason reason) const {
    const Choice& choice = choices_[static_cast<size_t>(index)];
    JsonWriter json;
    json.begin_object().key("index").integer(index);
    json.key("delta").begin_object().end_object();
    json.key("logprobs").null();
    json.key("finish_reason").text(finish_reason(choice, reason)).end_object();
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

  Service& service_;
  const bool has_logprobs_;
  const std::optional<int32_t> prompt_logprobs_;
  std::vector<Choice> choices_;
};

ApiResult<Answer> read_chat_request(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_chat_request);
  if (!body) return body.error();
  auto prepared = prepare_chat(service, body->wanted, request, std::move(body->slot));
  if (!prepared) return prepared.error();
  openai::GenerationFields& fields = body->wanted.generation;
  auto format = std::make_unique<ChatFormat>(service, *prepared, body->wanted);
  auto face = make_completion_face(service.new_id("chatcmpl"), fields, std::move(format));
  return Answer{std::move(fields), std::move(prepared->generation), std::move(face)};
}

}  // namespace

HttpResponse chat_completions(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_chat_request(service, request);
  if (!answer) return error_response(answer.error());
  return answer_request(request, std::move(*answer));
}

}  // namespace droidspeak
