// Answers that stay the same: a client that still has one asks with its tag and gets 304.
#pragma once

#include <string>
#include <string_view>

#include "server/http.h"

namespace droidspeak {

// Outlives the answers.
struct TaggedText {
  std::string_view content_type;
  std::string_view body;
  std::string_view tag;  // with its quotes
};

// "\"9f86d081...\"", from the content alone.
std::string entity_tag(std::string_view content);

// Whether the header If-None-Match names the tag, weak or not, or "*".
bool names_tag(std::string_view if_none_match, std::string_view tag);

// 200 with the text, or 304 to a client that has it. Clients may keep it but ask every time.
HttpResponse answer_tagged(const HttpRequest& request, const TaggedText& text);

}  // namespace droidspeak
