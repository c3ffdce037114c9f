// The look of answers to OpenAI's two completion calls, which differ in how a choice looks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/json_writer.h"

namespace droidspeak {

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

std::shared_ptr<AnswerFace> make_completion_face(std::string id,
                                                 const openai::GenerationFields& fields,
                                                 std::unique_ptr<AnswerFormat> format);

const char* to_string(FinishReason reason);

inline constexpr float kLowestLogprob = -9999;  // OpenAI's "never"; JSON has no infinity

}  // namespace droidspeak
