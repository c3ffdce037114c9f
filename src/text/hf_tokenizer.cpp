#include <charconv>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_scan.h"
#include "text/hf_prompt_files.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "text/tokenizer_json.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;
using Path = std::filesystem::path;

constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;  // the largest known have 35 MB
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
// Thousands of added tokens have tens of thousands of values; functions over values call
// themselves.
constexpr JsonLimits kConfigLimits{.depth = 64, .values = size_t{1} << 20};

[[noreturn]] void fail(const Path& file, std::string_view field, const std::string& what) {
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}: {}", file.string(), field, what));
}

// A link that leads nowhere is there, too: reading it says what is wrong, where to go on without
// the file would give other tokens.
bool is_there(const Path& file) {
  std::error_code ignored;
  return std::filesystem::symlink_status(file, ignored).type() !=
         std::filesystem::file_type::not_found;
}

// The object in a JSON file; an empty one when there is no such file.
Json read_object(const Path& file) {
  if (!is_there(file)) return Json::object();
  const std::string text = read_file(file, kMaxConfigBytes);
  if (auto excess = find_json_excess(text, kConfigLimits))
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: JSON {}", file.string(), *excess));
  Json value;
  try {
    value = Json::parse(text);
  } catch (const Json::exception& error) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", file.string(), error.what()));
  }
  if (!value.is_object()) fail(file, "the file", "must hold a JSON object");
  return value;
}

bool flag_or(const Path& file, const Json& object, const char* name, bool fallback) {
  auto found = object.find(name);
  if (found == object.end() || found->is_null()) return fallback;
  if (!found->is_boolean()) fail(file, name, "must be true or false");
  return found->get<bool>();
}

// The text of a token written as a string or as an object with `content`; empty for none.
std::string read_token_text(const Path& file, const Json& config, const char* name) {
  auto found = config.find(name);
  if (found == config.end() || found->is_null()) return {};
  const Json& value = *found;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  fail(file, name, "must be a string, or an object with the string 'content'");
}

int32_t parse_id(const Path& file, const std::string& text) {
  int32_t id = -1;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 ||
      id >= kMaxVocabularySize) {
    fail(file, "added_tokens_decoder", fmt::format("'{}' is not a token id", text));
  }
  return id;
}

// Tokens that the config knows and tokenizer.json does not.
void read_added_tokens_decoder(const Path& file, const Json& config, BpeParts& parts) {
  auto decoder = config.find("added_tokens_decoder");
  if (decoder == config.end() || decoder->is_null()) return;
  if (!decoder->is_object()) fail(file, "added_tokens_decoder", "must be an object");
  std::unordered_set<std::string_view> known;
  for (const AddedToken& token : parts.added_tokens) known.insert(token.content);
  std::vector<AddedToken> added;
  for (const auto& [key, entry] : decoder->items()) {
    AddedToken token;
    token.id = parse_id(file, key);
    if (!entry.is_object()) fail(file, "added_tokens_decoder." + key, "must be an object");
    token.content = read_token_text(file, Json{{"token", entry}}, "token");
    token.is_special = flag_or(file, entry, "special", false);
    token.strips_left = flag_or(file, entry, "lstrip", false);
    token.strips_right = flag_or(file, entry, "rstrip", false);
    token.is_single_word = flag_or(file, entry, "single_word", false);
    token.is_normalized = flag_or(file, entry, "normalized", !token.is_special);
    if (!known.contains(token.content)) added.push_back(std::move(token));
  }
  put_added_tokens(parts, std::move(added), fmt::format("{}: added_tokens_decoder", file.string()));
}

// A string, or a list of named templates of which "default" is taken.
std::string read_chat_template(const Path& folder, const Path& config_file, const Json& config) {
  Path jinja = folder / "chat_template.jinja";
  if (is_there(jinja)) return read_file(jinja, kMaxConfigBytes);
  auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) fail(config_file, "chat_template", "must be a string or a list");
  for (const Json& entry : *found) {
    bool is_named = entry.is_object() && entry.contains("name") && entry.contains("template") &&
                    entry["name"].is_string() && entry["template"].is_string();
    if (!is_named)
      fail(config_file, "chat_template", "its entries must have 'name' and 'template'");
    if (entry["name"] == "default") return entry["template"].get<std::string>();
  }
  fail(config_file, "chat_template", "none of its entries is named 'default'");
}

// One id or a list of them; empty: none are named.
std::vector<int32_t> read_end_ids(const Path& file) {
  Json config = read_object(file);
  auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return {};
  std::vector<int32_t> end_ids;
  Json ids = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : ids) {
    if (!id.is_number_integer() || id < 0 || id >= kMaxVocabularySize) {
      fail(file, "eos_token_id", fmt::format("{} is not a token id", id.dump()));
    }
    end_ids.push_back(id.get<int32_t>());
  }
  return end_ids;
}

// Steps of other tokenizers: here every text is encoded as it is.
void refuse_other_steps(const Path& file, const Json& config) {
  for (const char* name : {"do_lower_case", "split_special_tokens"}) {
    if (flag_or(file, config, name, false))
      fail(file, name, "is true, which is not supported; it must be false");
  }
}

struct Loaded {
  Path file;
  BpeParts parts;
  std::string bos_text;  // as far as the model file says
  std::string eos_text;
  std::string prefix;  // what tokenizer.json puts before a text; empty: nothing
  std::string suffix;  // and behind it
  bool has_bos = false;
};

Loaded read_model(const Path& folder) {
  Path json_file = folder / "tokenizer.json";
  Path model_file = folder / "tokenizer.model";
  Loaded loaded;
  if (is_there(json_file)) {
    TokenizerJson json =
        parse_tokenizer_json(read_file(json_file, kMaxTokenizerBytes), json_file.string());
    loaded.parts = std::move(json.parts);
    loaded.file = json_file;
    loaded.has_bos = json.around.prefix.has_value();
    loaded.prefix = json.around.prefix.value_or("");
    loaded.suffix = json.around.suffix.value_or("");
    loaded.bos_text = loaded.prefix;
  } else if (is_there(model_file)) {
    SentencePieceModel model =
        parse_sentencepiece_model(read_file(model_file, kMaxTokenizerBytes), model_file.string());
    auto text_of = [&](int32_t id) {
      return id < 0 ? std::string() : model.parts.tokens[static_cast<size_t>(id)].text;
    };
    loaded.file = model_file;
    loaded.bos_text = text_of(model.bos_id);
    loaded.eos_text = text_of(model.eos_id);
    loaded.has_bos = model.bos_id >= 0;
    loaded.parts = std::move(model.parts);
  } else {
    throw Failure(
        ErrorCode::kNotFound,
        fmt::format("{}: has neither tokenizer.json nor tokenizer.model", folder.string()));
  }
  return loaded;
}

int32_t find_token(const Path& file,
                   const Tokenizer& tokenizer,
                   const char* field,
                   const std::string& text) {
  if (text.empty()) return -1;
  int32_t id = tokenizer.find(text);
  if (id < 0) fail(file, field, fmt::format("'{}' is not a token", text));
  return id;
}

// In tokenizer_config.json, where null says that there is none, else where older writers put it.
std::pair<std::string, Path> read_special_token(const Path& folder,
                                                const Json& config,
                                                const char* name) {
  const Path file = folder / "tokenizer_config.json";
  if (config.contains(name)) return {read_token_text(file, config, name), file};
  const Path map = folder / "special_tokens_map.json";
  return {read_token_text(map, read_object(map), name), map};
}

std::optional<bool> read_flag(const Path& file, const Json& config, const char* name) {
  auto found = config.find(name);
  if (found == config.end() || found->is_null()) return std::nullopt;
  return flag_or(file, config, name, false);
}

HfPromptFiles read_prompt_files(const Path& folder, const Json& config) {
  const Path file = folder / "tokenizer_config.json";
  HfPromptFiles files;
  std::tie(files.bos_text, files.bos_file) = read_special_token(folder, config, "bos_token");
  std::tie(files.eos_text, files.eos_file) = read_special_token(folder, config, "eos_token");
  files.adds_bos = read_flag(file, config, "add_bos_token");
  files.adds_eos = read_flag(file, config, "add_eos_token");
  files.chat_template = read_chat_template(folder, file, config);
  files.end_ids = read_end_ids(folder / "generation_config.json");
  if (files.end_ids.empty()) files.end_ids = read_end_ids(folder / "config.json");
  return files;
}

// Prompts begin with what tokenizer.json puts there, where nothing else is said: that must be BOS.
void check_prefix(const Path& folder, const Loaded& loaded, const Tokenizer& made) {
  if (loaded.prefix.empty() || loaded.prefix == made.bos_text) return;
  fail(folder / "tokenizer.json", "post_processor",
       fmt::format("puts '{}' before a text, but the BOS of tokenizer_config.json is '{}'",
                   loaded.prefix, made.bos_text));
}

// As the configuration says, else as tokenizer.json does.
int32_t end_of_prompt(const Path& folder,
                      const Loaded& loaded,
                      const HfPromptFiles& files,
                      const Tokenizer& made) {
  if (!files.adds_eos)
    return find_token(folder / "tokenizer.json", made, "post_processor", loaded.suffix);
  if (*files.adds_eos && made.eos_id < 0)
    fail(folder / "tokenizer_config.json", "add_eos_token", "is true, but there is no EOS token");
  return *files.adds_eos ? made.eos_id : -1;
}

}  // namespace

HfPromptFiles read_hf_prompt_files(const std::filesystem::path& folder) {
  return read_prompt_files(folder, read_object(folder / "tokenizer_config.json"));
}

bool has_hf_tokenizer(const std::filesystem::path& folder) {
  return is_there(folder / "tokenizer.json") || is_there(folder / "tokenizer.model");
}

std::unique_ptr<Tokenizer> load_hf_tokenizer(const std::filesystem::path& folder) {
  Loaded loaded = read_model(folder);
  Path config_file = folder / "tokenizer_config.json";
  Json config = read_object(config_file);
  refuse_other_steps(config_file, config);
  read_added_tokens_decoder(config_file, config, loaded.parts);
  HfPromptFiles files = read_prompt_files(folder, config);
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(loaded.parts));
  const bool has_bos = !files.bos_text.empty();
  const bool has_eos = !files.eos_text.empty();
  tokenizer->bos_text = has_bos ? files.bos_text : loaded.bos_text;
  tokenizer->eos_text = has_eos ? files.eos_text : loaded.eos_text;
  tokenizer->bos_id = find_token(has_bos ? files.bos_file : loaded.file, *tokenizer, "bos_token",
                                 tokenizer->bos_text);
  tokenizer->eos_id = find_token(has_eos ? files.eos_file : loaded.file, *tokenizer, "eos_token",
                                 tokenizer->eos_text);
  if (!files.adds_bos) check_prefix(folder, loaded, *tokenizer);
  tokenizer->bos_for_prompts = files.adds_bos.value_or(loaded.has_bos) && tokenizer->bos_id >= 0;
  tokenizer->end_of_prompt_id = end_of_prompt(folder, loaded, files, *tokenizer);
  tokenizer->chat_template = std::move(files.chat_template);
  add_end_of_turn_tokens(*tokenizer);
  for (int32_t id : files.end_ids) add_end_of_turn_token(*tokenizer, id);
  return tokenizer;
}

}  // namespace droidspeak
