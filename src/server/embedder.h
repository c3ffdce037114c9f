// Embeds the texts of one API request: tokenises them, runs them on the engine, waits for all.
#pragma once

#include <string>
#include <vector>

#include "server/json_writer.h"
#include "server/openai/requests.h"
#include "server/service.h"

namespace droidspeak {

struct TextsToEmbed {
  std::string model;  // as the client calls it
  std::vector<openai::Prompt> texts;
  // Where each text stood, for errors: "input", or "documents[3]".
  std::vector<std::string> params;
  bool adds_special_tokens = true;
  int32_t priority = 0;
  size_t kept_bytes = 0;  // of the request, which the answer repeats
};

struct EmbeddedTexts {
  std::vector<std::vector<float>> embeddings;  // [d_model] each, of length 1
  int64_t prompt_tokens = 0;
  std::shared_ptr<RequestNotes> notes;  // for the log
};

// 404 for unknown models, 400 (param "model") for those without pooling, 400 with the text's param
// for one that does not fit. `slot` is given back once the texts are tokens.
ApiResult<EmbeddedTexts> embed_texts(Service& service,
                                     TextsToEmbed wanted,
                                     HttpRequest& request,
                                     WorkSlots::Slot slot);

// The object that `json` has begun, closed behind the `usage` of the texts.
HttpResponse with_usage(JsonWriter json, const EmbeddedTexts& embedded);

}  // namespace droidspeak
