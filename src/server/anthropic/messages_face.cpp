#include "server/anthropic/messages_face.h"

#include <utility>

#include "server/anthropic/errors.h"
#include "server/json_writer.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::anthropic {

namespace {

using EventKind = AnswerEvent::Kind;
using ItemKind = AnswerItem::Kind;

// How a message came to its end.
struct Ending {
  FinishReason finish = FinishReason::kStop;
  std::string stop = {};
  bool has_called = false;
};

const char* stop_reason(const Ending& ending) {
  if (ending.finish == FinishReason::kLength) return "max_tokens";
  if (!ending.stop.empty()) return "stop_sequence";
  return ending.has_called ? "tool_use" : "end_turn";
}

// `write` adds what an event of this type has beside the type.
template <class Write>
std::string event(const char* type, Write write) {
  JsonWriter json;
  json.begin_object().key("type").text(type);
  write(json);
  json.end_object();
  return std::string("event: ") + type + "\ndata: " + std::move(json).take() + "\n\n";
}

class MessagesFace final : public AnswerFace {
 public:
  MessagesFace(Service& service, std::string model, AnswerParser parser)
      : service_(service),
        model_(std::move(model)),
        parser_(std::move(parser)),
        id_(service.new_id("msg")) {}

  void write_whole(JsonWriter& json,
                   const Generation& generation,
                   const std::vector<WholeChoice>& choices) override {
    const WholeChoice& choice = choices.front();
    ending_ = {choice.finish, choice.stop};
    json.begin_object();
    begin_message(json);
    json.key("content").begin_array();
    for (const AnswerItem& item : parse_answer(parser_, choice.text)) {
      if (!item.is_whole) continue;
      write_block(json, item);
      if (item.kind == ItemKind::kCall) ending_.has_called = true;
    }
    json.end_array();
    write_ending(json);
    write_usage(json, generation);
    if (const auto& prefill = generation.prefill(0)) {
      json.key("droidspeak").raw(droidspeak_json(*prefill));
    }
    json.end_object();
  }

  std::string piece_events(const Generation& generation, const ChoicePiece& piece) override {
    std::string events;
    if (!has_begun_) events = begin_events(generation);
    has_begun_ = true;
    for (const AnswerEvent& answer : parser_.push(piece.text)) events += answer_event(answer);
    if (!piece.finish) return events;
    for (const AnswerEvent& answer : parser_.finish()) events += answer_event(answer);
    ending_.finish = *piece.finish;
    ending_.stop = piece.stop;
    return events + close_block();
  }

  std::string end_events(const Generation& generation) override {
    std::string events = event("message_delta", [&](JsonWriter& json) {
      json.key("delta").begin_object();
      write_ending(json);
      json.end_object();
      write_usage(json, generation);
      if (const auto& prefill = generation.prefill(0)) {
        json.key("droidspeak").raw(droidspeak_json(*prefill));
      }
    });
    return events + event("message_stop", [](JsonWriter&) {});
  }

  std::string error_events(const ApiError& error) override {
    return "event: error\ndata: " + anthropic::error_body(error) + "\n\n";
  }

  HttpResponse refusal(const ApiError& error) const override {
    return anthropic::error_response(error);
  }

 private:
  void begin_message(JsonWriter& json) const {
    json.key("id").text(id_).key("type").text("message").key("role").text("assistant");
    json.key("model").text(model_);
  }

  void write_ending(JsonWriter& json) const {
    json.key("stop_reason").text(stop_reason(ending_));
    json.key("stop_sequence").text_or_null(ending_.stop);
  }

  static void write_usage(JsonWriter& json, const Generation& generation) {
    Usage usage = usage_of(generation, 1);
    json.key("usage").begin_object();
    json.key("input_tokens").integer(usage.prompt_tokens - usage.cached_tokens);
    json.key("cache_creation_input_tokens").integer(0);
    json.key("cache_read_input_tokens").integer(usage.cached_tokens);
    json.key("output_tokens").integer(usage.completion_tokens).end_object();
  }

  // A block; in a stream, one without its content.
  void write_block(JsonWriter& json, const AnswerItem& item) {
    json.begin_object();
    switch (item.kind) {
      case ItemKind::kText:
        json.key("type").text("text").key("text").text(item.text);
        break;
      case ItemKind::kReasoning:
        json.key("type").text("thinking").key("thinking").text(item.text);
        json.key("signature").text("");
        break;
      case ItemKind::kCall:
        json.key("type").text("tool_use").key("id").text(service_.new_call_id("toolu"));
        json.key("name").text(item.name);
        json.key("input").raw(openai::object_or_none(item.text));
        break;
    }
    json.end_object();
  }

  std::string begin_events(const Generation& generation) {
    std::string start = event("message_start", [&](JsonWriter& json) {
      json.key("message").begin_object();
      begin_message(json);
      json.key("content").begin_array().end_array();
      json.key("stop_reason").null().key("stop_sequence").null();
      write_usage(json, generation);
      json.end_object();
    });
    return start + event("ping", [](JsonWriter&) {});
  }

  std::string open_block(const AnswerItem& item) {
    std::string events = close_block();
    kind_ = item.kind;
    ++index_;
    return events + event("content_block_start", [&](JsonWriter& json) {
             json.key("index").integer(index_).key("content_block");
             write_block(json, item);
           });
  }

  std::string close_block() {
    if (!kind_) return {};
    kind_.reset();
    return event("content_block_stop",
                 [&](JsonWriter& json) { json.key("index").integer(index_); });
  }

  // A piece of `kind`, in a block of its own when another kind came before.
  std::string delta(ItemKind kind, const char* type, const char* field, const std::string& text) {
    std::string events;
    if (kind_ != kind) events = open_block({kind});
    return events + event("content_block_delta", [&](JsonWriter& json) {
             json.key("index").integer(index_).key("delta").begin_object();
             json.key("type").text(type).key(field).text(text).end_object();
           });
  }

  std::string answer_event(const AnswerEvent& answer) {
    switch (answer.kind) {
      case EventKind::kText:
        return delta(ItemKind::kText, "text_delta", "text", answer.text);
      case EventKind::kReasoning:
        return delta(ItemKind::kReasoning, "thinking_delta", "thinking", answer.text);
      case EventKind::kCallBegin:
        ending_.has_called = false;  // until it is whole
        return open_block({ItemKind::kCall, "", answer.text});
      case EventKind::kArguments:
        return delta(ItemKind::kCall, "input_json_delta", "partial_json", answer.text);
      case EventKind::kCallEnd:
        ending_.has_called = true;
        return close_block();
    }
    panic("unknown AnswerEvent::Kind");
  }

  Service& service_;
  const std::string model_;
  AnswerParser parser_;
  const std::string id_;
  Ending ending_;
  bool has_begun_ = false;
  std::optional<ItemKind> kind_;  // of the open block
  int64_t index_ = -1;            // of the last block
};

}  // namespace

std::shared_ptr<AnswerFace> make_messages_face(Service& service,
                                               std::string model,
                                               AnswerParser parser) {
  return std::make_shared<MessagesFace>(service, std::move(model), std::move(parser));
}

}  // namespace droidspeak::anthropic
