#include "server/token_bound.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_seed.h"

namespace droidspeak {

namespace {

class WordTokenizer final : public Tokenizer {
 public:
  explicit WordTokenizer(std::vector<std::string> words) : words_(std::move(words)) {}

  std::vector<int32_t> encode(std::string_view, SpecialTokens) const override { return {}; }

  std::string_view bytes_of(int32_t id) const override { return words_[static_cast<size_t>(id)]; }

  std::string decode(const std::vector<int32_t>&, SpecialTokens) const override { return ""; }

  int32_t vocab_size() const override { return static_cast<int32_t>(words_.size()); }

  bool is_special(int32_t) const override { return false; }

  int32_t find(std::string_view) const override { return -1; }

  // Of all ways to cut `text` into words.
  size_t fewest_words(std::string_view text) const {
    std::vector<size_t> fewest(text.size() + 1, text.size() + 1);
    fewest[0] = 0;
    for (size_t end = 1; end <= text.size(); ++end) {
      for (const std::string& word : words_) {
        if (!text.substr(0, end).ends_with(word)) continue;
        fewest[end] = std::min(fewest[end], fewest[end - word.size()] + 1);
      }
    }
    return fewest.back();
  }

 private:
  std::vector<std::string> words_;
};

TEST(TokenBound, IsNeverOverTheTruth) {
  WordTokenizer tokenizer(
      {"a", "b", "c", " ", "\xC3", "ab", "aab", "cabcab", "       ", "\xC3\xC3"});
  TokenBound bound(tokenizer);
  EXPECT_EQ(bound.longest_token(), 7u);
  std::mt19937 random(test_seed());
  for (int round = 0; round < 500; ++round) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = "abc \xC3"[random() % 5];
    EXPECT_LE(bound.fewest_tokens(text), static_cast<double>(tokenizer.fewest_words(text)) + 1e-9)
        << text;
  }
}

TEST(TokenBound, KnowsWhichBytesLongTokensHold) {
  WordTokenizer tokenizer({"a", "aa", "bbb", std::string(100, ' ')});
  TokenBound bound(tokenizer);
  EXPECT_DOUBLE_EQ(bound.fewest_tokens(std::string(600, 'a')), 300);
  EXPECT_DOUBLE_EQ(bound.fewest_tokens(std::string(600, 'b')), 200);
  EXPECT_DOUBLE_EQ(bound.fewest_tokens(std::string(600, 'B')), 200) << "may become small letters";
  EXPECT_DOUBLE_EQ(bound.fewest_tokens(std::string(600, ' ')), 6);
  EXPECT_DOUBLE_EQ(bound.fewest_tokens(std::string(600, '\xC3')), 6) << "may become anything";
  EXPECT_DOUBLE_EQ(bound.fewest_tokens(std::string(600, '?')), 6) << "not in the vocabulary";
}

TEST(TokenBound, KnowsWhichBytesHaveAnotherCase) {
  WordTokenizer tokenizer({"AAAA", "ZZZZ", "@@@@", "[[[[", "`", "{", "!!", "~~", "~", "\x7f"});
  TokenBound bound(tokenizer);
  for (auto [text, fewest] : {std::pair{"aaaa", 1.0},
                              {"zzzz", 1.0},
                              {"AAAA", 1.0},
                              {"ZZZZ", 1.0},
                              {"````", 4.0},
                              {"{{{{", 4.0},
                              {"@@@@", 1.0},
                              {"[[[[", 1.0},
                              {"!!!!", 2.0},
                              {"~~~~", 2.0},
                              {"\x7f\x7f\x7f\x7f", 1.0},
                              {"    ", 1.0}})
    EXPECT_DOUBLE_EQ(bound.fewest_tokens(text), fewest) << text;
}

}  // namespace

}  // namespace droidspeak
