#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/utf8.h"
#include "text/bpe/added_tokens.h"
#include "text/bpe/byte_alphabet.h"
#include "text/bpe/families.h"
#include "text/bpe/merge_table.h"
#include "text/bpe/normalizer.h"
#include "text/bpe/score_merges.h"

namespace droidspeak {
namespace {

using Words = std::vector<std::string>;

Words split(const PreTokenizer& pre_tokenizer, std::string_view text) {
  SplitText words;
  pre_tokenizer.split(text, TextPosition::kStart, words);
  Words result;
  for (TextRange word : words.ranges)
    result.emplace_back(words.text.substr(word.begin, word.size()));
  return result;
}

Words split_by(std::string_view pattern,
               SplitBehavior behavior,
               SplitTarget target,
               std::string_view text) {
  std::vector<PreTokenizerStep> steps;
  steps.emplace_back(SplitStep{Regex(pattern), behavior, target});
  return split(PreTokenizer(std::move(steps)), text);
}

// The slow obvious version of BPE.
std::vector<int32_t> merge_obviously(const std::vector<Merge>& merges,
                                     std::vector<int32_t> symbols) {
  while (true) {
    const Merge* best = nullptr;
    size_t place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (const Merge& merge : merges) {
        bool joins = merge.left == symbols[i] && merge.right == symbols[i + 1];
        if (joins && (best == nullptr || merge.rank < best->rank)) {
          best = &merge;
          place = i;
        }
      }
    }
    if (best == nullptr) return symbols;
    symbols[place] = best->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
}

TEST(Merger, BothWaysAgreeWithTheObviousVersion) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Merge> merges;
    int32_t next = 4;
    std::vector<std::pair<int32_t, int32_t>> seen;
    for (uint32_t i = 0; i < 20; ++i) {
      auto left = static_cast<int32_t>(random() % static_cast<uint32_t>(next));
      auto right = static_cast<int32_t>(random() % static_cast<uint32_t>(next));
      if (std::ranges::find(seen, std::pair(left, right)) != seen.end()) continue;
      seen.emplace_back(left, right);
      merges.push_back({left, right, next++, round % 2 == 0 ? i : i / 4});  // also equal ranks
    }
    std::vector<int32_t> symbols(random() % 100);
    for (int32_t& symbol : symbols) symbol = static_cast<int32_t>(random() % 4);
    MergeTable table(merges);
    Merger merger(table);
    auto expected = merge_obviously(merges, symbols);
    auto scanned = symbols;
    merger.merge_by_scanning(scanned);
    auto queued = symbols;
    merger.merge_by_queue(queued);
    ASSERT_EQ(scanned, expected) << "round " << round;
    ASSERT_EQ(queued, expected) << "round " << round;
  }
}

TEST(Merger, AMergeIntoItselfEnds) {
  MergeTable table({{0, 0, 0, 0}});  // a file may say so; each join still shortens the text
  Merger merger(table);
  std::vector<int32_t> symbols(1000, 0);
  merger.merge_by_queue(symbols);
  EXPECT_EQ(symbols.size(), 1u);
}

TEST(ScoreMerges, BestScoreJoinsFirst) {
  std::vector<VocabularyToken> tokens = {{"a", TokenKind::kNormal},
                                         {"b", TokenKind::kNormal},
                                         {"c", TokenKind::kNormal},
                                         {"ab", TokenKind::kNormal},
                                         {"bc", TokenKind::kNormal}};
  auto merges = merges_from_scores(tokens, {0, 0, 0, -2, -1}, "x");
  MergeTable table(merges);
  Merger merger(table);
  std::vector<int32_t> symbols = {0, 1, 2};
  merger.merge(symbols);
  EXPECT_EQ(symbols, (std::vector<int32_t>{0, 4}));
  EXPECT_THROW(merges_from_scores(tokens, {0, 0, 0, NAN, 0}, "x"), Failure);
}

TEST(ByteAlphabet, EveryByteComesBack) {
  ByteAlphabet alphabet;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(alphabet.decode(alphabet.encode(bytes)), bytes);
  EXPECT_EQ(alphabet.text_of(' '), "\xC4\xA0");
  EXPECT_EQ(alphabet.decode("a b"), std::nullopt);
  EXPECT_EQ(alphabet.decode("\xFF"), std::nullopt);
}

TEST(Regex, ReportsABadPattern) {
  try {
    Regex regex("a(b");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("a(b"), std::string::npos);
  }
}

TEST(Regex, WorkIsLimited) {
  Regex regex("(a|a)+(a|a)+(a|a)+(a|a)+b");
  std::string text = std::string(3000, 'a') + "cb";
  Regex::Matches matches(regex, text);
  TextRange match;
  EXPECT_THROW(matches.next(match), Failure);
}

TEST(Regex, WhiteSpaceIsThatOfUnicode) {
  EXPECT_EQ(with_unicode_white_space(R"(\s[^\s\]]\S\\s[\s])"),
            R"([\t-\r\x{85}\p{Z}][^\t-\r\x{85}\p{Z}\]][^\t-\r\x{85}\p{Z}]\\s[\t-\r\x{85}\p{Z}])");
  Regex regex("^\\s$");
  for (uint32_t code_point = 0; code_point < 0x110000; ++code_point) {
    if (code_point >= 0xD800 && code_point < 0xE000) continue;
    std::string text;
    append_utf8(text, code_point);
    if (text == "\n") continue;
    Regex::Matches matches(regex, text);
    TextRange match;
    ASSERT_EQ(matches.next(match), is_white_space(code_point)) << code_point;
  }
}

TEST(Regex, SkipsBytesThatAreNotUtf8) {
  Regex regex("a+");
  Regex::Matches matches(regex,
                         "aa\xFF\xFE"
                         "a\xC3"
                         "a");
  TextRange match;
  std::vector<TextRange> found;
  while (matches.next(match)) found.push_back(match);
  EXPECT_EQ(found, (std::vector<TextRange>{{0, 2}, {4, 5}, {6, 7}}));
}

TEST(PreTokenizer, SplitBehaviorsAreThoseOfHuggingFace) {
  auto matches = SplitTarget::kMatches;
  std::string_view text = "the-final--countdown";
  EXPECT_EQ(split_by("-", SplitBehavior::kRemoved, matches, text),
            (Words{"the", "final", "countdown"}));
  EXPECT_EQ(split_by("-", SplitBehavior::kIsolated, matches, text),
            (Words{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split_by("-", SplitBehavior::kMergedWithPrevious, matches, text),
            (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split_by("-", SplitBehavior::kMergedWithNext, matches, text),
            (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(split_by("-", SplitBehavior::kContiguous, matches, text),
            (Words{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split_by("[a-z]+", SplitBehavior::kRemoved, SplitTarget::kGaps, text),
            (Words{"the", "final", "countdown"}));
}

TEST(PreTokenizer, FamiliesDifferInDigits) {
  std::string_view text = "x12345 67";
  EXPECT_EQ(split(pre_tokenizer_of(PreTokenizerFamily::kGpt2), text), (Words{"x", "12345", " 67"}));
  EXPECT_EQ(split(pre_tokenizer_of(PreTokenizerFamily::kLlama3), text),
            (Words{"x", "123", "45", " ", "67"}));
  EXPECT_EQ(split(pre_tokenizer_of(PreTokenizerFamily::kQwen2), text),
            (Words{"x", "1", "2", "3", "4", "5", " ", "6", "7"}));
  EXPECT_EQ(split(pre_tokenizer_of(PreTokenizerFamily::kSingleDigits), text),
            (Words{"x", "1", "2", "3", "4", "5", " ", "6", "7"}));
  for (auto family : {PreTokenizerFamily::kCl100k, PreTokenizerFamily::kO200k})
    EXPECT_EQ(split(pre_tokenizer_of(family), text), (Words{"x", "123", "45", " ", "67"}));
}

// What tiktoken's o200k_base makes of it: words end before a capital, and keep what is left out.
TEST(PreTokenizer, O200kSplitsAtCapitalsAndKeepsContractions) {
  EXPECT_EQ(
      split(pre_tokenizer_of(PreTokenizerFamily::kO200k), "HelloWorld don't say I'M a/b\n\n1"),
      (Words{"Hello", "World", " don't", " say", " I'M", " a", "/b", "\n\n", "1"}));
  EXPECT_EQ(split(pre_tokenizer_of(PreTokenizerFamily::kCl100k), "HelloWorld don't say"),
            (Words{"HelloWorld", " don", "'t", " say"}));
}

TEST(PreTokenizer, MetaspacePrependsByScheme) {
  auto words_of = [](PrependScheme scheme, TextPosition position) {
    std::vector<PreTokenizerStep> steps;
    steps.emplace_back(MetaspaceStep{"_", scheme});
    PreTokenizer pre_tokenizer(std::move(steps));
    SplitText words;
    pre_tokenizer.split("a b", position, words);
    return std::string(words.text);
  };
  EXPECT_EQ(words_of(PrependScheme::kAlways, TextPosition::kLater), "_a_b");
  EXPECT_EQ(words_of(PrependScheme::kFirst, TextPosition::kStart), "_a_b");
  EXPECT_EQ(words_of(PrependScheme::kFirst, TextPosition::kLater), "a_b");
  EXPECT_EQ(words_of(PrependScheme::kNever, TextPosition::kStart), "a_b");
}

TEST(Normalizer, ComposesCharacters) {
  EXPECT_EQ(to_unicode_form("cafe\xCC\x81!", UnicodeForm::kNfc), "caf\xC3\xA9!");
  EXPECT_EQ(to_unicode_form("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", UnicodeForm::kNfc),
            "\xEA\xB0\x81");
  EXPECT_EQ(to_unicode_form("\xE2\x84\xAB", UnicodeForm::kNfc), "\xC3\x85");  // Angstrom sign
  EXPECT_EQ(to_unicode_form("a\xCC\x87\xCC\xA3", UnicodeForm::kNfc), "\xE1\xBA\xA1\xCC\x87");
  EXPECT_EQ(to_unicode_form("\xC3\xA9", UnicodeForm::kNfd), "e\xCC\x81");
  EXPECT_EQ(to_unicode_form("\xEF\xAC\x81", UnicodeForm::kNfkc), "fi");
  EXPECT_EQ(to_unicode_form("e\xFF\xCC\x81\xCC", UnicodeForm::kNfc), "e\xFF\xCC\x81\xCC");
}

TEST(Normalizer, AppliesStepsInOrder) {
  EXPECT_EQ(sentencepiece_normalizer(DummyPrefix::kAdded).apply("a b"),
            "\xE2\x96\x81"
            "a\xE2\x96\x81"
            "b");
  EXPECT_EQ(sentencepiece_normalizer(DummyPrefix::kAdded).apply(""), "");
  EXPECT_EQ(sentencepiece_normalizer(DummyPrefix::kNone).apply("a"), "a");
  std::vector<NormalizerStep> steps;
  steps.emplace_back(ReplacePattern{Regex("[0-9]+"), "#"});
  EXPECT_EQ(Normalizer(std::move(steps)).apply("a12b3"), "a#b#");
}

template <class Step>
Normalizer normalizer_of(const Step& step, int times) {
  std::vector<NormalizerStep> steps;
  for (int i = 0; i < times; ++i) steps.emplace_back(step);
  return Normalizer(std::move(steps));
}

// Forty doublings would make a terabyte of one letter.
TEST(Normalizer, StepsThatMakeATextEverLongerAreStopped) {
  const std::string long_text(1 << 20, ' ');
  EXPECT_EQ(sentencepiece_normalizer(DummyPrefix::kNone).apply(long_text).size(), 3u << 20);
  EXPECT_EQ(normalizer_of(ReplaceText{"a", "aa"}, 10).apply("a").size(), 1024u);
  EXPECT_THROW(normalizer_of(ReplaceText{"a", "aa"}, 40).apply("a"), Failure);
  EXPECT_THROW(normalizer_of(PrependText{std::string(10'000, 'a')}, 40).apply("a"), Failure);
  EXPECT_THROW(normalizer_of(ReplaceText{" ", std::string(1000, 'a')}, 1).apply(long_text),
               Failure);
  std::vector<NormalizerStep> steps;
  steps.emplace_back(ReplacePattern{Regex(" "), std::string(1000, 'a')});
  EXPECT_THROW(Normalizer(std::move(steps)).apply(long_text), Failure);
}

std::vector<std::pair<std::string, int32_t>> fragments_of(std::vector<AddedToken> tokens,
                                                          std::string_view text) {
  std::vector<Fragment> fragments;
  AddedTokenMatcher(std::move(tokens)).split(text, SpecialTokens::kParse, fragments);
  std::vector<std::pair<std::string, int32_t>> result;
  for (const Fragment& fragment : fragments) {
    result.emplace_back(text.substr(fragment.range.begin, fragment.range.size()), fragment.id);
  }
  return result;
}

TEST(AddedTokens, TheLeftmostThenLongestIsFound) {
  std::vector<AddedToken> tokens = {
      {.id = 1, .content = "ab"}, {.id = 2, .content = "abc"}, {.id = 3, .content = "bcd"}};
  using Fragments = std::vector<std::pair<std::string, int32_t>>;
  EXPECT_EQ(fragments_of(tokens, "xabcdab"),
            (Fragments{{"x", -1}, {"abc", 2}, {"d", -1}, {"ab", 1}}));
  EXPECT_EQ(fragments_of(tokens, "bcda"), (Fragments{{"bcd", 3}, {"a", -1}}));
  EXPECT_EQ(fragments_of(tokens, ""), Fragments{});
}

TEST(AddedTokens, StripWhiteSpaceWhereTheySay) {
  std::vector<AddedToken> tokens = {{.id = 1, .content = "<l>", .strips_left = true},
                                    {.id = 2, .content = "<r>", .strips_right = true},
                                    {.id = 3, .content = "w", .is_single_word = true}};
  using Fragments = std::vector<std::pair<std::string, int32_t>>;
  EXPECT_EQ(fragments_of(tokens, "a \t<l> b"), (Fragments{{"a", -1}, {" \t<l>", 1}, {" b", -1}}));
  EXPECT_EQ(fragments_of(tokens, "a <r>\xC2\xA0\n b"),
            (Fragments{{"a ", -1}, {"<r>\xC2\xA0\n ", 2}, {"b", -1}}));
  EXPECT_EQ(fragments_of(tokens, "<r>  <l>"), (Fragments{{"<r>  ", 2}, {"<l>", 1}}));
  EXPECT_EQ(fragments_of(tokens, "ww w."), (Fragments{{"ww ", -1}, {"w", 3}, {".", -1}}));
}

TEST(Utf8, KnowsWhatIsValid) {
  EXPECT_EQ(valid_utf8_prefix("abc\xC3\xA9"), 5u);
  EXPECT_EQ(valid_utf8_prefix("\xC0\x80"), 0u);          // overlong
  EXPECT_EQ(valid_utf8_prefix("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(valid_utf8_prefix("\xF4\x90\x80\x80"), 0u);  // over U+10FFFF
  EXPECT_EQ(valid_utf8_prefix("12345678\xE2\x82"), 8u);  // cut off
  EXPECT_TRUE(is_incomplete_utf8_char("\xE2\x82"));
  EXPECT_FALSE(is_incomplete_utf8_char("\xED\xA0"));
  EXPECT_FALSE(is_incomplete_utf8_char("\x80"));
}

}  // namespace
}  // namespace droidspeak
