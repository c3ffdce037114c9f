#include "server/entity_tag.h"

#include "base/hash.h"

namespace droidspeak {

std::string entity_tag(std::string_view content) {
  constexpr size_t kDigits = 32;
  return '"' + sha256(std::as_bytes(std::span(content))).hex().substr(0, kDigits) + '"';
}

// Tags of ours have neither commas nor quotes inside, so that one is found between commas.
bool names_tag(std::string_view if_none_match, std::string_view tag) {
  constexpr std::string_view kBlank = " \t";
  while (!if_none_match.empty()) {
    size_t comma = if_none_match.find(',');
    std::string_view item = if_none_match.substr(0, comma);
    if_none_match.remove_prefix(comma == std::string_view::npos ? if_none_match.size() : comma + 1);
    size_t begin = item.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) continue;
    item = item.substr(begin, item.find_last_not_of(kBlank) + 1 - begin);
    if (item == "*") return true;
    if (item.starts_with("W/")) item.remove_prefix(2);
    if (item == tag) return true;
  }
  return false;
}

HttpResponse answer_tagged(const HttpRequest& request, const TaggedText& text) {
  HttpResponse response;
  response.headers.emplace_back("Cache-Control", "private, no-cache");
  response.headers.emplace_back("ETag", text.tag);
  if (names_tag(request.header("if-none-match"), text.tag)) {
    response.status = 304;
  } else {
    response.content_type = text.content_type;
    response.lasting_body = text.body;
  }
  return response;
}

}  // namespace droidspeak
