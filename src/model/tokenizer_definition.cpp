#include "model/tokenizer_definition.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/json_scan.h"
#include "formats/gguf.h"
#include "formats/gguf_pre_tokenizer.h"
#include "formats/sentencepiece.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;

// As the tokenizer itself is read.
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr JsonLimits kTokenizerLimits{.depth = 64, .values = size_t{1} << 23};
constexpr size_t kMaxTokenizerConfigBytes = size_t{16} << 20;
constexpr JsonLimits kTokenizerConfigLimits{.depth = 64, .values = size_t{1} << 20};
constexpr size_t kMaxPieces = size_t{1} << 24;

// As GGUF files and SentencePiece models number what a token is.
constexpr int64_t kUnknown = 2;
constexpr int64_t kControl = 3;
constexpr int64_t kUserDefined = 4;
constexpr int64_t kUnused = 5;

std::string shown(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

bool flag_or(const Json& object, const char* name, bool fallback) {
  const Json value = object.value(name, Json());
  return value.is_null() ? fallback : value.get<bool>();
}

// Rows that converters to GGUF add where the model has more embeddings than tokens.
bool is_filler(const std::string& text, int64_t id) {
  return text.starts_with("[PAD") && text == fmt::format("[PAD{}]", id);
}

void add_gguf_tokens(const GgufFile& file, TokenizerDefinition& definition) {
  constexpr const char* kUnknownKey = "tokenizer.ggml.unknown_token_id";
  const std::vector<std::string>& tokens = file.get_strings("tokenizer.ggml.tokens");
  const GgufValue* value = file.find("tokenizer.ggml.token_type");
  const auto* types = value == nullptr ? nullptr : std::get_if<std::vector<int64_t>>(value);
  const int64_t unknown = file.find(kUnknownKey) == nullptr ? -1 : file.get_int(kUnknownKey);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    const auto id = static_cast<int64_t>(i);
    const int64_t type = types != nullptr && i < types->size() ? (*types)[i] : 0;
    if (type == kUnused || is_filler(token, id)) {
      definition.unused.emplace(token, id);
      continue;
    }
    definition.ids.emplace(token, id);
    const bool is_unknown = type == kUnknown && id == unknown;
    if (is_unknown || type == kControl) definition.special.insert(id);
    if (type == kUserDefined) definition.added[token] = "user-defined";
  }
}

// Older files write "left right", newer ones ["left", "right"].
std::string merge_text(const Json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  return merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
}

// What a step does where its field is missing.
struct StepDefault {
  std::string_view type;
  const char* field;
  bool value;
};

constexpr StepDefault kStepDefaults[] = {{"ByteLevel", "add_prefix_space", true},
                                         {"ByteLevel", "use_regex", true},
                                         {"Digits", "individual_digits", false},
                                         {"Metaspace", "split", true},
                                         {"Split", "invert", false}};

// The same step as the newest writers spell it, without what changes no ids.
Json in_newest_spelling(Json step) {
  if (!step.is_object()) return step;
  const std::string type = step.value("type", "");
  for (const StepDefault& missing : kStepDefaults) {
    if (missing.type == type && step[missing.field].is_null()) step[missing.field] = missing.value;
  }
  if (type == "ByteLevel") step.erase("trim_offsets");
  if (type == "Metaspace") {
    if (step["prepend_scheme"].is_null())
      step["prepend_scheme"] = flag_or(step, "add_prefix_space", true) ? "always" : "never";
    step.erase("add_prefix_space");
    step.erase("str_rep");
  }
  return step;
}

// Of a normalizer or pre-tokenizer, one behind the other.
void append_steps(const Json& step, Json& steps) {
  if (step.is_null()) return;
  const bool is_sequence = step.is_object() && step.value("type", "") == "Sequence";
  for (const char* list : {"normalizers", "pretokenizers"}) {
    if (!is_sequence || !step.contains(list) || !step[list].is_array()) continue;
    for (const Json& part : step[list]) append_steps(part, steps);
    return;
  }
  steps.push_back(in_newest_spelling(step));
}

Json steps_of(const Json& file, const char* field) {
  Json steps = Json::array();
  append_steps(file.value(field, Json()), steps);
  return steps;
}

bool has_bytes(const Json& steps) {
  return std::ranges::any_of(steps, [](const Json& step) {
    return step.is_object() && step.value("type", "") == "ByteLevel";
  });
}

// Writers spell "none" as null, as nothing, as an empty text or as zero.
void add_model_rules(const Json& model, const Json& steps, TokenizerDefinition& definition) {
  auto add = [&](const char* field, const Json& fallback) {
    const Json value = model.value(field, Json());
    const bool is_blank = value.is_null() || value == Json("") || value == Json(0);
    definition.rules.emplace_back(fmt::format("model.{}", field),
                                  shown(is_blank ? fallback : value));
  };
  add("type", "BPE");
  for (const char* field : {"byte_fallback", "ignore_merges"}) add(field, false);
  for (const char* field : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    add(field, Json());
  if (has_bytes(steps)) return;  // nothing is unknown
  add("fuse_unk", false);
  add("unk_token", Json());
}

bool has_normalizer(const TokenizerDefinition& definition) {
  return definition.rules.front().second != "[]";
}

// How a text is searched for it. Normalized texts are others only where there is a normalizer.
Json search_rule(const Json& token, const TokenizerDefinition& definition) {
  Json rule;
  for (const char* flag : {"lstrip", "rstrip", "single_word"})
    rule[flag] = flag_or(token, flag, false);
  if (has_normalizer(definition))
    rule["normalized"] = flag_or(token, "normalized", !flag_or(token, "special", false));
  return rule;
}

// Throws what is no whole number.
int64_t id_of(const Json& value) {
  return value.get_ref<const Json::number_integer_t&>();
}

void add_token(const Json& token, TokenizerDefinition& definition) {
  const auto content = token.at("content").get<std::string>();
  const int64_t id = id_of(token.at("id"));
  definition.ids.insert_or_assign(content, id);
  if (flag_or(token, "special", false)) definition.special.insert(id);
  definition.added[content] = shown(search_rule(token, definition));
}

Json parse_json(const std::string& text,
                const std::filesystem::path& path,
                const JsonLimits& limits) {
  if (auto excess = find_json_excess(text, limits))
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: JSON {}", path.string(), *excess));
  return Json::parse(text);
}

// Tokens that tokenizer_config.json knows and the file beside it does not. Beside a tokenizer.json
// they are no part of the vocabulary: converters to GGUF may have left them out.
void add_configured_tokens(const std::filesystem::path& folder,
                           const ReadTokenizerFile& read,
                           TokenizerDefinition& definition) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  const auto text = read(path.filename(), kMaxTokenizerConfigBytes);
  if (!text) return;
  try {
    const Json config = parse_json(*text, path, kTokenizerConfigLimits);
    const Json tokens = config.value("added_tokens_decoder", Json());
    for (const auto& [id, token] : tokens.items()) {
      Json rule = search_rule(token, definition);
      rule["id"] = id;
      rule["special"] = flag_or(token, "special", false);
      const auto content = token.at("content").get<std::string>();
      const bool is_new = definition.added.emplace(content, shown(rule)).second;
      if (is_new && definition.format == TokenizerFormat::kSentencePiece)
        definition.ids.emplace(content, std::strtoll(id.c_str(), nullptr, 10));
    }
  } catch (const Json::exception& exception) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: not a tokenizer_config.json with tokens by id: {}",
                              path.string(), exception.what()));
  }
}

TokenizerDefinition from_sentencepiece(const std::string& text, const std::filesystem::path& path) {
  const SentencePieceFile file = parse_sentencepiece_file(text, path.string(), kMaxPieces);
  TokenizerDefinition definition;
  definition.format = TokenizerFormat::kSentencePiece;
  int64_t id = 0;
  for (const SentencePiece& piece : file.pieces) {
    const auto type = static_cast<int64_t>(piece.type);
    if (type == kUnknown || type == kControl) definition.special.insert(id);
    if (type >= kUnknown && type <= kUserDefined)
      definition.added[piece.text] = fmt::format("of type {}", type);
    definition.ids.emplace(piece.text, id++);
    definition.scores.push_back(piece.score);
  }
  Sha256 map;
  map.add_field('c', file.character_map);
  auto add = [&](const char* field, const Json& value) {
    definition.rules.emplace_back(field, shown(value));
  };
  add("trainer_spec.model_type", file.model_type);
  add("trainer_spec.byte_fallback", file.has_byte_fallback);
  add("normalizer_spec.precompiled_charsmap", map.finish().hex());
  add("normalizer_spec.add_dummy_prefix", file.adds_dummy_prefix);
  add("normalizer_spec.remove_extra_whitespaces", file.removes_extra_spaces);
  return definition;
}

TokenizerDefinition from_json(const std::string& text, const std::filesystem::path& path) {
  TokenizerDefinition definition;
  try {
    const Json json = parse_json(text, path, kTokenizerLimits);
    const Json& model = json.at("model");
    const Json pre_tokenizer = steps_of(json, "pre_tokenizer");
    definition.rules = {{"normalizer", shown(steps_of(json, "normalizer"))},
                        {"pre_tokenizer", shown(pre_tokenizer)}};
    add_model_rules(model, pre_tokenizer, definition);
    for (const auto& [token, id] : model.at("vocab").items())
      definition.ids.emplace(token, id_of(id));
    for (const Json& token : json.value("added_tokens", Json::array()))
      add_token(token, definition);
    for (const Json& merge : model.value("merges", Json::array()))
      definition.merges.push_back(merge_text(merge));
  } catch (const Json::exception& exception) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: not a tokenizer.json with a vocabulary by token: {}",
                              path.string(), exception.what()));
  }
  return definition;
}

}  // namespace

std::optional<TokenizerDefinition> read_tokenizer_definition(const std::filesystem::path& folder,
                                                             const ReadTokenizerFile& read) {
  std::optional<TokenizerDefinition> definition;
  if (const auto json = read("tokenizer.json", kMaxTokenizerBytes)) {
    definition = from_json(*json, folder / "tokenizer.json");
  } else if (const auto pieces = read("tokenizer.model", kMaxTokenizerBytes)) {
    definition = from_sentencepiece(*pieces, folder / "tokenizer.model");
  }
  if (definition) add_configured_tokens(folder, read, *definition);
  return definition;
}

TokenizerDefinition read_gguf_tokenizer_definition(const std::filesystem::path& path) {
  constexpr const char* kSpaceKey = "tokenizer.ggml.add_space_prefix";
  constexpr const char* kPreKey = "tokenizer.ggml.pre";
  GgufFile file(path);
  TokenizerDefinition definition;
  definition.format = TokenizerFormat::kGguf;
  add_gguf_tokens(file, definition);
  if (file.find("tokenizer.ggml.merges") != nullptr)
    definition.merges = file.get_strings("tokenizer.ggml.merges");
  const std::string model = file.get_string_or("tokenizer.ggml.model", "");
  auto add = [&](const char* key, const Json& value) {
    definition.rules.emplace_back(key, shown(value));
  };
  add("tokenizer.ggml.model", model);
  if (model == "llama") {
    add(kSpaceKey, file.get_bool_or(kSpaceKey, true));
    const GgufValue* scores = file.find("tokenizer.ggml.scores");
    const auto* numbers = scores == nullptr ? nullptr : std::get_if<std::vector<double>>(scores);
    if (numbers != nullptr) definition.scores = *numbers;
  } else {
    add(kPreKey, common_gguf_name(file.get_string_or(kPreKey, "default")));
  }
  return definition;
}

}  // namespace droidspeak
