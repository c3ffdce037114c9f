#include "server/completion_face.h"

#include <utility>

namespace droidspeak {

namespace {

std::string event(const std::string& data) {
  return "data: " + data + "\n\n";
}

std::string usage_json(const Generation& generation, int32_t num_choices) {
  Usage usage = usage_of(generation, num_choices);
  JsonWriter json;
  json.begin_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object();
  json.key("cached_tokens").integer(usage.cached_tokens);
  json.end_object().end_object();
  return std::move(json).take();
}

class CompletionFace final : public AnswerFace {
 public:
  CompletionFace(std::string id,
                 const openai::GenerationFields& fields,
                 std::unique_ptr<AnswerFormat> format)
      : id_(std::move(id)),
        model_(fields.model),
        num_choices_(fields.num_choices),
        includes_usage_(fields.includes_usage),
        has_running_usage_(fields.has_running_usage),
        format_(std::move(format)) {}

  void write_whole(JsonWriter& json,
                   const Generation& generation,
                   const std::vector<WholeChoice>& choices) override {
    begin(json, format_->whole_object());
    json.key("choices").begin_array();
    for (size_t i = 0; i < choices.size(); ++i) {
      format_->write_choice(json, generation, static_cast<int32_t>(i), choices[i]);
    }
    json.end_array();
    format_->write_rest(json, generation);
    json.key("usage").raw(usage_json(generation, num_choices_));
    if (const auto& prefill = generation.prefill(0))
      json.key("droidspeak").raw(droidspeak_json(*prefill));
    json.end_object();
  }

  std::string piece_events(const Generation& generation, const ChoicePiece& piece) override {
    std::string events;
    std::vector<std::string> choices = format_->chunk_choices(generation, piece);
    for (size_t i = 0; i < choices.size(); ++i) {
      bool is_last = generation.is_done() && i + 1 == choices.size();
      events += event(chunk(generation, choices[i], is_last ? Part::kLastChoice : Part::kChoice));
    }
    return events;
  }

  std::string end_events(const Generation& generation) override {
    std::string events;
    if (includes_usage_) events += event(chunk(generation, "", Part::kUsage));
    return events + event("[DONE]");
  }

  std::string error_events(const ApiError& error) override {
    return event(error_body(error)) + event("[DONE]");
  }

  HttpResponse refusal(const ApiError& error) const override { return error_response(error); }

 private:
  enum class Part { kChoice, kLastChoice, kUsage };

  void begin(JsonWriter& json, const char* object) const {
    json.begin_object();
    json.key("id").text(id_);
    json.key("object").text(object);
    json.key("created").integer(created_);
    json.key("model").text(model_);
  }

  std::string chunk(const Generation& generation, const std::string& choice, Part part) const {
    JsonWriter json;
    begin(json, format_->chunk_object());
    json.key("choices").begin_array();
    if (part != Part::kUsage) json.raw(choice);
    json.end_array();
    if (part == Part::kUsage || has_running_usage_) {
      json.key("usage").raw(usage_json(generation, num_choices_));
    } else if (includes_usage_) {
      json.key("usage").null();
    }
    bool is_end = part == (includes_usage_ ? Part::kUsage : Part::kLastChoice);
    const auto& prefill = generation.prefill(0);
    if (is_end && prefill) json.key("droidspeak").raw(droidspeak_json(*prefill));
    json.end_object();
    return std::move(json).take();
  }

  const std::string id_;
  const std::string model_;
  const int32_t num_choices_;
  const bool includes_usage_;
  const bool has_running_usage_;
  const std::unique_ptr<AnswerFormat> format_;
  const int64_t created_ = unix_seconds();
};

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
  }
  panic("unknown FinishReason");
}

std::shared_ptr<AnswerFace> make_completion_face(std::string id,
                                                 const openai::GenerationFields& fields,
                                                 std::unique_ptr<AnswerFormat> format) {
  return std::make_shared<CompletionFace>(std::move(id), fields, std::move(format));
}

}  // namespace droidspeak
