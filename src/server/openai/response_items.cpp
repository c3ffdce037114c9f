#include "server/openai/response_items.h"

#include "base/check.h"

namespace droidspeak::openai {

namespace {

const char* to_string(ItemStatus status) {
  switch (status) {
    case ItemStatus::kInProgress:
      return "in_progress";
    case ItemStatus::kCompleted:
      return "completed";
    case ItemStatus::kIncomplete:
      return "incomplete";
  }
  panic("unknown ItemStatus");
}

// One that has just begun has no content yet.
void write_content(JsonWriter& json, const AnswerItem& item, ItemStatus status) {
  json.key("content").begin_array();
  if (status != ItemStatus::kInProgress) write_part(json, item.kind, item.text);
  json.end_array();
}

}  // namespace

void write_part(JsonWriter& json, AnswerItem::Kind kind, const std::string& text) {
  json.begin_object();
  if (kind == AnswerItem::Kind::kReasoning) {
    json.key("type").text("reasoning_text").key("text").text(text);
  } else {
    json.key("type").text("output_text").key("text").text(text);
    json.key("annotations").begin_array().end_array();
    json.key("logprobs").begin_array().end_array();
  }
  json.end_object();
}

void write_item(JsonWriter& json, const ResponseItem& item, ItemStatus status) {
  json.begin_object().key("id").text(item.id);
  switch (item.item.kind) {
    case AnswerItem::Kind::kText:
      json.key("type").text("message").key("status").text(to_string(status));
      json.key("role").text("assistant");
      write_content(json, item.item, status);
      break;
    case AnswerItem::Kind::kReasoning:
      json.key("type").text("reasoning").key("status").text(to_string(status));
      json.key("summary").begin_array().end_array();
      write_content(json, item.item, status);
      break;
    case AnswerItem::Kind::kCall:
      json.key("type").text("function_call").key("status").text(to_string(status));
      json.key("call_id").text(item.call_id).key("name").text(item.item.name);
      json.key("arguments").text(item.item.text);
      break;
  }
  json.end_object();
}

}  // namespace droidspeak::openai
