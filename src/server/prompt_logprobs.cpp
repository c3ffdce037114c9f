#include "server/prompt_logprobs.h"

#include <algorithm>
#include <string>

#include "server/completion_face.h"

namespace droidspeak {

void write_prompt_logprobs(JsonWriter& json,
                           const Service& service,
                           const std::vector<SampledToken>& tokens,
                           int32_t alternatives) {
  auto write = [&](TokenLogprob token, int32_t rank) {
    json.key(std::to_string(token.token)).begin_object();
    json.key("logprob").single_number(std::max(token.logprob, kLowestLogprob));
    json.key("rank").integer(rank);
    json.key("decoded_token").text(service.token_bytes(token.token));
    json.end_object();
  };
  json.begin_array().null();
  for (const SampledToken& token : tokens) {
    json.begin_object();
    bool is_among = false;
    auto count = std::min(token.top.size(), static_cast<size_t>(alternatives));
    for (size_t i = 0; i < count; ++i) {
      write(token.top[i], static_cast<int32_t>(i) + 1);
      is_among = is_among || token.top[i].token == token.token;
    }
    if (!is_among) write({token.token, token.logprob}, token.rank);
    json.end_object();
  }
  json.end_array();
}

}  // namespace droidspeak
