#include "server/answer.h"

#include <chrono>
#include <cmath>

namespace droidspeak {

namespace {

// How soon a client that went away is noticed while nothing happens.
constexpr std::chrono::milliseconds kCheckInterval{50};

int64_t unix_seconds() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};

Usage usage_of(const Generation& generation, int32_t num_choices) {
  Usage usage;
  usage.completion_tokens = generation.completion_tokens();
  for (int32_t i = 0; i < static_cast<int32_t>(generation.num_choices()); i += num_choices) {
    usage.prompt_tokens += static_cast<int64_t>(generation.request(i).prompt->size());
    if (const auto& prefill = generation.prefill(i)) usage.cached_tokens += prefill->cached_tokens;
  }
  return usage;
}

void note_result(RequestNotes& notes, const Answer& answer) {
  Usage usage = usage_of(*answer.generation, answer.fields.num_choices);
  auto add = [&](const char* name, std::string value) {
    notes.fields.emplace_back(name, std::move(value));
  };
  JsonWriter model;
  model.text(answer.model);
  add("model", std::move(model).take());
  add("prompt_tokens", std::to_string(usage.prompt_tokens));
  add("cached_tokens", std::to_string(usage.cached_tokens));
  add("completion_tokens", std::to_string(usage.completion_tokens));
  if (const auto& prefill = answer.generation->prefill(0))
    add("droidspeak", droidspeak_json(*prefill));
}

void begin_answer(JsonWriter& json, const Answer& answer, const char* object, int64_t created) {
  json.begin_object();
  json.key("id").text(answer.id);
  json.key("object").text(object);
  json.key("created").integer(created);
  json.key("model").text(answer.model);
}

// Engine errors that remain after our own checks are about the sharing that was asked for.
HttpResponse refused(const Error& error, const openai::GenerationFields& fields) {
  ApiError api_error = to_api_error(error);
  if (error.code == ErrorCode::kInvalidArgument) {
    bool is_explicit = fields.sharing.mode == SharingRequest::Mode::kExplicit;
    if (is_explicit) api_error.param = "sharing";
    api_error.code = "invalid_value";
  }
  if (error.code == ErrorCode::kNotFound) {
    api_error.param = "model";
    api_error.code = "model_not_found";
  }
  return error_response(api_error);
}

HttpResponse answer_whole(const HttpRequest& request, const Answer& answer) {
  Generation& generation = *answer.generation;
  bool has_logprobs = generation.request(0).num_top_logprobs >= 0;
  std::vector<WholeChoice> choices(generation.num_choices());
  while (!generation.is_done()) {
    std::optional<GenerationEvent> event = generation.next(kCheckInterval);
    if (!request.is_connected()) return error_response(status_error(499, "The client went away."));
    if (!event) continue;
    if (auto* error = std::get_if<Error>(&*event)) return refused(*error, answer.fields);
    auto& piece = std::get<ChoicePiece>(*event);
    WholeChoice& choice = choices[static_cast<size_t>(piece.choice)];
    choice.text += piece.text;
    if (has_logprobs)
      std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(choice.tokens));
    choice.finish = piece.finish.value_or(choice.finish);
  }
  JsonWriter json;
  begin_answer(json, answer, answer.format->whole_object(), unix_seconds());
  json.key("choices").begin_array();
  for (size_t i = 0; i < choices.size(); ++i) {
    answer.format->write_choice(json, generation, static_cast<int32_t>(i), choices[i]);
  }
  json.end_array();
  json.key("usage").raw(usage_json(generation, answer.fields.num_choices));
  if (const auto& prefill = generation.prefill(0))
    json.key("droidspeak").raw(droidspeak_json(*prefill));
  json.end_object();
  HttpResponse response;
  response.body = std::move(json).take();
  return response;
}

// Writes the events of one answer.
class EventStream {
 public:
  EventStream(const Answer& answer, StreamWriter& writer)
      : answer_(answer),
        generation_(*answer.generation),
        writer_(writer),
        created_(unix_seconds()) {}

  // False when the client left before the end.
  bool run() {
    while (!generation_.is_done()) {
      std::optional<GenerationEvent> event = generation_.next(kCheckInterval);
      if (!writer_.is_connected()) return false;
      if (!event) continue;
      if (auto* error = std::get_if<Error>(&*event)) {
        send(error_body(to_api_error(*error)));
        return send("[DONE]");
      }
      if (!send_piece(std::get<ChoicePiece>(*event))) return false;
    }
    if (answer_.fields.includes_usage) send(chunk("", Part::kUsage));
    return send("[DONE]");
  }

 private:
  enum class Part { kChoice, kLastChoice, kUsage };

  bool send(const std::string& data) { return writer_.write("data: " + data + "\n\n"); }

  bool send_piece(const ChoicePiece& piece) {
    std::vector<std::string> choices = answer_.format->chunk_choices(generation_, piece);
    for (size_t i = 0; i < choices.size(); ++i) {
      bool is_last = generation_.is_done() && i + 1 == choices.size();
      if (!send(chunk(choices[i], is_last ? Part::kLastChoice : Part::kChoice))) return false;
    }
    return true;
  }

  std::string chunk(const std::string& choice, Part part) {
    JsonWriter json;
    begin_answer(json, answer_, answer_.format->chunk_object(), created_);
    json.key("choices").begin_array();
    if (part != Part::kUsage) json.raw(choice);
    json.end_array();
    const openai::GenerationFields& fields = answer_.fields;
    if (part == Part::kUsage || fields.has_running_usage) {
      json.key("usage").raw(usage_json(generation_, fields.num_choices));
    } else if (fields.includes_usage) {
      json.key("usage").null();
    }
    bool is_end = part == (fields.includes_usage ? Part::kUsage : Part::kLastChoice);
    const auto& prefill = generation_.prefill(0);
    if (is_end && prefill) json.key("droidspeak").raw(droidspeak_json(*prefill));
    json.end_object();
    return std::move(json).take();
  }

  const Answer& answer_;
  Generation& generation_;
  StreamWriter& writer_;
  const int64_t created_;
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

std::string droidspeak_json(const PrefillReport& report) {
  JsonWriter json;
  json.begin_object();
  json.key("sender").text_or_null(report.sender);
  json.key("plan").text(report.plan);
  json.key("translated").boolean(report.translated);
  json.key("reused_tokens").integer(report.reused_tokens);
  json.key("recomputed_layers").integer(report.recomputed_layers);
  json.key("looked_at_tokens").integer(report.looked_at_tokens);
  json.key("tier").text_or_null(report.tier);
  json.key("ttft_ms").number(std::round(report.ttft_ms * 1000) / 1000);
  json.end_object();
  return std::move(json).take();
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

HttpResponse answer_request(const HttpRequest& request, Answer answer) {
  if (auto started = answer.generation->start(); !started)
    return refused(started.error(), answer.fields);
  auto notes = std::make_shared<RequestNotes>();
  HttpResponse response;
  if (answer.fields.is_streamed) {
    response.content_type = "text/event-stream";
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.stream = [answer = std::move(answer), notes](StreamWriter& writer) {
      notes->client_left = !EventStream(answer, writer).run();
      note_result(*notes, answer);
    };
  } else {
    response = answer_whole(request, answer);
    notes->client_left = response.status == 499;
    note_result(*notes, answer);
  }
  response.notes = notes;
  return response;
}

}  // namespace droidspeak
