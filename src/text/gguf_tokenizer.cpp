#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "formats/gguf.h"
#include "text/bpe/bpe_tokenizer.h"
#include "text/bpe/families.h"
#include "text/bpe/score_merges.h"
#include "text/tokenizer.h"

namespace droidspeak {
namespace {

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kPreKey = "tokenizer.ggml.pre";
constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
constexpr const char* kTypesKey = "tokenizer.ggml.token_type";
constexpr const char* kScoresKey = "tokenizer.ggml.scores";
constexpr const char* kAddEosKey = "tokenizer.ggml.add_eos_token";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";

[[noreturn]] void fail(const GgufFile& file, std::string_view key, const std::string& what) {
  throw Failure(ErrorCode::kDataCorrupt,
                fmt::format("{}: {}: {}", file.path().string(), key, what));
}

// An array of `size` elements, or null when the key is missing.
template <class T>
const std::vector<T>* find_array(const GgufFile& file, const char* key, size_t size) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<std::vector<T>>(value);
  if (array == nullptr) fail(file, key, "not an array of numbers of the expected type");
  if (array->size() != size) {
    fail(file, key, fmt::format("has {} elements, but there are {} tokens", array->size(), size));
  }
  return array;
}

// Read here, or without meaning for the ids of one text: tokens that other kinds of model need,
// templates beside the usual one, the same vocabulary once more for other programs.
constexpr std::array kTakenKeys = {
    "ggml.model",
    "ggml.pre",
    "ggml.tokens",
    "ggml.token_type",
    "ggml.token_type_count",
    "ggml.added_tokens",  // which have a type, too
    "ggml.scores",
    "ggml.merges",
    "ggml.bos_token_id",
    "ggml.eos_token_id",
    "ggml.eot_token_id",
    "ggml.eom_token_id",
    "ggml.unknown_token_id",
    "ggml.seperator_token_id",
    "ggml.separator_token_id",
    "ggml.padding_token_id",
    "ggml.mask_token_id",
    "ggml.cls_token_id",
    "ggml.fim_pre_token_id",
    "ggml.fim_suf_token_id",
    "ggml.fim_mid_token_id",
    "ggml.fim_pad_token_id",
    "ggml.fim_rep_token_id",
    "ggml.fim_sep_token_id",
    "ggml.prefix_token_id",
    "ggml.suffix_token_id",
    "ggml.middle_token_id",
    "ggml.add_bos_token",
    "ggml.add_eos_token",
    "ggml.add_sep_token",  // between two texts
    "ggml.add_space_prefix",
    "chat_template",
    "chat_templates",
    "huggingface.json",
    "rwkv.world",
};

// Steps that are not done here: false, or an empty list.
constexpr std::array kBlankKeys = {
    "ggml.add_cls_token",
    "ggml.add_mask_token",
    "ggml.add_padding_token",
    "ggml.add_unknown_token",
    "ggml.add_seperator_token",
    "ggml.add_separator_token",
    "ggml.remove_extra_whitespaces",
    "ggml.precompiled_charsmap",
    "ggml.normalizer.lowercase",
    "ggml.normalizer.strip_accents",
    "ggml.suppress_tokens",
};

bool is_blank(const GgufValue& value) {
  if (const auto* truth = std::get_if<bool>(&value)) return !*truth;
  if (const auto* number = std::get_if<uint64_t>(&value)) return *number == 0;
  if (const auto* numbers = std::get_if<std::vector<int64_t>>(&value)) return numbers->empty();
  const auto* texts = std::get_if<std::vector<std::string>>(&value);
  return texts != nullptr && texts->empty();
}

// "ggml.eos_token_ids" beside "ggml.eos_token_id".
bool is_list_of_taken(std::string_view name) {
  if (!name.ends_with("_token_ids")) return false;
  name.remove_suffix(1);
  return std::ranges::any_of(kTakenKeys, [&](const char* known) { return name == known; });
}

void refuse_other_keys(const GgufFile& file) {
  constexpr std::string_view kPrefix = "tokenizer.";
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(kPrefix)) continue;
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    auto is_in = [&](const auto& names) {
      return std::ranges::any_of(names, [&](const char* known) { return name == known; });
    };
    if (is_in(kTakenKeys) || is_list_of_taken(name) || name.starts_with("chat_template.")) continue;
    if (!is_in(kBlankKeys)) fail(file, key, "is not supported");
    if (!is_blank(value)) fail(file, key, "is not supported; it must be false or empty");
  }
}

TokenKind kind_of(const GgufFile& file, int64_t type) {
  if (auto kind = numbered_token_kind(static_cast<uint64_t>(type))) return *kind;
  fail(file, kTypesKey, fmt::format("value {}; token types are 1 to 6", type));
}

// Rows that converters add to reach a round vocabulary size.
bool is_padding(std::string_view text, size_t id) {
  return text.starts_with("[PAD") && text == fmt::format("[PAD{}]", id);
}

std::vector<VocabularyToken> read_tokens(const GgufFile& file) {
  const std::vector<std::string>& texts = file.get_strings(kTokensKey);
  if (texts.empty() || static_cast<int64_t>(texts.size()) > kMaxVocabularySize) {
    fail(file, kTokensKey,
         fmt::format("{} tokens; 1 to {} are supported", texts.size(), kMaxVocabularySize));
  }
  const auto* types = find_array<int64_t>(file, kTypesKey, texts.size());
  std::vector<VocabularyToken> tokens;
  tokens.reserve(texts.size());
  for (size_t id = 0; id < texts.size(); ++id) {
    TokenKind kind = types == nullptr ? TokenKind::kNormal : kind_of(file, (*types)[id]);
    if (is_padding(texts[id], id)) kind = TokenKind::kUnused;
    tokens.push_back({texts[id], kind});
  }
  return tokens;
}

// A token id; -1 when the key is missing.
int32_t read_id(const GgufFile& file, const char* key, size_t num_tokens) {
  if (file.find(key) == nullptr) return -1;
  int64_t id = file.get_int(key);
  // Some writers store "none" as the largest 32-bit number.
  if (id == -1 || id == UINT32_MAX) return -1;
  if (id < 0 || id >= static_cast<int64_t>(num_tokens)) {
    fail(file, key, fmt::format("value {}; there are {} tokens", id, num_tokens));
  }
  return static_cast<int32_t>(id);
}

// A list of token ids; empty when the key is missing.
std::vector<int64_t> read_ids(const GgufFile& file, const char* key, size_t num_tokens) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return {};
  const auto* ids = std::get_if<std::vector<int64_t>>(value);
  if (ids == nullptr) fail(file, key, "not an array of whole numbers");
  for (int64_t id : *ids) {
    if (id < 0 || id >= static_cast<int64_t>(num_tokens))
      fail(file, key, fmt::format("value {}; there are {} tokens", id, num_tokens));
  }
  return *ids;
}

// Phi-3 drops the white space behind its markers; GGUF has no field for it.
bool strips_right(const GgufFile& file, std::string_view text) {
  return file.get_string_or("general.architecture", "") == "phi3" && text != "<unk>" &&
         text != "<s>" && text != "<|endoftext|>";
}

std::vector<AddedToken> added_tokens(const GgufFile& file,
                                     const std::vector<VocabularyToken>& tokens,
                                     int32_t unknown_id) {
  std::vector<AddedToken> added;
  for (size_t i = 0; i < tokens.size(); ++i) {
    auto id = static_cast<int32_t>(i);
    TokenKind kind = tokens[i].kind;
    bool is_special =
        kind == TokenKind::kControl || (kind == TokenKind::kUnknown && id == unknown_id);
    if (!is_special && kind != TokenKind::kUserDefined) continue;
    AddedToken token;
    token.id = id;
    token.content = tokens[i].text;
    token.is_special = is_special;
    token.strips_right = strips_right(file, token.content);
    added.push_back(std::move(token));
  }
  return added;
}

std::vector<Merge> read_merges(const GgufFile& file, const std::vector<VocabularyToken>& tokens) {
  const std::vector<std::string>& lines = file.get_strings(kMergesKey);
  Vocabulary vocabulary(tokens);
  std::vector<Merge> merges;
  merges.reserve(lines.size());
  std::string joined;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    std::string_view line = lines[rank];
    size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) {
      fail(file, kMergesKey,
           fmt::format("merge {} is '{}'; it must be two tokens with a space between", rank, line));
    }
    std::string_view left = line.substr(0, space);
    std::string_view right = line.substr(space + 1);
    joined.assign(left).append(right);
    Merge merge{vocabulary.find(left), vocabulary.find(right), vocabulary.find(joined),
                static_cast<uint32_t>(rank)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      fail(file, kMergesKey,
           fmt::format("merge {} is '{}', but one of its tokens or '{}' is not in {}", rank, line,
                       joined, kTokensKey));
    }
    merges.push_back(merge);
  }
  return merges;
}

PreTokenizerFamily read_family(const GgufFile& file) {
  std::string name = file.get_string_or(kPreKey, "default");
  auto family = family_of_gguf_name(name);
  if (!family) {
    fail(file, kPreKey,
         fmt::format("'{}' is not supported; supported are {}", name, supported_gguf_names()));
  }
  return *family;
}

BpeParts byte_level_parts(const GgufFile& file, PreTokenizerFamily family) {
  BpeParts parts;
  parts.symbols = SymbolKind::kBytes;
  parts.tokens = read_tokens(file);
  parts.merges = read_merges(file, parts.tokens);
  parts.pre_tokenizer = pre_tokenizer_of(family);
  parts.ignores_merges =
      family == PreTokenizerFamily::kLlama3 || family == PreTokenizerFamily::kTekken;
  if (family == PreTokenizerFamily::kQwen2) {
    std::vector<NormalizerStep> steps;
    steps.emplace_back(UnicodeForm::kNfc);
    parts.normalizer = Normalizer(std::move(steps));
  }
  return parts;
}

BpeParts sentencepiece_parts(const GgufFile& file) {
  BpeParts parts;
  parts.symbols = SymbolKind::kCharacters;
  parts.tokens = read_tokens(file);
  const auto* scores = find_array<double>(file, kScoresKey, parts.tokens.size());
  if (scores == nullptr) fail(file, kScoresKey, "missing; a model of kind 'llama' needs it");
  parts.merges = merges_from_scores(parts.tokens, *scores,
                                    fmt::format("{}: {}", file.path().string(), kScoresKey));
  parts.has_byte_fallback = true;
  parts.unknown_id = read_id(file, "tokenizer.ggml.unknown_token_id", parts.tokens.size());
  parts.drops_leading_space = file.get_bool_or("tokenizer.ggml.add_space_prefix", true);
  parts.normalizer = sentencepiece_normalizer(parts.drops_leading_space ? DummyPrefix::kAdded
                                                                        : DummyPrefix::kNone);
  return parts;
}

enum class BosDefault { kAdded, kNotAdded };

void read_special_ids(const GgufFile& file, BosDefault bos_default, Tokenizer& tokenizer) {
  auto size = static_cast<size_t>(tokenizer.vocab_size());
  tokenizer.bos_id = read_id(file, "tokenizer.ggml.bos_token_id", size);
  tokenizer.eos_id = read_id(file, "tokenizer.ggml.eos_token_id", size);
  tokenizer.bos_text = tokenizer.bytes_of(tokenizer.bos_id);
  tokenizer.eos_text = tokenizer.bytes_of(tokenizer.eos_id);
  tokenizer.bos_for_prompts =
      file.get_bool_or("tokenizer.ggml.add_bos_token", bos_default == BosDefault::kAdded) &&
      tokenizer.bos_id >= 0;
  if (file.get_bool_or(kAddEosKey, false)) {
    if (tokenizer.eos_id < 0) fail(file, kAddEosKey, "is true, but there is no EOS token");
    tokenizer.end_of_prompt_id = tokenizer.eos_id;
  }
  add_end_of_turn_tokens(tokenizer);
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    add_end_of_turn_token(tokenizer, read_id(file, key, size));
  }
  for (int64_t id : read_ids(file, "tokenizer.ggml.eos_token_ids", size))
    add_end_of_turn_token(tokenizer, static_cast<int32_t>(id));
}

}  // namespace

std::unique_ptr<Tokenizer> load_gguf_tokenizer(const GgufFile& file) {
  refuse_other_keys(file);
  std::string model = file.get_string(kModelKey);
  BpeParts parts;
  BosDefault bos_default = BosDefault::kAdded;
  if (model == "gpt2") {
    PreTokenizerFamily family = read_family(file);
    parts = byte_level_parts(file, family);
    if (family != PreTokenizerFamily::kLlama3) bos_default = BosDefault::kNotAdded;
  } else if (model == "llama") {
    parts = sentencepiece_parts(file);
  } else {
    fail(file, kModelKey,
         fmt::format("'{}' is not supported; supported are gpt2 and llama", model));
  }
  int32_t unknown_id = read_id(file, "tokenizer.ggml.unknown_token_id", parts.tokens.size());
  parts.added_tokens = added_tokens(file, parts.tokens, unknown_id);
  check_added_tokens(parts.added_tokens, fmt::format("{}: {}", file.path().string(), kTypesKey));
  auto tokenizer = std::make_unique<BpeTokenizer>(std::move(parts));
  read_special_ids(file, bos_default, *tokenizer);
  tokenizer->chat_template = file.get_string_or("tokenizer.chat_template", "");
  return tokenizer;
}

}  // namespace droidspeak
