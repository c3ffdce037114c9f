#include "server/openai/responses_face.h"

#include <utility>

#include "server/json_writer.h"
#include "server/openai/response_items.h"

namespace droidspeak::openai {

namespace {

using EventKind = AnswerEvent::Kind;
using ItemKind = AnswerItem::Kind;

enum class Status { kInProgress, kCompleted, kIncomplete, kFailed };

const char* to_string(Status status) {
  switch (status) {
    case Status::kInProgress:
      return "in_progress";
    case Status::kCompleted:
      return "completed";
    case Status::kIncomplete:
      return "incomplete";
    case Status::kFailed:
      return "failed";
  }
  panic("unknown Status");
}

std::string_view or_else(const std::string& json, std::string_view otherwise) {
  return json.empty() ? otherwise : std::string_view(json);
}

class ResponsesFace final : public AnswerFace {
 public:
  ResponsesFace(Service& service, ResponsesRequest request, AnswerParser parser)
      : service_(service),
        request_(std::move(request)),
        parser_(std::move(parser)),
        id_(service.new_id("resp")) {}

  void write_whole(JsonWriter& json,
                   const Generation& generation,
                   const std::vector<WholeChoice>& choices) override {
    const WholeChoice& choice = choices.front();
    for (AnswerItem& item : parse_answer(parser_, choice.text)) add_item(std::move(item));
    if (items_.empty()) add_item({ItemKind::kText});
    finish_ = choice.finish;
    json.raw(response(&generation, end_status(), nullptr));
  }

  std::string piece_events(const Generation& /*generation*/, const ChoicePiece& piece) override {
    std::string events;
    if (!has_begun_) events = begin_events();
    has_begun_ = true;
    for (const AnswerEvent& event : parser_.push(piece.text)) events += answer_event(event);
    if (!piece.finish) return events;
    for (const AnswerEvent& event : parser_.finish()) events += answer_event(event);
    finish_ = *piece.finish;
    if (items_.empty()) events += open_item({ItemKind::kText});
    return events + close_item();
  }

  std::string end_events(const Generation& generation) override {
    const char* type =
        end_status() == Status::kCompleted ? "response.completed" : "response.incomplete";
    return response_event(type, &generation, end_status(), nullptr);
  }

  std::string error_events(const ApiError& error) override {
    std::string events;
    if (!has_begun_) events = begin_events();
    has_begun_ = true;
    return events + response_event("response.failed", nullptr, Status::kFailed, &error);
  }

  HttpResponse refusal(const ApiError& error) const override { return error_response(error); }

 private:
  Status end_status() const {
    bool is_cut =
        finish_ == FinishReason::kLength || (!items_.empty() && !items_.back().item.is_whole);
    return is_cut ? Status::kIncomplete : Status::kCompleted;
  }

  ItemStatus item_status() const {
    const AnswerItem& item = items_.back().item;
    bool is_cut = item.kind == ItemKind::kCall ? !item.is_whole : finish_ == FinishReason::kLength;
    return is_cut ? ItemStatus::kIncomplete : ItemStatus::kCompleted;
  }

  void add_item(AnswerItem item) {
    std::string call_id;
    const char* prefix = "msg";
    if (item.kind == ItemKind::kReasoning) prefix = "rs";
    if (item.kind == ItemKind::kCall) {
      prefix = "fc";
      call_id = service_.new_call_id("call");
    }
    items_.push_back({std::move(item), service_.new_id(prefix), std::move(call_id)});
  }

  // `write` adds what an event of this type has beside type and number. Each takes the next number:
  // two must not stand in one expression.
  template <class Write>
  std::string event(const char* type, Write write) {
    JsonWriter json;
    json.begin_object().key("type").text(type);
    json.key("sequence_number").integer(sequence_++);
    write(json);
    json.end_object();
    return std::string("event: ") + type + "\ndata: " + std::move(json).take() + "\n\n";
  }

  std::string response_event(const char* type,
                             const Generation* generation,
                             Status status,
                             const ApiError* error) {
    return event(type, [&](JsonWriter& json) {
      json.key("response").raw(response(generation, status, error));
    });
  }

  std::string begin_events() {
    std::string events = response_event("response.created", nullptr, Status::kInProgress, nullptr);
    events += response_event("response.in_progress", nullptr, Status::kInProgress, nullptr);
    return events;
  }

  // An event about the last item; of calls there are no parts.
  template <class Write>
  std::string item_event(const char* type, Write write) {
    return event(type, [&](JsonWriter& json) {
      json.key("item_id").text(items_.back().id);
      json.key("output_index").unsigned_integer(items_.size() - 1);
      if (items_.back().item.kind != ItemKind::kCall) json.key("content_index").integer(0);
      write(json);
    });
  }

  std::string whole_item_event(const char* type, ItemStatus status) {
    return event(type, [&](JsonWriter& json) {
      json.key("output_index").unsigned_integer(items_.size() - 1);
      json.key("item");
      write_item(json, items_.back(), status);
    });
  }

  std::string part_event(const char* type) {
    const AnswerItem& item = items_.back().item;
    return item_event(type, [&](JsonWriter& json) {
      json.key("part");
      write_part(json, item.kind, item.text);
    });
  }

  std::string open_item(AnswerItem item) {
    bool has_parts = item.kind != ItemKind::kCall;
    add_item(std::move(item));
    is_open_ = true;
    std::string events = whole_item_event("response.output_item.added", ItemStatus::kInProgress);
    if (has_parts) events += part_event("response.content_part.added");
    return events;
  }

  std::string text_event(const char* type, const char* name, const std::string& text) {
    bool is_text = items_.back().item.kind == ItemKind::kText;
    return item_event(type, [&](JsonWriter& json) {
      json.key(name).text(text);
      if (is_text) json.key("logprobs").begin_array().end_array();
    });
  }

  std::string close_item() {
    if (!is_open_) return {};
    is_open_ = false;
    const AnswerItem& item = items_.back().item;
    std::string events;
    switch (item.kind) {
      case ItemKind::kText:
        events = text_event("response.output_text.done", "text", item.text);
        events += part_event("response.content_part.done");
        break;
      case ItemKind::kReasoning:
        events = text_event("response.reasoning_text.done", "text", item.text);
        events += part_event("response.content_part.done");
        break;
      case ItemKind::kCall:
        events = item_event("response.function_call_arguments.done", [&](JsonWriter& json) {
          json.key("name").text(item.name).key("arguments").text(item.text);
        });
        break;
    }
    return events + whole_item_event("response.output_item.done", item_status());
  }

  std::string delta(ItemKind kind, const char* type, const std::string& text) {
    std::string events;
    bool continues = is_open_ && items_.back().item.kind == kind;
    if (!continues) {
      events = close_item();
      events += open_item({kind});
    }
    items_.back().item.text += text;
    return events + text_event(type, "delta", text);
  }

  std::string answer_event(const AnswerEvent& event) {
    switch (event.kind) {
      case EventKind::kText:
        return delta(ItemKind::kText, "response.output_text.delta", event.text);
      case EventKind::kReasoning:
        return delta(ItemKind::kReasoning, "response.reasoning_text.delta", event.text);
      case EventKind::kCallBegin: {
        std::string events = close_item();
        return events + open_item({ItemKind::kCall, "", event.text, false});
      }
      case EventKind::kArguments:
        return delta(ItemKind::kCall, "response.function_call_arguments.delta", event.text);
      case EventKind::kCallEnd:
        items_.back().item.is_whole = true;
        return close_item();
    }
    panic("unknown AnswerEvent::Kind");
  }

  std::string response(const Generation* generation, Status status, const ApiError* error) {
    const GenerationFields& fields = request_.chat.generation;
    bool is_parallel = request_.chat.prompt.tools.calls == ToolOffer::Calls::kMany;
    JsonWriter json;
    json.begin_object().key("id").text(id_).key("object").text("response");
    json.key("created_at").integer(created_).key("status").text(to_string(status));
    json.key("background").boolean(false).key("error");
    write_error(json, error);
    json.key("incomplete_details");
    if (status == Status::kIncomplete && finish_ == FinishReason::kLength) {
      json.begin_object().key("reason").text("max_output_tokens").end_object();
    } else {
      json.null();
    }
    json.key("instructions").raw(or_else(request_.instructions, "null"));
    json.key("max_output_tokens");
    if (fields.max_tokens) {
      json.integer(*fields.max_tokens);
    } else {
      json.null();
    }
    json.key("model").text(fields.model).key("output").begin_array();
    bool is_end = status == Status::kCompleted || status == Status::kIncomplete;
    write_items(json);
    json.end_array();
    json.key("parallel_tool_calls").boolean(is_parallel);
    json.key("previous_response_id").null();
    json.key("reasoning").begin_object().key("effort");
    json.raw(or_else(request_.reasoning_effort, "null")).key("summary").null().end_object();
    json.key("service_tier").text("default").key("store").boolean(false);
    json.key("temperature").single_number(fields.sampling.temperature);
    json.key("text").begin_object().key("format");
    json.raw(or_else(request_.text_format, R"({"type":"text"})")).end_object();
    json.key("tool_choice").raw(or_else(request_.tool_choice, "\"auto\""));
    json.key("tools").raw(or_else(request_.tools, "[]"));
    json.key("top_p").single_number(fields.sampling.top_p).key("truncation").text("disabled");
    json.key("metadata").raw(or_else(request_.metadata, "{}")).key("usage");
    if (is_end) {
      write_usage(json, *generation);
    } else {
      json.null();
    }
    if (is_end && generation->prefill(0)) {
      json.key("droidspeak").raw(droidspeak_json(*generation->prefill(0)));
    }
    json.end_object();
    return std::move(json).take();
  }

  static void write_error(JsonWriter& json, const ApiError* error) {
    if (error == nullptr) {
      json.null();
      return;
    }
    json.begin_object().key("code").text(error->status == 429 ? "rate_limit_exceeded"
                                                              : "server_error");
    json.key("message").text(error->message).end_object();
  }

  void write_items(JsonWriter& json) const {
    for (const ResponseItem& item : items_) {
      bool is_last = &item == &items_.back();
      write_item(json, item, is_last ? item_status() : ItemStatus::kCompleted);
    }
  }

  // As its text has them, without the tags.
  size_t num_reasoning_tokens() const {
    size_t count = 0;
    for (const ResponseItem& item : items_) {
      if (item.item.kind != ItemKind::kReasoning) continue;
      count += service_.tokenizer().encode(item.item.text, SpecialTokens::kAsText).size();
    }
    return count;
  }

  void write_usage(JsonWriter& json, const Generation& generation) const {
    Usage usage = usage_of(generation, 1);
    json.begin_object().key("input_tokens").integer(usage.prompt_tokens);
    json.key("input_tokens_details").begin_object();
    json.key("cached_tokens").integer(usage.cached_tokens);
    json.key("cache_write_tokens").integer(0).end_object();
    json.key("output_tokens").integer(usage.completion_tokens);
    json.key("output_tokens_details").begin_object();
    json.key("reasoning_tokens").unsigned_integer(num_reasoning_tokens()).end_object();
    json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
    json.end_object();
  }

  Service& service_;
  const ResponsesRequest request_;
  AnswerParser parser_;
  const std::string id_;
  const int64_t created_ = unix_seconds();
  std::vector<ResponseItem> items_;
  bool has_begun_ = false;
  bool is_open_ = false;  // the last item
  FinishReason finish_ = FinishReason::kStop;
  int64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<AnswerFace> make_responses_face(Service& service,
                                                ResponsesRequest request,
                                                AnswerParser parser) {
  return std::make_shared<ResponsesFace>(service, std::move(request), std::move(parser));
}

}  // namespace droidspeak::openai
