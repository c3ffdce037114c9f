// For tests: a tokenizer of bytes and a few tokens of up to 40 characters, and a walk through a
// grammar that takes any allowed token.
#pragma once

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "grammar/grammar_compiler.h"
#include "grammar/grammar_matcher.h"

namespace droidspeak {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEnd = 256;
  static constexpr int32_t kMark = 257;  // special, ends nothing

  ByteTokenizer() {
    for (int i = 0; i < 256; ++i) texts_.emplace_back(1, static_cast<char>(i));
    for (const char* text : {"<|end|>", "<|mark|>", "\": ", "{\"", "\"}", "tru", "null", ", ", "12",
                             "0.", "name", "\\u00", "],[", "e-0", "  "})
      texts_.emplace_back(text);
    for (size_t characters : {20, 21, 40}) texts_.emplace_back(characters, 'x');
    eos_id = kEnd;
    end_of_turn_ids = {kEnd};
  }

  std::vector<int32_t> encode(std::string_view text, SpecialTokens /*special*/) const override {
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string_view bytes_of(int32_t id) const override { return texts_[static_cast<size_t>(id)]; }

  std::string decode(const std::vector<int32_t>& ids, SpecialTokens special) const override {
    std::string text;
    for (int32_t id : ids) {
      if (special == SpecialTokens::kAsText || !is_special(id)) text += bytes_of(id);
    }
    return text;
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(texts_.size()); }

  bool is_special(int32_t id) const override { return id == kEnd || id == kMark; }

  int32_t find(std::string_view /*token*/) const override { return -1; }

 private:
  std::vector<std::string> texts_;
};

// A text of the grammar: at each step any token that is allowed, most often the first of the few
// that close something. Nothing when it has not come to an end after so many tokens.
inline std::optional<std::string> random_text(const std::shared_ptr<const CompiledGrammar>& grammar,
                                              uint32_t seed,
                                              int max_tokens = 2000) {
  ByteTokenizer tokenizer;
  std::mt19937 random(seed);
  GrammarMatcher matcher(grammar);
  std::string text;
  for (int i = 0; i < max_tokens && !matcher.is_finished(); ++i) {
    std::vector<int32_t> allowed;
    std::vector<int32_t> closing;
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (!matcher.allows(id)) continue;
      allowed.push_back(id);
      bool closes = id == ByteTokenizer::kEnd || id == '"' || id == '}' || id == ']';
      if (closes) closing.push_back(id);
    }
    if (allowed.empty()) return std::nullopt;
    const auto& from = !closing.empty() && random() % 4 == 0 ? closing : allowed;
    int32_t token = from[random() % from.size()];
    if (!matcher.accept(token)) return std::nullopt;
    if (matcher.has_ended()) return text;
    text += tokenizer.bytes_of(token);
  }
  if (!matcher.is_finished()) return std::nullopt;
  return text;
}

}  // namespace droidspeak
