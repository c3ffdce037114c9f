#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/utf8.h"
#include "server/completion_face.h"
#include "server/engine_requests.h"
#include "server/handlers.h"
#include "server/openai/limits.h"
#include "server/prompt_logprobs.h"
#include "server/prompt_offsets.h"
#include "server/read_body.h"

namespace droidspeak {

namespace {

struct CompletionLook {
  bool has_logprobs = false;
  bool is_echoed = false;
  int32_t num_choices = 1;  // per prompt
  std::optional<int32_t> prompt_logprobs;
  std::vector<std::string> prompt_texts;  // with echo, one per prompt
};

// As the JSON writer shows it.
std::string replace_invalid_utf8(std::string_view bytes) {
  std::string text;
  for (size_t position = 0; position < bytes.size();) {
    uint32_t length = utf8_char_at(bytes, position).bytes;
    text += length == 0 ? std::string_view("\xEF\xBF\xBD") : bytes.substr(position, length);
    position += std::max(length, uint32_t{1});
  }
  return text;
}

// A list of tokens, the first without logprob when it begins a prompt.
struct ScoredTokens {
  std::vector<SampledToken> tokens;
  std::vector<size_t> offsets;  // in characters of the choice's text
  bool has_unscored_first = false;
};

class CompletionFormat final : public AnswerFormat {
 public:
  CompletionFormat(const Service& service, CompletionLook look, size_t num_choices)
      : service_(service),
        look_(std::move(look)),
        answer_begins_(num_choices, 0),
        has_begun_(num_choices, false) {}

  const char* whole_object() const override { return "text_completion"; }

  const char* chunk_object() const override { return "text_completion"; }

  void write_choice(JsonWriter& json,
                    const Generation& generation,
                    int32_t index,
                    const WholeChoice& choice) override {
    write(json, generation, {index, choice.text, choice.tokens, choice.finish, {}, choice.offsets});
  }

  std::vector<std::string> chunk_choices(const Generation& generation,
                                         const ChoicePiece& piece) override {
    JsonWriter json;
    write(json, generation, piece);
    return {std::move(json).take()};
  }

 private:
  void write(JsonWriter& json, const Generation& generation, const ChoicePiece& piece) {
    size_t index = static_cast<size_t>(piece.choice);
    bool shows_prompt = look_.is_echoed && !has_begun_[index];
    has_begun_[index] = true;
    ScoredTokens scored;
    if (shows_prompt && look_.has_logprobs) {
      scored = prompt_tokens(generation, piece.choice);
      answer_begins_[index] = count_characters(prompt_text(index));
    }
    scored.tokens.insert(scored.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    for (size_t offset : piece.offsets) scored.offsets.push_back(answer_begins_[index] + offset);
    json.begin_object().key("index").integer(piece.choice);
    json.key("text").text(shows_prompt ? prompt_text(index) + piece.text : piece.text);
    write_logprobs(json, scored);
    if (look_.prompt_logprobs) {
      json.key("prompt_logprobs");
      write_prompt_logprobs(json, service_, generation.prompt_logprobs(piece.choice),
                            *look_.prompt_logprobs);
    }
    json.key("finish_reason");
    if (piece.finish) {
      json.text(to_string(*piece.finish));
    } else {
      json.null();
    }
    json.end_object();
  }

  const std::string& prompt_text(size_t choice) const {
    return look_.prompt_texts[choice / static_cast<size_t>(look_.num_choices)];
  }

  ScoredTokens prompt_tokens(const Generation& generation, int32_t choice) const {
    ScoredTokens scored;
    scored.has_unscored_first = true;
    scored.tokens.push_back({generation.request(choice).prompt->front(), 0, {}});
    const std::vector<SampledToken>& rest = generation.prompt_logprobs(choice);
    scored.tokens.insert(scored.tokens.end(), rest.begin(), rest.end());
    PromptOffsets offsets(prompt_text(static_cast<size_t>(choice)));
    for (const SampledToken& token : scored.tokens)
      scored.offsets.push_back(offsets.push(service_.token_bytes(token.token)));
    return scored;
  }

  void write_logprobs(JsonWriter& json, const ScoredTokens& scored) const {
    json.key("logprobs");
    if (!look_.has_logprobs) {
      json.null();
      return;
    }
    auto is_unscored = [&](const SampledToken& token) {
      return scored.has_unscored_first && &token == &scored.tokens.front();
    };
    json.begin_object().key("tokens").begin_array();
    for (const SampledToken& token : scored.tokens) json.text(service_.token_bytes(token.token));
    json.end_array().key("token_logprobs").begin_array();
    for (const SampledToken& token : scored.tokens) {
      if (is_unscored(token)) {
        json.null();
      } else {
        json.single_number(std::max(token.logprob, kLowestLogprob));
      }
    }
    json.end_array().key("top_logprobs").begin_array();
    for (const SampledToken& token : scored.tokens) {
      if (is_unscored(token)) {
        json.null();
      } else {
        write_alternatives(json, token);
      }
    }
    json.end_array().key("text_offset").begin_array();
    for (size_t offset : scored.offsets) json.unsigned_integer(offset);
    json.end_array().end_object();
  }

  // Text -> logprob, best first; of tokens that look alike the best one counts. The token itself is
  // there.
  void write_alternatives(JsonWriter& json, const SampledToken& token) const {
    std::set<std::string> seen;
    auto add = [&](const TokenLogprob& candidate) {
      auto [text, is_new] =
          seen.insert(replace_invalid_utf8(service_.token_bytes(candidate.token)));
      if (!is_new) return;
      json.key(*text).single_number(std::max(candidate.logprob, kLowestLogprob));
    };
    json.begin_object();
    for (const TokenLogprob& candidate : token.top) add(candidate);
    add({token.token, token.logprob});
    json.end_object();
  }

  const Service& service_;
  const CompletionLook look_;
  std::vector<size_t> answer_begins_;  // behind the prompts' characters, where they are shown
  std::vector<bool> has_begun_;
};

ApiResult<std::vector<int32_t>> encode(const Service& service,
                                       const openai::CompletionRequest& request,
                                       const openai::Prompt& prompt) {
  if (const auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) return *tokens;
  const std::string& text = std::get<std::string>(prompt);
  return request.adds_special_tokens ? service.encode_prompt(text, "prompt")
                                     : service.encode(text, "prompt");
}

std::string text_of(const Service& service, const openai::Prompt& prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return *text;
  std::string text;
  for (int32_t token : std::get<std::vector<int32_t>>(prompt)) text += service.token_bytes(token);
  return text;
}

// Tokens of every prompt, equal ones shared; together they are bounded (with echo, as often as they
// are repeated), and found to be too many before the rest is looked at.
ApiResult<std::vector<Shared<std::vector<int32_t>>>> encode_all(
    const Service& service, openai::CompletionRequest& request) {
  using Tokens = Shared<std::vector<int32_t>>;
  auto is_less = [](const Tokens& a, const Tokens& b) { return *a < *b; };
  std::set<Tokens, decltype(is_less)> different;
  std::vector<Tokens> all;
  size_t total = 0;
  for (openai::Prompt& prompt : request.prompts) {
    ApiResult<std::vector<int32_t>> tokens = encode(service, request, prompt);
    if (!tokens) return tokens.error();
    int32_t num_times = request.is_echoed ? request.generation.num_choices : 1;
    total += tokens->size() * static_cast<size_t>(num_times);
    if (total > openai::kMaxPromptTokens) {
      return bad_field(fmt::format("Invalid 'prompt': more than {} tokens in all prompts together; "
                                   "send fewer at a time.",
                                   openai::kMaxPromptTokens),
                       "prompt", "array_above_max_length");
    }
    if (!request.is_echoed) prompt = std::string();
    all.push_back(*different.insert(std::move(*tokens)).first);
  }
  return all;
}

// Of every prompt; counted as often as the answer says it.
ApiResult<std::vector<std::string>> echoed_texts(const Service& service,
                                                 openai::CompletionRequest& request) {
  std::vector<std::string> texts;
  size_t& kept_bytes = request.generation.kept_bytes;
  for (const openai::Prompt& prompt : request.prompts) {
    texts.push_back(text_of(service, prompt));
    kept_bytes += texts.back().size() * static_cast<size_t>(request.generation.num_choices);
    if (kept_bytes <= openai::kMaxRepeatedBytes) continue;
    return bad_field(
        fmt::format("Invalid 'echo': the answer would repeat more than {} bytes of all "
                    "prompts; send fewer at a time.",
                    openai::kMaxRepeatedBytes),
        "echo", "array_above_max_length");
  }
  return texts;
}

ApiResult<Answer> read_completion_request(Service& service, HttpRequest& request) {
  auto body = read_body(service, request, openai::parse_completion_request);
  if (!body) return body.error();
  openai::CompletionRequest& completion = body->wanted;
  openai::GenerationFields& fields = completion.generation;
  std::optional<Service::Model> model = service.find_model(fields.model);
  if (!model) return model_not_found(fields.model);

  CompletionLook look;
  look.has_logprobs = completion.num_top_logprobs >= 0;
  look.is_echoed = completion.is_echoed;
  look.num_choices = fields.num_choices;
  look.prompt_logprobs = fields.prompt_logprobs;
  EngineRequestOptions options;
  options.variant = model->variant;
  options.tenant = request.caller.tenant;
  options.num_top_logprobs = completion.num_top_logprobs;
  options.wants_prompt_logprobs = look.is_echoed && look.has_logprobs;
  auto prompts = encode_all(service, completion);
  if (!prompts) return prompts.error();
  options.prompts = std::move(*prompts);
  if (look.is_echoed) {
    auto texts = echoed_texts(service, completion);
    if (!texts) return texts.error();
    look.prompt_texts = std::move(*texts);
  }
  auto requests = make_engine_requests(service, fields, std::move(options));
  if (!requests) return requests.error();
  if (auto error = reserve_memory(service, *requests, fields, request)) return *error;
  { WorkSlots::Slot done = std::move(body->slot); }
  if (auto error = add_grammar(service, fields, *requests, request)) return *error;
  size_t num_choices = requests->size() * static_cast<size_t>(fields.num_choices);
  auto format = std::make_unique<CompletionFormat>(service, std::move(look), num_choices);
  return Answer{fields, make_generation(service, fields, std::move(*requests)),
                make_completion_face(service.new_id("cmpl"), fields, std::move(format))};
}

}  // namespace

HttpResponse completions(Service& service, HttpRequest& request) {
  ApiResult<Answer> answer = read_completion_request(service, request);
  if (!answer) return error_response(answer.error());
  return answer_request(request, std::move(*answer));
}

}  // namespace droidspeak
