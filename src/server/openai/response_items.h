// The items of a response's `output`.
#pragma once

#include <string>

#include "server/chat/answer_parser.h"
#include "server/json_writer.h"

namespace droidspeak::openai {

struct ResponseItem {
  AnswerItem item;
  std::string id;
  std::string call_id;  // of a call
};

enum class ItemStatus { kInProgress, kCompleted, kIncomplete };

void write_item(JsonWriter& json, const ResponseItem& item, ItemStatus status);
// The one part of a message's or a reasoning's content.
void write_part(JsonWriter& json, AnswerItem::Kind kind, const std::string& text);

}  // namespace droidspeak::openai
