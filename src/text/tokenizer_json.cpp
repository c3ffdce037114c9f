#include "text/tokenizer_json.h"

#include <algorithm>
#include <cctype>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_scan.h"
#include "text/bpe/families.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;

// Ids may have holes, but not so many that a few bytes of file ask for gigabytes.
constexpr size_t kMaxHoles = 65536;
constexpr int kMaxDepth = 8;      // of Sequence steps within each other
constexpr size_t kMaxSteps = 64;  // that each text goes through
// Files of 256,000 tokens have two million values; functions over values call themselves.
constexpr JsonLimits kLimits{.depth = 64, .values = size_t{1} << 23};

// A value and where it stands, for errors that name the field.
class Field {
 public:
  Field(const Json& value, std::string path) : value_(value), path_(std::move(path)) {}

  const Json& value() const { return value_; }

  bool is_null() const { return value_.is_null(); }

  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", path_, what));
  }

  // A member; null when it is missing.
  Field operator[](const char* name) const {
    static const Json null;
    if (!value_.is_object()) fail("must be an object");
    auto found = value_.find(name);
    return {found == value_.end() ? null : *found, fmt::format("{}.{}", path_, name)};
  }

  std::vector<Field> elements() const {
    if (!value_.is_array()) fail("must be an array");
    std::vector<Field> result;
    for (size_t i = 0; i < value_.size(); ++i) {
      result.emplace_back(value_[i], fmt::format("{}[{}]", path_, i));
    }
    return result;
  }

  const std::string& text() const {
    if (!value_.is_string()) fail("must be a string");
    return value_.get_ref<const std::string&>();
  }

  bool flag_or(bool fallback) const {
    if (value_.is_null()) return fallback;
    if (!value_.is_boolean()) fail("must be true or false");
    return value_.get<bool>();
  }

  int64_t id() const {
    if (!value_.is_number_integer() || value_ < 0 || value_ >= kMaxVocabularySize) {
      fail(fmt::format("is {}; token ids are 0 to {}", shown(), kMaxVocabularySize - 1));
    }
    return value_.get<int64_t>();
  }

  std::string shown() const {
    std::string text = value_.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 80 ? text : text.substr(0, 80) + "...";
  }

 private:
  const Json& value_;
  std::string path_;
};

std::string escaped(std::string_view text) {
  std::string pattern;
  for (char c : text) {
    bool is_plain = static_cast<uint8_t>(c) >= 0x80 || std::isalnum(static_cast<uint8_t>(c)) != 0;
    if (!is_plain) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Regex compile(const Field& field, std::string_view pattern) {
  try {
    return Regex(pattern);
  } catch (const Failure& failure) {
    field.fail(failure.what());
  }
}

// {"Regex": "..."} or {"String": "..."}
Regex read_pattern(const Field& field) {
  if (!field["String"].is_null()) return compile(field, escaped(field["String"].text()));
  return compile(field, field["Regex"].text());
}

void read_normalizer(const Field& field, int depth, std::vector<NormalizerStep>& steps) {
  if (field.is_null()) return;
  if (depth > kMaxDepth) field.fail(fmt::format("more than {} sequences deep", kMaxDepth));
  if (steps.size() >= kMaxSteps) field.fail(fmt::format("more than {} steps", kMaxSteps));
  const std::string& type = field["type"].text();
  if (type == "Sequence") {
    for (const Field& step : field["normalizers"].elements())
      read_normalizer(step, depth + 1, steps);
  } else if (type == "NFC") {
    steps.emplace_back(UnicodeForm::kNfc);
  } else if (type == "NFD") {
    steps.emplace_back(UnicodeForm::kNfd);
  } else if (type == "NFKC") {
    steps.emplace_back(UnicodeForm::kNfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(UnicodeForm::kNfkd);
  } else if (type == "Prepend") {
    steps.emplace_back(PrependText{field["prepend"].text()});
  } else if (type == "Replace") {
    Field pattern = field["pattern"];
    const std::string& content = field["content"].text();
    if (!pattern["String"].is_null()) {
      steps.emplace_back(ReplaceText{pattern["String"].text(), content});
    } else {
      steps.emplace_back(ReplacePattern{read_pattern(pattern), content});
    }
  } else {
    field["type"].fail(fmt::format(
        "'{}' is not supported; supported are Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace",
        type));
  }
}

SplitBehavior read_behavior(const Field& field) {
  const std::string& name = field.text();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.fail(fmt::format("'{}' is not a split behavior", name));
}

PrependScheme read_scheme(const Field& metaspace) {
  Field field = metaspace["prepend_scheme"];
  if (field.is_null()) {
    bool is_added = metaspace["add_prefix_space"].flag_or(true);
    return is_added ? PrependScheme::kAlways : PrependScheme::kNever;
  }
  if (field.text() == "always") return PrependScheme::kAlways;
  if (field.text() == "first") return PrependScheme::kFirst;
  if (field.text() == "never") return PrependScheme::kNever;
  field.fail(fmt::format("'{}' must be always, first or never", field.text()));
}

void check_space_symbol(const Field& field) {
  if (field.text() != kSpaceSymbol) {
    field.fail(fmt::format("'{}' is not supported; only U+2581 is", field.text()));
  }
}

class PreTokenizerReader {
 public:
  void read(const Field& field, int depth) {
    if (field.is_null()) return;
    if (depth > kMaxDepth) field.fail(fmt::format("more than {} sequences deep", kMaxDepth));
    if (steps.size() >= kMaxSteps) field.fail(fmt::format("more than {} steps", kMaxSteps));
    const std::string& type = field["type"].text();
    if (is_byte_level) field.fail(fmt::format("'{}' after ByteLevel is not supported", type));
    if (type == "Sequence") {
      for (const Field& step : field["pretokenizers"].elements()) read(step, depth + 1);
    } else if (type == "Split") {
      auto target = field["invert"].flag_or(false) ? SplitTarget::kGaps : SplitTarget::kMatches;
      SplitBehavior behavior = read_behavior(field["behavior"]);
      steps.emplace_back(SplitStep{read_pattern(field["pattern"]), behavior, target});
    } else if (type == "Digits") {
      bool is_single = field["individual_digits"].flag_or(false);
      steps.emplace_back(SplitStep{Regex(is_single ? R"(\p{N})" : R"(\p{N}+)")});
    } else if (type == "ByteLevel") {
      if (field["add_prefix_space"].flag_or(true)) steps.emplace_back(PrefixSpaceStep{});
      if (field["use_regex"].flag_or(true)) steps.emplace_back(SplitStep{Regex(kGpt2Pattern)});
      is_byte_level = true;
    } else if (type == "Metaspace") {
      read_metaspace(field);
    } else {
      field["type"].fail(fmt::format(
          "'{}' is not supported; supported are Sequence, Split, Digits, ByteLevel, Metaspace",
          type));
    }
  }

  std::vector<PreTokenizerStep> steps;
  bool is_byte_level = false;

 private:
  void read_metaspace(const Field& field) {
    check_space_symbol(field["replacement"]);
    steps.emplace_back(MetaspaceStep{std::string(kSpaceSymbol), read_scheme(field)});
    if (field["split"].flag_or(true)) {
      steps.emplace_back(SplitStep{Regex(kSpaceSymbol), SplitBehavior::kMergedWithNext});
    }
  }
};

// One space in front, or nothing.
void read_strip(const Field& field, BpeParts& parts) {
  const int64_t start = field["start"].id();
  const int64_t stop = field["stop"].id();
  if (start == 0 && stop == 0) return;
  if (field["content"].text() != " " || start != 1 || stop != 0)
    field.fail(fmt::format("is {}, which is not supported; only one space in front is stripped",
                           field.shown()));
  parts.drops_leading_space = true;
}

void read_decoder(const Field& field, int depth, BpeParts& parts) {
  if (field.is_null()) return;
  if (depth > kMaxDepth) field.fail(fmt::format("more than {} sequences deep", kMaxDepth));
  const std::string& type = field["type"].text();
  if (type == "Sequence") {
    for (const Field& step : field["decoders"].elements()) read_decoder(step, depth + 1, parts);
  } else if (type == "Strip") {
    read_strip(field, parts);
  } else if (type == "Metaspace") {
    check_space_symbol(field["replacement"]);
    parts.drops_leading_space = read_scheme(field) != PrependScheme::kNever;
  } else if (type == "Replace") {
    check_space_symbol(field["pattern"]["String"]);
    if (field["content"].text() != " ")
      field["content"].fail(
          fmt::format("'{}' is not supported; only a space is", field["content"].text()));
  } else if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse") {
    field["type"].fail(
        fmt::format("'{}' is not supported; supported are Sequence, ByteLevel, "
                    "ByteFallback, Fuse, Strip, Replace, Metaspace",
                    type));
  }
}

void read_vocabulary(const Field& vocab, BpeParts& parts) {
  if (!vocab.value().is_object()) vocab.fail("must be an object of tokens and ids");
  size_t max_size = vocab.value().size() * 2 + kMaxHoles;
  for (const auto& [text, value] : vocab.value().items()) {
    Field field(value, fmt::format("model.vocab['{}']", text));
    auto id = static_cast<size_t>(field.id());
    if (id >= max_size) {
      vocab.fail(fmt::format("token '{}' has id {}, but there are only {} tokens", text, id,
                             vocab.value().size()));
    }
    if (id >= parts.tokens.size()) parts.tokens.resize(id + 1);
    VocabularyToken& token = parts.tokens[id];
    if (token.kind != TokenKind::kUnused) {
      vocab.fail(fmt::format("id {} belongs to both '{}' and '{}'", id, token.text, text));
    }
    token = {text, TokenKind::kNormal};
  }
  if (parts.tokens.empty()) vocab.fail("has no tokens");
}

// "a b" or ["a", "b"]
std::pair<std::string_view, std::string_view> read_pair(const Field& merges,
                                                        const Json& value,
                                                        size_t rank) {
  if (value.is_array() && value.size() == 2 && value[0].is_string() && value[1].is_string()) {
    return {value[0].get_ref<const std::string&>(), value[1].get_ref<const std::string&>()};
  }
  if (value.is_string()) {
    std::string_view line = value.get_ref<const std::string&>();
    size_t space = line.find(' ', 1);
    if (space != std::string_view::npos) return {line.substr(0, space), line.substr(space + 1)};
  }
  Field field(value, "");
  merges.fail(fmt::format("merge {} is {}; it must be two tokens", rank, field.shown()));
}

void read_merges(const Field& field, BpeParts& parts) {
  if (!field.value().is_array()) field.fail("must be an array");
  Vocabulary vocabulary(parts.tokens);
  parts.merges.reserve(field.value().size());
  std::string joined;
  for (size_t rank = 0; rank < field.value().size(); ++rank) {
    auto [left, right] = read_pair(field, field.value()[rank], rank);
    joined.assign(left).append(right);
    Merge merge{vocabulary.find(left), vocabulary.find(right), vocabulary.find(joined),
                static_cast<uint32_t>(rank)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      field.fail(
          fmt::format("merge {} is '{}' and '{}', but one of them or '{}' is not in model.vocab",
                      rank, left, right, joined));
    }
    parts.merges.push_back(merge);
  }
}

// Options that change the ids and that no supported family uses.
void refuse(const Field& field) {
  const Json& value = field.value();
  bool is_off = value.is_null() || value == Json("") || value == Json(0);
  if (!is_off)
    field.fail(fmt::format("is {}, which is not supported; it must be null", field.shown()));
}

void read_model(const Field& model, BpeParts& parts) {
  if (!model["type"].is_null() && model["type"].text() != "BPE") {
    model["type"].fail(fmt::format("'{}' is not supported; only BPE is", model["type"].text()));
  }
  refuse(model["dropout"]);
  refuse(model["continuing_subword_prefix"]);
  refuse(model["end_of_word_suffix"]);
  read_vocabulary(model["vocab"], parts);
  read_merges(model["merges"], parts);
  parts.has_byte_fallback = model["byte_fallback"].flag_or(false);
  parts.ignores_merges = model["ignore_merges"].flag_or(false);
  parts.fuses_unknown = model["fuse_unk"].flag_or(false);
}

std::vector<AddedToken> read_added_tokens(const Field& field) {
  std::vector<AddedToken> added;
  if (field.is_null()) return added;
  for (const Field& entry : field.elements()) {
    AddedToken& token = added.emplace_back();
    token.id = static_cast<int32_t>(entry["id"].id());
    token.content = entry["content"].text();
    token.is_special = entry["special"].flag_or(false);
    token.strips_left = entry["lstrip"].flag_or(false);
    token.strips_right = entry["rstrip"].flag_or(false);
    token.is_single_word = entry["single_word"].flag_or(false);
    token.is_normalized = entry["normalized"].flag_or(!token.is_special);
  }
  return added;
}

void read_unknown_token(const Field& field, BpeParts& parts) {
  if (field.is_null()) return;
  const std::string& text = field.text();
  auto found = std::ranges::find_if(parts.tokens, [&](const VocabularyToken& token) {
    return token.kind != TokenKind::kUnused && token.text == text;
  });
  if (found == parts.tokens.end()) field.fail(fmt::format("'{}' is not a token", text));
  parts.unknown_id = static_cast<int32_t>(found - parts.tokens.begin());
}

// Templates have names of their own for tokens, which mostly are the tokens.
std::string token_of_template(const Field& names, const Field& name, const BpeParts& parts) {
  if (names.is_null() || names[name.text().c_str()].is_null()) return name.text();
  const Field list = names[name.text().c_str()]["ids"];
  const std::vector<Field> ids = list.elements();
  if (ids.size() != 1) list.fail(fmt::format("has {} tokens; only one is supported", ids.size()));
  const auto id = static_cast<size_t>(ids.front().id());
  return id < parts.tokens.size() ? parts.tokens[id].text : name.text();
}

// The text with at most one token before it, and one behind.
void read_template(const Field& field, const BpeParts& parts, TokensAround& around) {
  const Field single = field["single"];
  bool has_text = false;
  for (const Field& piece : single.elements()) {
    if (!piece["Sequence"].is_null()) {
      if (has_text) piece.fail("the text stands there twice, which is not supported");
      has_text = true;
      continue;
    }
    const Field name = piece["SpecialToken"]["id"];
    std::optional<std::string>& token = has_text ? around.suffix : around.prefix;
    if (token)
      name.fail(fmt::format("'{}' is a second token {} the text, which is not supported",
                            name.text(), has_text ? "behind" : "before"));
    token = token_of_template(field["special_tokens"], name, parts);
  }
  if (!has_text) single.fail("has no text");
}

void read_post_processor(const Field& field,
                         int depth,
                         const BpeParts& parts,
                         TokensAround& around) {
  if (field.is_null()) return;
  if (depth > kMaxDepth) field.fail(fmt::format("more than {} sequences deep", kMaxDepth));
  const std::string& type = field["type"].text();
  if (type == "Sequence") {
    for (const Field& step : field["processors"].elements())
      read_post_processor(step, depth + 1, parts, around);
  } else if (type == "TemplateProcessing") {
    read_template(field, parts, around);
  } else if (type != "ByteLevel") {  // that one moves offsets only
    field["type"].fail(fmt::format(
        "'{}' is not supported; supported are Sequence, ByteLevel, TemplateProcessing", type));
  }
}

}  // namespace

void put_added_tokens(BpeParts& parts, std::vector<AddedToken> added, const std::string& where) {
  Vocabulary vocabulary(parts.tokens);
  size_t max_size = parts.tokens.size() + added.size() + kMaxHoles;
  std::unordered_map<int32_t, size_t> index;
  for (size_t i = 0; i < parts.added_tokens.size(); ++i) index[parts.added_tokens[i].id] = i;
  for (AddedToken& token : added) {
    auto id = static_cast<size_t>(token.id);
    auto fail = [&](const std::string& what) {
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: '{}' has id {}, but {}", where, token.content, id, what));
    };
    if (id >= max_size) fail(fmt::format("there are only {} tokens", parts.tokens.size()));
    int32_t known = vocabulary.find(token.content);
    if (known >= 0 && known != token.id) fail(fmt::format("is token {} of the vocabulary", known));
    if (id >= parts.tokens.size()) parts.tokens.resize(id + 1);
    VocabularyToken& entry = parts.tokens[id];
    if (entry.kind != TokenKind::kUnused && entry.text != token.content) {
      fail(fmt::format("that is '{}'", entry.text));
    }
    entry = {token.content, token.is_special ? TokenKind::kControl : TokenKind::kUserDefined};
    auto [place, is_new] = index.try_emplace(token.id, parts.added_tokens.size());
    if (is_new) parts.added_tokens.emplace_back();
    parts.added_tokens[place->second] = std::move(token);
  }
  check_added_tokens(parts.added_tokens, where);
}

TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source) {
  if (auto excess = find_json_excess(text, kLimits))
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: JSON {}", source, *excess));
  TokenizerJson result;
  try {
    Json root = Json::parse(text);
    Field file(root, source);
    PreTokenizerReader pre_tokenizer;
    pre_tokenizer.read(file["pre_tokenizer"], 0);
    std::vector<NormalizerStep> normalizer;
    read_normalizer(file["normalizer"], 0, normalizer);
    read_model(file["model"], result.parts);
    put_added_tokens(result.parts, read_added_tokens(file["added_tokens"]),
                     source + ": added_tokens");
    read_unknown_token(file["model"]["unk_token"], result.parts);
    read_decoder(file["decoder"], 0, result.parts);
    read_post_processor(file["post_processor"], 0, result.parts, result.around);
    result.parts.symbols =
        pre_tokenizer.is_byte_level ? SymbolKind::kBytes : SymbolKind::kCharacters;
    result.parts.pre_tokenizer = PreTokenizer(std::move(pre_tokenizer.steps));
    result.parts.normalizer = Normalizer(std::move(normalizer));
  } catch (const Json::exception& error) {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", source, error.what()));
  }
  return result;
}

}  // namespace droidspeak
