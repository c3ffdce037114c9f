#include "server/answer.h"

#include <chrono>
#include <cmath>

#include "base/error.h"
#include "server/json_writer.h"

namespace droidspeak {

namespace {

// How soon a client that went away is noticed while nothing happens.
constexpr std::chrono::milliseconds kCheckInterval{50};
// Values of logprobs in an answer that is made in one piece: some 100 bytes each.
constexpr size_t kMaxKeptLogprobs = 4096;

void note_result(RequestNotes& notes, const Answer& answer) {
  Usage usage = usage_of(*answer.generation, answer.fields.num_choices);
  auto add = [&](const char* name, std::string value) {
    notes.fields.emplace_back(name, std::move(value));
  };
  JsonWriter model;
  model.text(answer.fields.model);
  add("model", std::move(model).take());
  add("prompt_tokens", std::to_string(usage.prompt_tokens));
  add("cached_tokens", std::to_string(usage.cached_tokens));
  add("completion_tokens", std::to_string(usage.completion_tokens));
  if (const auto& prefill = answer.generation->prefill(0))
    add("droidspeak", droidspeak_json(*prefill));
}

enum class Stage { kStarting, kAnswering };

// Engine errors that remain after our own checks are about the sharing that was asked for, or, once
// it answers, about a format that takes too long to follow.
ApiError api_error_of(const Error& error, const Answer& answer, Stage stage) {
  ApiError api_error = to_api_error(error);
  if (error.code == ErrorCode::kInvalidArgument) {
    bool has_format = answer.generation->request(0).grammar != nullptr;
    bool is_explicit = answer.fields.sharing.mode == SharingRequest::Mode::kExplicit;
    if (has_format && stage == Stage::kAnswering) {
      api_error.param = answer.fields.output_param;
    } else if (is_explicit) {
      api_error.param = "sharing";
    }
    api_error.code = "invalid_value";
  }
  if (error.code == ErrorCode::kNotFound) {
    api_error.param = "model";
    api_error.code = "model_not_found";
  }
  return api_error;
}

size_t num_logprob_values(const Generation& generation, const std::vector<WholeChoice>& choices) {
  size_t values = 0;
  auto add = [&](const std::vector<SampledToken>& tokens) {
    for (const SampledToken& token : tokens) values += 1 + token.top.size();
  };
  for (size_t i = 0; i < choices.size(); ++i) {
    add(choices[i].tokens);
    add(generation.prompt_logprobs(static_cast<int32_t>(i)));
  }
  return values;
}

// False when the client left before the end: the rest is not even made.
bool write_pieces(AnswerFace& face,
                  const Generation& generation,
                  const std::vector<WholeChoice>& choices,
                  StreamWriter& writer) {
  JsonWriter json([&](std::string_view piece) {
    if (!writer.write(piece)) throw Failure(ErrorCode::kCancelled, "the client went away");
  });
  try {
    face.write_whole(json, generation, choices);
    json.end();
  } catch (const Failure& failure) {
    if (failure.code() != ErrorCode::kCancelled) throw;
    return false;
  }
  return true;
}

// As text logprobs take ten times their room: long lists of them are written piece by piece, so
// that clients who ask for much and read slowly do not make us keep it.
HttpResponse whole_response(const Answer& answer,
                            std::vector<WholeChoice> choices,
                            std::shared_ptr<RequestNotes> notes) {
  HttpResponse response;
  if (num_logprob_values(*answer.generation, choices) <= kMaxKeptLogprobs) {
    JsonWriter json;
    answer.face->write_whole(json, *answer.generation, choices);
    response.body = std::move(json).take();
    return response;
  }
  auto kept = std::make_shared<const std::vector<WholeChoice>>(std::move(choices));
  response.stream = [generation = answer.generation, face = answer.face, kept,
                     notes = std::move(notes)](StreamWriter& writer) {
    notes->client_left = !write_pieces(*face, *generation, *kept, writer);
  };
  return response;
}

HttpResponse answer_whole(const HttpRequest& request,
                          const Answer& answer,
                          const std::shared_ptr<RequestNotes>& notes) {
  Generation& generation = *answer.generation;
  bool has_logprobs = generation.request(0).num_top_logprobs >= 0;
  std::vector<WholeChoice> choices(generation.num_choices());
  while (!generation.is_done()) {
    std::optional<GenerationEvent> event = generation.next(kCheckInterval);
    if (!request.is_connected()) {
      return answer.face->refusal(status_error(499, "The client went away."));
    }
    if (!event) continue;
    if (auto* error = std::get_if<Error>(&*event)) {
      return answer.face->refusal(api_error_of(*error, answer, Stage::kAnswering));
    }
    auto& piece = std::get<ChoicePiece>(*event);
    WholeChoice& choice = choices[static_cast<size_t>(piece.choice)];
    choice.text += piece.text;
    if (has_logprobs) {
      std::move(piece.tokens.begin(), piece.tokens.end(), std::back_inserter(choice.tokens));
      choice.offsets.insert(choice.offsets.end(), piece.offsets.begin(), piece.offsets.end());
    }
    choice.finish = piece.finish.value_or(choice.finish);
    choice.stop = std::move(piece.stop);
  }
  return whole_response(answer, std::move(choices), notes);
}

// False when the client left before the end.
bool write_events(const Answer& answer, StreamWriter& writer) {
  Generation& generation = *answer.generation;
  while (!generation.is_done()) {
    std::optional<GenerationEvent> event = generation.next(kCheckInterval);
    if (!writer.is_connected()) return false;
    if (!event) continue;
    if (auto* error = std::get_if<Error>(&*event)) {
      return writer.write(
          answer.face->error_events(api_error_of(*error, answer, Stage::kAnswering)));
    }
    std::string events = answer.face->piece_events(generation, std::get<ChoicePiece>(*event));
    if (!events.empty() && !writer.write(events)) return false;
  }
  return writer.write(answer.face->end_events(generation));
}

}  // namespace

int64_t unix_seconds() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

Usage usage_of(const Generation& generation, int32_t num_choices) {
  Usage usage;
  usage.completion_tokens = generation.completion_tokens();
  for (int32_t i = 0; i < static_cast<int32_t>(generation.num_choices()); i += num_choices) {
    usage.prompt_tokens += static_cast<int64_t>(generation.request(i).prompt->size());
    if (const auto& prefill = generation.prefill(i)) usage.cached_tokens += prefill->cached_tokens;
  }
  return usage;
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
  json.key("fallback");
  if (report.fallback.empty()) {
    json.null();
  } else {
    json.begin_object();
    json.key("reason").text(report.fallback_reason);
    json.key("after_tokens").integer(report.fallback_after_tokens);
    json.end_object();
  }
  json.end_object();
  return std::move(json).take();
}

HttpResponse answer_request(const HttpRequest& request, Answer answer) {
  if (auto started = answer.generation->start(); !started)
    return answer.face->refusal(api_error_of(started.error(), answer, Stage::kStarting));
  auto notes = std::make_shared<RequestNotes>();
  HttpResponse response;
  if (answer.fields.is_streamed) {
    response.content_type = "text/event-stream";
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.stream = [answer = std::move(answer), notes](StreamWriter& writer) {
      notes->client_left = !write_events(answer, writer);
      note_result(*notes, answer);
    };
  } else {
    response = answer_whole(request, answer, notes);
    notes->client_left = response.status == 499;
    note_result(*notes, answer);
  }
  response.notes = notes;
  return response;
}

}  // namespace droidspeak
