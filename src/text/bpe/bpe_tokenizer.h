// The one tokenizer behind every format: byte-level BPE and SentencePiece-style BPE differ only in
// what the first symbols are and in the parts around them. A loader fills `BpeParts`.
//
//   text -> added tokens -> normalizer -> added tokens (normalized) -> words -> symbols -> merges
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/bpe/added_tokens.h"
#include "text/bpe/byte_alphabet.h"
#include "text/bpe/merge_table.h"
#include "text/bpe/normalizer.h"
#include "text/bpe/pre_tokenizer.h"
#include "text/bpe/vocabulary.h"
#include "text/tokenizer.h"

namespace droidspeak {

enum class SymbolKind {
  kBytes,       // byte-level: token texts are in the byte alphabet
  kCharacters,  // SentencePiece style: characters, U+2581 for a space
};

struct BpeParts {
  SymbolKind symbols = SymbolKind::kBytes;
  std::vector<VocabularyToken> tokens;  // by id
  std::vector<Merge> merges;
  std::vector<AddedToken> added_tokens;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;

  bool ignores_merges = false;       // a word that is a token as a whole becomes that token
  bool has_byte_fallback = false;    // a character without a token becomes its bytes' tokens
  bool fuses_unknown = false;        // neighbouring unknown characters become one unknown token
  int32_t unknown_id = -1;           // -1: unknown characters are dropped
  bool drops_leading_space = false;  // decoding undoes the space put before a text
};

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);

  std::vector<int32_t> encode(std::string_view text, SpecialTokens special) const override;
  std::string_view bytes_of(int32_t id) const override;
  std::string decode(const std::vector<int32_t>& ids, SpecialTokens special) const override;

  int32_t vocab_size() const override { return vocabulary_.size(); }

  bool is_special(int32_t id) const override;

  int32_t find(std::string_view token) const override { return vocabulary_.find(token); }

 private:
  class WordCache;
  struct Encoding;

  void fill_bytes(const std::vector<AddedToken>& added);
  void fill_symbols();
  bool merges_stay_within_words(const std::vector<Merge>& merges) const;

  void encode_fragment(std::string_view text, TextPosition position, Encoding& encoding) const;
  void encode_normalized(std::string_view text, TextPosition position, Encoding& encoding) const;
  void encode_words(std::string_view text, Encoding& encoding) const;
  void encode_word(std::string_view word, Encoding& encoding) const;
  int32_t find_whole_word(std::string_view word) const;
  void append_symbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void append_unknown(std::string_view character, std::vector<int32_t>& symbols) const;

  ByteAlphabet alphabet_;
  Vocabulary vocabulary_;
  MergeTable merges_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  AddedTokenMatcher raw_added_;
  AddedTokenMatcher normalized_added_;

  SymbolKind symbols_;
  bool ignores_merges_;
  bool has_byte_fallback_;
  bool fuses_unknown_;
  int32_t unknown_id_;
  bool drops_leading_space_;
  // No token joins another character with a following U+2581, so words may be cut before it.
  bool cuts_before_space_ = false;

  std::vector<std::string> bytes_;            // by id
  std::vector<bool> is_special_;              // by id
  std::array<int32_t, 256> byte_symbols_{};   // token of a byte (byte-level or fallback), -1
  std::array<int32_t, 128> ascii_symbols_{};  // token of a character, -1
  std::unordered_map<uint32_t, int32_t> symbols_of_characters_;  // the others
};

// Fills `end_of_turn_ids`: EOS and every added or special token known to end an answer.
void add_end_of_turn_tokens(Tokenizer& tokenizer);
// Adds one id, unless it is negative or there already.
void add_end_of_turn_token(Tokenizer& tokenizer, int32_t id);

}  // namespace droidspeak
