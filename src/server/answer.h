// Brings a generation to the client, whole or as server-sent events. The two completion calls
// differ only in how a choice looks, which is what AnswerFormat says.
#pragma once

#include <memory>
#include <string>
#include <vector>

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
};

class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual const char* whole_object() const = 0;  // "chat.completion"
  virtual const char* chunk_object() const = 0;
  virtual void write_choice(JsonWriter& json,
                            const Generation& generation,
                            int32_t index,
                            const WholeChoice& choice) = 0;

  // What follows the choices of a whole answer.
  virtual void write_rest(JsonWriter& /*json*/, const Generation& /*generation*/) {}

  // The `choices` element of each chunk that `piece` makes, as JSON.
  virtual std::vector<std::string> chunk_choices(const Generation& generation,
                                                 const ChoicePiece& piece) = 0;
};

struct Answer {
  std::string id;
  std::string model;  // as the client named it
  openai::GenerationFields fields;
  std::shared_ptr<Generation> generation;  // shared with the stream function, which may be copied
  std::shared_ptr<AnswerFormat> format;
};

// Starts the generation; the whole answer, or one that will be streamed.
HttpResponse answer_request(const HttpRequest& request, Answer answer);

const char* to_string(FinishReason reason);

inline constexpr float kLowestLogprob = -9999;  // OpenAI's "never"; JSON has no infinity

// {"sender", "plan", "translated", "reused_tokens", "recomputed_layers", "looked_at_tokens",
// "ttft_ms"}
std::string droidspeak_json(const PrefillReport& report);
// `num_choices` is n: prompts count once however many choices they have.
std::string usage_json(const Generation& generation, int32_t num_choices);

}  // namespace droidspeak
