#include "server/openai/generation_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "server/openai/limits.h"
#include "sharing/reuse_plan.h"

namespace droidspeak::openai {

namespace {

constexpr int64_t kMaxInteger = std::numeric_limits<int32_t>::max();

void read_sampling(Fields& fields, GenerationFields& generation) {
  SamplingOptions& sampling = generation.sampling;
  using LowEnd = NumberRange::LowEnd;
  auto single = [](std::optional<double> value, double otherwise) {
    return static_cast<float>(value.value_or(otherwise));
  };
  sampling.temperature = single(fields.number("temperature", {0, 2}), 1);
  sampling.top_p = single(fields.number("top_p", {0, 1, LowEnd::kExcluded}), 1);
  sampling.top_k = static_cast<int32_t>(
      std::max<int64_t>(0, fields.integer("top_k", {-1, kMaxInteger}).value_or(0)));
  sampling.min_p = single(fields.number("min_p", {0, 1}), 0);
  sampling.repetition_penalty =
      single(fields.number("repetition_penalty", {0, 2, LowEnd::kExcluded}), 1);
  sampling.presence_penalty = single(fields.number("presence_penalty", {-2, 2}), 0);
  sampling.frequency_penalty = single(fields.number("frequency_penalty", {-2, 2}), 0);
  if (auto seed = fields.integer("seed")) generation.seed = static_cast<uint64_t>(*seed);
}

void read_logit_bias(Fields& fields, SamplingOptions& sampling) {
  std::optional<JsonValue> bias = fields.find("logit_bias");
  if (!bias) return;
  if (!bias->is(JsonKind::kObject))
    return fields.wrong_type("logit_bias", "an object", bias->kind());
  if (!fields.check_count("logit_bias", bias->size(), kMaxBiases)) return;
  std::map<int32_t, float> biases;
  for (const auto& [key, value] : bias->members()) {
    int32_t token = -1;
    auto [end, status] = std::from_chars(key.data(), key.data() + key.size(), token);
    bool is_id = status == std::errc() && end == key.data() + key.size() && token >= 0;
    if (!is_id || key != std::to_string(token)) {
      return fields.invalid("logit_bias",
                            fmt::format("key '{}' is not a token id; expected a whole number "
                                        "without zeros before it",
                                        abbreviated(key)));
    }
    bool is_number = value.is(JsonKind::kInteger) || value.is(JsonKind::kDecimal);
    if (!is_number || value.number() < -100 || value.number() > 100) {
      return fields.invalid(
          "logit_bias",
          fmt::format("the value for token {} is not a number from -100 to 100", token));
    }
    biases[token] = static_cast<float>(value.number());
  }
  sampling.logit_bias = std::move(biases);
}

void read_stop(Fields& fields, GenerationFields& generation) {
  auto ids = fields.array("stop_token_ids");
  if (ids && fields.check_count("stop_token_ids", ids->size(), kMaxStopTokens)) {
    generation.stop_token_ids = read_token_ids(fields, "stop_token_ids", *ids);
  }
  std::optional<JsonValue> stop = fields.find("stop");
  if (!stop) return;
  std::vector<std::string> stops;
  if (stop->is(JsonKind::kString)) {
    stops = {stop->string()};
  } else if (!stop->is(JsonKind::kArray)) {
    return fields.wrong_type("stop", "a string or an array of strings", stop->kind());
  } else if (stop->size() > kMaxStops) {
    return fields.fail(bad_field(
        fmt::format(
            "Invalid 'stop': array too long. Expected an array with maximum length {}, but got an "
            "array with length {} instead.",
            kMaxStops, stop->size()),
        "stop", "array_above_max_length"));
  } else {
    for (size_t i = 0; i < stop->size(); ++i) {
      JsonValue item = stop->at(i);
      if (!item.is(JsonKind::kString)) {
        return fields.wrong_type("stop", "a string or an array of strings", item.kind());
      }
      stops.push_back(item.string());
    }
  }
  for (const std::string& text : stops) {
    if (!fields.check_length("stop", text, kMaxStopBytes)) return;
  }
  if (std::ranges::count(stops, "") > 0) {
    fields.invalid("stop", "an empty string would stop at once; expected non-empty strings");
  }
  generation.stop = std::move(stops);
}

void read_streaming(Fields& fields, GenerationFields& generation) {
  generation.is_streamed = fields.boolean("stream").value_or(false);
  std::optional<Fields> options = fields.object("stream_options");
  if (!options) return;
  if (!generation.is_streamed) {
    return fields.invalid("stream_options", "only allowed when 'stream' is true");
  }
  generation.includes_usage = options->boolean("include_usage").value_or(false);
  generation.has_running_usage = options->boolean("continuous_usage_stats").value_or(false);
  reject_unsupported(*options, {"include_obfuscation"});
}

void read_prompt_logprobs(Fields& fields, GenerationFields& generation) {
  auto alternatives = fields.integer("prompt_logprobs", {0, 20});
  if (!alternatives) return;
  if (generation.is_streamed)
    return fields.invalid("prompt_logprobs", "only allowed when 'stream' is not true");
  generation.prompt_logprobs = static_cast<int32_t>(*alternatives);
}

// How many layers there are is checked by the engine.
bool is_plan(std::string_view text) {
  try {
    parse_plan_request(text, std::numeric_limits<int32_t>::max());
    return true;
  } catch (const Failure&) {
    return false;
  }
}

void read_sharing(Fields& fields, GenerationFields& generation) {
  generation.cache_salt = fields.string("cache_salt", kMaxSaltBytes).value_or("");
  generation.priority =
      static_cast<int32_t>(fields.integer("priority", {-kMaxInteger, kMaxInteger}).value_or(0));
  generation.ttft_slo_ms = fields.number("ttft_slo_ms", {0, 1e12, NumberRange::LowEnd::kExcluded});
  generation.min_quality = fields.number("min_quality", {0, 1});
  std::optional<JsonValue> sharing = fields.find("sharing");
  if (!sharing) return;
  SharingRequest& wanted = generation.sharing;
  if (sharing->is(JsonKind::kString)) {
    if (sharing->string() == "off") {
      wanted.mode = SharingRequest::Mode::kOff;
    } else if (sharing->string() != "auto") {
      fields.invalid("sharing",
                     fmt::format("'{}' is not \"auto\", \"off\" or an object with sender and plan",
                                 abbreviated(sharing->string())));
    }
    return;
  }
  if (!sharing->is(JsonKind::kObject)) {
    return fields.wrong_type("sharing", "\"auto\", \"off\" or an object", sharing->kind());
  }
  Fields members = *fields.object("sharing");
  for (const auto& [key, value] : sharing->members()) {
    bool is_known = key == "sender" || key == "plan" || value.is(JsonKind::kNull);
    if (!is_known) members.reject(abbreviated(key), "is not known; expected 'sender' and 'plan'");
  }
  wanted.mode = SharingRequest::Mode::kExplicit;
  wanted.sender = members.required_string("sender", kMaxModelNameBytes);
  wanted.plan = members.string("plan", kMaxPlanBytes).value_or("auto");
  if (!is_plan(wanted.plan)) {
    members.invalid(
        "plan", fmt::format("'{}' is not a plan; expected auto, full, reuse or three layers a,b,c, "
                            "the last two also with +S% from 0.1 to 100",
                            abbreviated(wanted.plan)));
  }
}

// What clients say for their own records: checked, then ignored.
void read_labels(Fields& fields) {
  fields.string("user", kMaxUserBytes);
  fields.string("safety_identifier", kMaxUserBytes);
  fields.string("prompt_cache_key", kMaxUserBytes);
  accept_only(fields, "prompt_cache_retention", {"in-memory", "in_memory"});
  if (!fields.object("metadata")) return;
  JsonValue metadata = *fields.find("metadata");
  if (!fields.check_count("metadata", metadata.size(), kMaxMetadataEntries)) return;
  for (const auto& [key, value] : metadata.members()) {
    if (!fields.check_length("metadata", key, kMaxMetadataKeyBytes)) return;
    if (value.is(JsonKind::kNull)) continue;
    if (!value.is(JsonKind::kString)) {
      return fields.wrong_type("metadata." + key, "a string", value.kind());
    }
    fields.check_length("metadata." + key, value.string(), kMaxMetadataValueBytes);
  }
}

}  // namespace

ApiResult<JsonDocument> parse_object(std::string_view body) {
  ApiResult<JsonDocument> document = JsonDocument::parse(body);
  if (document && !document->root().is(JsonKind::kObject)) {
    return status_error(400,
                        fmt::format("The JSON body of your request must be an object, but is {}.",
                                    describe(document->root().kind())));
  }
  return document;
}

std::vector<int32_t> read_token_ids(Fields& fields, const std::string& name, JsonValue array) {
  std::vector<int32_t> tokens;
  tokens.reserve(array.size());
  for (size_t i = 0; i < array.size(); ++i) {
    JsonValue item = array.at(i);
    if (!item.is(JsonKind::kInteger)) {
      fields.wrong_type(name, "an array of token ids", item.kind());
      return {};
    }
    if (item.integer() < 0 || item.integer() > kMaxInteger) {
      fields.invalid(name, fmt::format("{} is not a token id", item.integer()));
      return {};
    }
    tokens.push_back(static_cast<int32_t>(item.integer()));
  }
  return tokens;
}

void read_generation_fields(Fields& fields, GenerationFields& generation) {
  generation.model = fields.required_string("model", kMaxModelNameBytes);
  generation.num_choices = static_cast<int32_t>(fields.integer("n", {1, 128}).value_or(1));
  if (auto best_of = fields.integer("best_of"); best_of && *best_of != generation.num_choices) {
    fields.reject("best_of", "other than n is not supported");
  }
  read_sampling(fields, generation);
  read_logit_bias(fields, generation.sampling);
  read_stop(fields, generation);
  generation.min_tokens =
      static_cast<int32_t>(fields.integer("min_tokens", {0, kMaxInteger}).value_or(0));
  read_streaming(fields, generation);
  read_prompt_logprobs(fields, generation);
  read_sharing(fields, generation);
  generation.ignores_end_tokens = fields.boolean("ignore_eos").value_or(false);
  generation.skips_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  read_labels(fields);
  reject_unsupported_features(fields);
}

}  // namespace droidspeak::openai
