#include "text/bpe/bpe_tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"

namespace droidspeak {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 31;

std::vector<AddedToken> raw_tokens(const std::vector<AddedToken>& added) {
  std::vector<AddedToken> result;
  std::ranges::copy_if(added, std::back_inserter(result),
                       [](const AddedToken& token) { return !token.is_normalized; });
  return result;
}

std::vector<AddedToken> normalized_tokens(const std::vector<AddedToken>& added,
                                          const Normalizer& normalizer) {
  std::vector<AddedToken> result;
  for (AddedToken token : added) {
    if (!token.is_normalized) continue;
    token.content = normalizer.apply(token.content);
    result.push_back(std::move(token));
  }
  return result;
}

}  // namespace

// Remembers where the ids of recent words stand in the output. One slot per hash, last one wins.
class BpeTokenizer::WordCache {
 public:
  explicit WordCache(size_t text_bytes)
      : slots_(std::bit_ceil(std::clamp<size_t>(text_bytes / 8, 16, 1 << 14))) {}

  struct Slot {
    std::string word;
    std::vector<int32_t> ids;
  };

  Slot& slot_of(std::string_view word) {
    return slots_[std::hash<std::string_view>{}(word) & (slots_.size() - 1)];
  }

 private:
  std::vector<Slot> slots_;
};

// What one call of encode() works with.
struct BpeTokenizer::Encoding {
  SpecialTokens special;
  std::vector<int32_t> ids;
  Merger merger;
  WordCache cache;
  SplitText words;
  std::vector<int32_t> symbols;
};

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : vocabulary_(std::move(parts.tokens)),
      merges_(parts.merges),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      raw_added_(raw_tokens(parts.added_tokens)),
      normalized_added_(normalized_tokens(parts.added_tokens, normalizer_)),
      symbols_(parts.symbols),
      ignores_merges_(parts.ignores_merges),
      has_byte_fallback_(parts.has_byte_fallback),
      fuses_unknown_(parts.fuses_unknown),
      unknown_id_(parts.unknown_id),
      drops_leading_space_(parts.drops_leading_space) {
  fill_bytes(parts.added_tokens);
  fill_symbols();
  cuts_before_space_ = symbols_ == SymbolKind::kCharacters && !ignores_merges_ &&
                       vocabulary_.find(kSpaceSymbol) >= 0 &&
                       merges_stay_within_words(parts.merges);
}

void BpeTokenizer::fill_bytes(const std::vector<AddedToken>& added) {
  auto size = static_cast<size_t>(vocabulary_.size());
  bytes_.resize(size);
  is_special_.resize(size);
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const VocabularyToken& token = vocabulary_[id];
    std::string& bytes = bytes_[static_cast<size_t>(id)];
    bool is_plain = token.kind == TokenKind::kNormal || token.kind == TokenKind::kByte;
    int byte = has_byte_fallback_ && is_plain ? byte_of_token_text(token.text) : -1;
    if (byte >= 0) {
      bytes = std::string(1, static_cast<char>(byte));
    } else if (!is_plain) {
      bytes = token.text;
    } else if (symbols_ == SymbolKind::kBytes) {
      bytes = alphabet_.decode(token.text).value_or(token.text);
    } else {
      bytes = replace_all(token.text, kSpaceSymbol, " ");
    }
    is_special_[static_cast<size_t>(id)] =
        token.kind == TokenKind::kControl || token.kind == TokenKind::kUnknown;
  }
  for (const AddedToken& token : added) {
    bytes_[static_cast<size_t>(token.id)] = token.content;
    is_special_[static_cast<size_t>(token.id)] = token.is_special;
  }
}

void BpeTokenizer::fill_symbols() {
  for (size_t byte = 0; byte < 256; ++byte) {
    auto value = static_cast<uint8_t>(byte);
    bool is_byte_level = symbols_ == SymbolKind::kBytes;
    byte_symbols_[byte] =
        vocabulary_.find(is_byte_level ? alphabet_.text_of(value) : token_text_of_byte(value));
  }
  ascii_symbols_.fill(-1);
  if (symbols_ == SymbolKind::kBytes) return;
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const VocabularyToken& token = vocabulary_[id];
    if (token.kind != TokenKind::kNormal || token.text.empty()) continue;
    Utf8Char c = utf8_char_at(token.text, 0);
    if (c.bytes != token.text.size()) continue;
    if (c.code_point < 128) {
      ascii_symbols_[c.code_point] = id;
    } else {
      symbols_of_characters_[c.code_point] = id;
    }
  }
}

bool BpeTokenizer::merges_stay_within_words(const std::vector<Merge>& merges) const {
  return std::ranges::none_of(merges, [this](const Merge& merge) {
    const std::string& left = vocabulary_[merge.left].text;
    const std::string& right = vocabulary_[merge.right].text;
    return right.starts_with(kSpaceSymbol) && !left.ends_with(kSpaceSymbol);
  });
}

std::vector<int32_t> BpeTokenizer::encode(std::string_view text, SpecialTokens special) const {
  if (text.size() > kMaxTextBytes) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("text of {} bytes; at most {} can be tokenized", text.size(), kMaxTextBytes));
  }
  Encoding encoding{special, {}, Merger(merges_), WordCache(text.size()), {}, {}};
  encoding.ids.reserve(text.size() / 3 + 8);
  std::vector<Fragment> fragments;
  raw_added_.split(text, special, fragments);
  for (const Fragment& fragment : fragments) {
    if (fragment.id >= 0) {
      encoding.ids.push_back(fragment.id);
      continue;
    }
    auto position = fragment.range.begin == 0 ? TextPosition::kStart : TextPosition::kLater;
    encode_fragment(text.substr(fragment.range.begin, fragment.range.size()), position, encoding);
  }
  return std::move(encoding.ids);
}

void BpeTokenizer::encode_fragment(std::string_view text,
                                   TextPosition position,
                                   Encoding& encoding) const {
  std::string rewritten;
  if (!normalizer_.is_empty()) {
    rewritten = normalizer_.apply(text);
    text = rewritten;
  }
  if (normalized_added_.is_empty()) {
    encode_normalized(text, position, encoding);
    return;
  }
  std::vector<Fragment> fragments;
  normalized_added_.split(text, encoding.special, fragments);
  for (const Fragment& fragment : fragments) {
    if (fragment.id >= 0) {
      encoding.ids.push_back(fragment.id);
      continue;
    }
    bool is_start = fragment.range.begin == 0 && position == TextPosition::kStart;
    encode_normalized(text.substr(fragment.range.begin, fragment.range.size()),
                      is_start ? TextPosition::kStart : TextPosition::kLater, encoding);
  }
}

void BpeTokenizer::encode_normalized(std::string_view text,
                                     TextPosition position,
                                     Encoding& encoding) const {
  pre_tokenizer_.split(text, position, encoding.words);
  std::string_view words = encoding.words.text;
  for (TextRange word : encoding.words.ranges) {
    encode_words(words.substr(word.begin, word.size()), encoding);
  }
}

void BpeTokenizer::encode_words(std::string_view text, Encoding& encoding) const {
  if (!cuts_before_space_) {
    encode_word(text, encoding);
    return;
  }
  size_t begin = 0;
  size_t searched = 0;
  while (true) {
    size_t space = text.find(kSpaceSymbol, searched);
    if (space == std::string_view::npos) break;
    if (space > begin && space > searched) {
      encode_word(text.substr(begin, space - begin), encoding);
      begin = space;
    }
    searched = space + kSpaceSymbol.size();
  }
  encode_word(text.substr(begin), encoding);
}

void BpeTokenizer::encode_word(std::string_view word, Encoding& encoding) const {
  constexpr size_t kLongestCached = 64;
  bool is_cached = word.size() <= kLongestCached;
  WordCache::Slot* slot = is_cached ? &encoding.cache.slot_of(word) : nullptr;
  if (is_cached && !word.empty() && slot->word == word) {
    encoding.ids.insert(encoding.ids.end(), slot->ids.begin(), slot->ids.end());
    return;
  }
  std::vector<int32_t>& symbols = encoding.symbols;
  symbols.clear();
  int32_t whole = ignores_merges_ ? find_whole_word(word) : -1;
  if (whole >= 0) {
    symbols.push_back(whole);
  } else {
    append_symbols(word, symbols);
    encoding.merger.merge(symbols);
  }
  encoding.ids.insert(encoding.ids.end(), symbols.begin(), symbols.end());
  if (is_cached) {
    slot->word = word;
    slot->ids = symbols;
  }
}

int32_t BpeTokenizer::find_whole_word(std::string_view word) const {
  int32_t id = symbols_ == SymbolKind::kBytes ? vocabulary_.find(alphabet_.encode(word))
                                              : vocabulary_.find(word);
  return id >= 0 && vocabulary_[id].kind == TokenKind::kNormal ? id : -1;
}

void BpeTokenizer::append_symbols(std::string_view word, std::vector<int32_t>& symbols) const {
  for (size_t i = 0; i < word.size();) {
    auto byte = static_cast<uint8_t>(word[i]);
    Utf8Char c{byte, 1};
    int32_t id = -1;
    if (symbols_ == SymbolKind::kBytes) {
      id = byte_symbols_[byte];
    } else if (byte < 128) {
      id = ascii_symbols_[byte];
    } else {
      c = utf8_char_at(word, i);
      auto found =
          c.bytes == 0 ? symbols_of_characters_.end() : symbols_of_characters_.find(c.code_point);
      if (found != symbols_of_characters_.end()) id = found->second;
    }
    size_t bytes = std::max<uint32_t>(c.bytes, 1);
    if (id >= 0) {
      symbols.push_back(id);
    } else {
      append_unknown(word.substr(i, bytes), symbols);
    }
    i += bytes;
  }
}

void BpeTokenizer::append_unknown(std::string_view character, std::vector<int32_t>& symbols) const {
  auto symbol_of = [this](char c) { return byte_symbols_[static_cast<uint8_t>(c)]; };
  if (has_byte_fallback_ &&
      std::ranges::all_of(character, [&](char c) { return symbol_of(c) >= 0; })) {
    for (char c : character) symbols.push_back(symbol_of(c));
    return;
  }
  if (unknown_id_ < 0) return;
  if (fuses_unknown_ && !symbols.empty() && symbols.back() == unknown_id_) return;
  symbols.push_back(unknown_id_);
}

std::string_view BpeTokenizer::bytes_of(int32_t id) const {
  return vocabulary_.contains(id) ? bytes_[static_cast<size_t>(id)] : std::string_view();
}

bool BpeTokenizer::is_special(int32_t id) const {
  return vocabulary_.contains(id) && is_special_[static_cast<size_t>(id)];
}

std::string BpeTokenizer::decode(const std::vector<int32_t>& ids, SpecialTokens special) const {
  std::string text;
  bool may_drop = drops_leading_space_;
  for (int32_t id : ids) {
    if (special == SpecialTokens::kParse && is_special(id)) continue;
    std::string_view bytes = bytes_of(id);
    if (bytes.empty()) continue;
    if (may_drop && !is_special(id) && bytes.front() == ' ') bytes.remove_prefix(1);
    may_drop = false;
    text += bytes;
  }
  return text;
}

void add_end_of_turn_token(Tokenizer& tokenizer, int32_t id) {
  auto& ids = tokenizer.end_of_turn_ids;
  if (id >= 0 && std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
}

void add_end_of_turn_tokens(Tokenizer& tokenizer) {
  static constexpr std::array<std::string_view, 9> kNames = {
      "<|eot_id|>", "<|im_end|>",      "<|end|>",         "<end_of_turn>", "<|endoftext|>",
      "<|eom_id|>", "<|end_of_text|>", "<|end_of_turn|>", "<EOT>"};
  add_end_of_turn_token(tokenizer, tokenizer.eos_id);
  for (std::string_view name : kNames) {
    int32_t id = tokenizer.find(name);
    if (id >= 0 && tokenizer.is_special(id)) add_end_of_turn_token(tokenizer, id);
  }
}

}  // namespace droidspeak
