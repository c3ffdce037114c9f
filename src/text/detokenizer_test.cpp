#include "text/detokenizer.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "text/tokenizer_test_support.h"

namespace droidspeak {
namespace {

bool is_valid(const std::string& text) {
  return valid_utf8_prefix(text) == text.size();
}

std::string push_all(Detokenizer& detokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  for (int32_t id : ids) {
    std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_valid(piece));
    text += piece;
  }
  return text + detokenizer.finish();
}

class DetokenizerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    byte_level = load_packed_gguf("vectors/gpt-2.gguf.gz");
    sentencepiece = load_packed_gguf("vectors/llama-spm.gguf.gz");
  }

  static void TearDownTestSuite() {
    byte_level.reset();
    sentencepiece.reset();
  }

  static inline std::unique_ptr<Tokenizer> byte_level;
  static inline std::unique_ptr<Tokenizer> sentencepiece;
};

TEST_F(DetokenizerTest, PiecesJoinToTheDecodedText) {
  for (const GoldenCase& golden : read_golden(tokenizer_test_folder() / "smollm2.golden.json")) {
    for (const Tokenizer* tokenizer : {byte_level.get(), sentencepiece.get()}) {
      for (SpecialTokens special : {SpecialTokens::kParse, SpecialTokens::kAsText}) {
        auto ids = tokenizer->encode(golden.text, SpecialTokens::kParse);
        Detokenizer detokenizer(*tokenizer, special);
        EXPECT_EQ(push_all(detokenizer, ids), tokenizer->decode(ids, special));
      }
    }
  }
}

TEST_F(DetokenizerTest, RandomTokensNeverGiveHalfACharacter) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> ids(50);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 400);  // mostly single bytes
    for (const Tokenizer* tokenizer : {byte_level.get(), sentencepiece.get()}) {
      Detokenizer detokenizer(*tokenizer);
      std::string text = push_all(detokenizer, ids);
      std::string decoded = tokenizer->decode(ids, SpecialTokens::kParse);
      if (is_valid(decoded)) {
        EXPECT_EQ(text, decoded);
      } else {
        EXPECT_NE(text.find("\xEF\xBF\xBD"), std::string::npos);
      }
    }
  }
}

TEST_F(DetokenizerTest, HoldsBackBytesUntilTheCharacterIsWhole) {
  auto ids = sentencepiece->encode("\xF0\x9F\xA6\x99", SpecialTokens::kParse);
  ASSERT_EQ(ids.size(), 5u);  // the space and four bytes
  Detokenizer detokenizer(*sentencepiece);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(detokenizer.push(ids[i]), "");
  EXPECT_EQ(detokenizer.push(ids[4]), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST_F(DetokenizerTest, ReplacesBytesThatCannotBecomeACharacter) {
  int32_t lead = sentencepiece->find("<0xF0>");
  int32_t letter = sentencepiece->find("a");
  Detokenizer detokenizer(*sentencepiece);
  EXPECT_EQ(detokenizer.push(lead), "");
  EXPECT_EQ(detokenizer.push(letter),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(detokenizer.push(lead), "");
  EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST_F(DetokenizerTest, KnowsWhereATokenBegins) {
  auto offsets = [](Detokenizer detokenizer, const std::vector<int32_t>& ids) {
    std::vector<size_t> found;
    for (int32_t id : ids) {
      detokenizer.push(id);
      found.push_back(detokenizer.last_offset());
    }
    return found;
  };
  using Numbers = std::vector<size_t>;
  auto id = [](const char* token) { return sentencepiece->find(token); };
  const int32_t lead = id("<0xF0>");
  const int32_t hello = id("\xE2\x96\x81Hello");
  EXPECT_EQ(offsets(Detokenizer(*sentencepiece), {1, hello, hello, 2, id("a")}),
            (Numbers{0, 0, 5, 11, 11}));
  EXPECT_EQ(offsets(Detokenizer(*sentencepiece, SpecialTokens::kAsText), {1, hello}),
            (Numbers{0, 3}));
  EXPECT_EQ(offsets(Detokenizer(*sentencepiece),
                    {id("a"), lead, id("<0x9F>"), id("<0xA6>"), id("<0x99>"), id("b")}),
            (Numbers{0, 1, 1, 1, 1, 2}));
  EXPECT_EQ(offsets(Detokenizer(*sentencepiece), {lead, id("a"), lead, lead, id("a")}),
            (Numbers{0, 1, 2, 3, 4}))
      << "behind a replacement";
}

TEST_F(DetokenizerTest, TheFirstWordKeepsItsSpaceBehindAPrompt) {
  int32_t hello = sentencepiece->find("\xE2\x96\x81Hello");
  Detokenizer alone(*sentencepiece);
  EXPECT_EQ(alone.push(hello), "Hello");
  EXPECT_EQ(alone.push(hello), " Hello");
  Detokenizer behind_text(*sentencepiece, SpecialTokens::kParse, {1, hello});
  EXPECT_EQ(behind_text.push(hello), " Hello");
  Detokenizer behind_bos(*sentencepiece, SpecialTokens::kParse, {1});
  EXPECT_EQ(behind_bos.push(hello), "Hello");
}

// The slow obvious version: grows the text by single characters.
StopStrings::Output reference_stop(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string shown = text.substr(0, end);
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (!stop.empty() && shown.ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {shown.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStrings, FindsAStopCutAtEveryPosition) {
  const std::string text = "one two STOP three";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      StopStrings stops({"STOP", "###"});
      std::string shown;
      bool stopped = false;
      for (std::string_view part : {std::string_view(text).substr(0, first),
                                    std::string_view(text).substr(first, second - first),
                                    std::string_view(text).substr(second)}) {
        auto output = stops.push(part);
        EXPECT_FALSE(stopped && !output.text.empty());
        shown += output.text;
        stopped = output.stopped;
      }
      EXPECT_TRUE(stopped);
      EXPECT_EQ(shown + stops.finish(), "one two ");
    }
  }
}

TEST(StopStrings, AgreesWithTheObviousVersionHoweverTheTextIsCut) {
  std::mt19937 random(9);
  auto random_text = [&](size_t size) {
    std::string text(size, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> list(random() % 4);
    for (std::string& stop : list) stop = random_text(random() % 5);
    std::string text = random_text(random() % 20);
    StopStrings stops(list);
    std::string shown;
    bool stopped = false;
    for (size_t done = 0; done < text.size();) {
      size_t size = 1 + random() % 4;
      auto output = stops.push(std::string_view(text).substr(done, size));
      shown += output.text;
      stopped = output.stopped;
      done += size;
    }
    shown += stops.finish();
    auto expected = reference_stop(list, text);
    ASSERT_EQ(shown, expected.text) << text;
    ASSERT_EQ(stopped, expected.stopped) << text;
  }
}

TEST(StopStrings, HoldsBackNoMoreThanAPossibleStart) {
  StopStrings stops({"</s>"});
  EXPECT_EQ(stops.push("a<b<").text, "a<b");
  EXPECT_EQ(stops.push("/").text, "");
  EXPECT_EQ(stops.push("x").text, "</x");
  EXPECT_EQ(stops.push("<").text, "");
  EXPECT_EQ(stops.finish(), "<");
}

TEST(StopStrings, NothingFollowsAStop) {
  StopStrings stops({"x"});
  EXPECT_TRUE(stops.push("ax").stopped);
  auto output = stops.push("more");
  EXPECT_TRUE(output.stopped);
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(stops.finish(), "");
}

}  // namespace
}  // namespace droidspeak
