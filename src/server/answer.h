// Brings a generation to the client, whole or as server-sent events. The calls differ only in how
// their answers look, which is what AnswerFace says.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/json_writer.h"
#include "server/openai/requests.h"

namespace droidspeak {

// A choice from beginning to end.
struct WholeChoice {
  std::string text;
  std::vector<SampledToken> tokens;  // only when their logprobs are wanted
  FinishReason finish = FinishReason::kStop;
  std::string stop;                  // the stop string that ended it
  std::vector<size_t> offsets = {};  // of the tokens, in characters of the text
};

// One answer's look. The events are bytes of a stream, each with its empty line.
class AnswerFace {
 public:
  virtual ~AnswerFace() = default;
  virtual void write_whole(JsonWriter& json,
                           const Generation& generation,
                           const std::vector<WholeChoice>& choices) = 0;
  virtual std::string piece_events(const Generation& generation, const ChoicePiece& piece) = 0;
  virtual std::string end_events(const Generation& generation) = 0;
  // What ends a stream that had begun.
  virtual std::string error_events(const ApiError& error) = 0;
  virtual HttpResponse refusal(const ApiError& error) const = 0;
};

struct Answer {
  openai::GenerationFields fields;
  std::shared_ptr<Generation> generation;  // shared with the stream function, which may be copied
  std::shared_ptr<AnswerFace> face;
};

// Starts the generation; the whole answer, or one that will be streamed.
HttpResponse answer_request(const HttpRequest& request, Answer answer);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

// `num_choices` is n: prompts count once however many choices they have.
Usage usage_of(const Generation& generation, int32_t num_choices);

// {"sender", "plan", "translated", "reused_tokens", "recomputed_layers", "looked_at_tokens",
// "tier", "ttft_ms", "fallback"}
std::string droidspeak_json(const PrefillReport& report);

int64_t unix_seconds();

}  // namespace droidspeak
