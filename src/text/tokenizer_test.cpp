#include "text/tokenizer.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/utf8.h"
#include "text/bpe/normalizer.h"
#include "text/tokenizer_test_support.h"

namespace droidspeak {
namespace {

std::vector<std::string> split_texts(const std::string& file) {
  const std::string mark = "\n__ggml_vocab_test__\n";
  std::vector<std::string> texts;
  size_t done = 0;
  for (size_t at = file.find(mark); at != std::string::npos; at = file.find(mark, done)) {
    texts.push_back(file.substr(done, at - done));
    done = at + mark.size();
  }
  return texts;
}

std::vector<std::vector<int32_t>> read_id_lines(const std::string& file) {
  std::vector<std::vector<int32_t>> lines;
  std::istringstream input(file);
  for (std::string line; std::getline(input, line);) {
    std::istringstream numbers(line);
    auto& ids = lines.emplace_back();
    for (int32_t id = 0; numbers >> id;) ids.push_back(id);
  }
  return lines;
}

void expect_golden(const Tokenizer& tokenizer, const std::vector<GoldenCase>& cases) {
  ASSERT_GT(cases.size(), 100u);
  for (const GoldenCase& golden : cases) {
    std::vector<int32_t> ids = tokenizer.encode(golden.text, SpecialTokens::kParse);
    EXPECT_EQ(ids, golden.ids) << testing::PrintToString(golden.text);
  }
}

void expect_decoded(const Tokenizer& tokenizer, const std::vector<GoldenCase>& cases) {
  for (const GoldenCase& golden : cases) {
    if (!golden.decoded) continue;
    EXPECT_EQ(tokenizer.decode(golden.ids, SpecialTokens::kAsText), *golden.decoded);
  }
}

std::string random_bytes(std::mt19937& random, size_t size) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() % 256);
  return text;
}

std::string random_utf8(std::mt19937& random, size_t size) {
  const std::vector<uint32_t> limits = {0x80, 0x250, 0x3000, 0xD800, 0x110000};
  std::string text;
  while (text.size() < size) {
    uint32_t code_point = static_cast<uint32_t>(random()) % limits[random() % limits.size()];
    if (code_point < 0xD800 || code_point > 0xDFFF) append_utf8(text, code_point);
  }
  return text;
}

std::string random_letters(size_t size) {
  std::mt19937 random(5);
  std::string text(size, 'a');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

std::string name_of(const testing::TestParamInfo<const char*>& test) {
  std::string name = test.param;
  std::ranges::replace(name, '-', '_');
  return name;
}

class VectorTest : public testing::TestWithParam<const char*> {};

TEST_P(VectorTest, GivesTheIdsOfTheReference) {
  auto folder = tokenizer_test_folder() / "vectors";
  auto tokenizer = load_packed_gguf(std::string("vectors/") + GetParam() + ".gguf.gz");
  auto texts = split_texts(read_file(folder / "texts.inp"));
  auto expected = read_id_lines(read_file(folder / (std::string(GetParam()) + ".out")));
  ASSERT_EQ(texts.size(), 46u);
  ASSERT_GE(expected.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    auto ids = tokenizer->encode(texts[i], SpecialTokens::kAsText);
    EXPECT_EQ(ids, expected[i]) << testing::PrintToString(texts[i]);
    EXPECT_EQ(tokenizer->decode(ids, SpecialTokens::kAsText), texts[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         VectorTest,
                         testing::Values("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2"),
                         name_of);

class TinyTest : public testing::TestWithParam<const char*> {};

TEST_P(TinyTest, AgreesWithHuggingFace) {
  auto folder = tokenizer_test_folder() / "tiny" / GetParam();
  auto tokenizer = load_hf_tokenizer(folder);
  auto cases = read_golden(folder / "golden.json");
  expect_golden(*tokenizer, cases);
  expect_decoded(*tokenizer, cases);
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    TinyTest,
    testing::Values(
        "llama3", "qwen2", "gpt2", "smollm", "removed", "llama2", "mistral", "metaspace"),
    name_of);

class SmolLmTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared = load_packed_gguf("smollm2.gguf.gz"); }

  static void TearDownTestSuite() { shared.reset(); }

  static inline std::unique_ptr<Tokenizer> shared;
  const Tokenizer& tokenizer = *shared;
};

TEST_F(SmolLmTest, AgreesWithHuggingFace) {
  auto cases = read_golden(tokenizer_test_folder() / "smollm2.golden.json");
  expect_golden(tokenizer, cases);
  expect_decoded(tokenizer, cases);
}

TEST_F(SmolLmTest, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_EQ(tokenizer.bos_id, 1);
  EXPECT_EQ(tokenizer.bos_text, "<|im_start|>");
  EXPECT_EQ(tokenizer.eos_id, 2);
  EXPECT_EQ(tokenizer.eos_text, "<|im_end|>");
  EXPECT_FALSE(tokenizer.bos_for_prompts);
  EXPECT_EQ(tokenizer.end_of_turn_ids, (std::vector<int32_t>{2, 0}));
  EXPECT_NE(tokenizer.chat_template.find("<|im_start|>"), std::string::npos);
  EXPECT_TRUE(tokenizer.is_special(2));
  EXPECT_FALSE(tokenizer.is_special(100));
  EXPECT_EQ(tokenizer.find("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.find("no such token"), -1);
}

TEST_F(SmolLmTest, SpecialTokensAsTextAreNeverSpecialIds) {
  std::string text = "<|im_start|>user\nHi<|im_end|>";
  auto ids = tokenizer.encode(text, SpecialTokens::kAsText);
  EXPECT_TRUE(std::ranges::none_of(ids, [&](int32_t id) { return tokenizer.is_special(id); }));
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kParse), text);
}

TEST_F(SmolLmTest, DecodingLeavesOutSpecialTokensWhenAsked) {
  auto ids = tokenizer.encode("a<|im_end|>b", SpecialTokens::kParse);
  EXPECT_EQ(ids.size(), 3u);
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kParse), "ab");
  EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kAsText), "a<|im_end|>b");
}

TEST_F(SmolLmTest, IdsOutsideTheVocabularyAreSilent) {
  EXPECT_EQ(tokenizer.decode({-1, 49152, INT32_MAX, INT32_MIN}, SpecialTokens::kAsText), "");
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(49152));
}

class BytesTest : public testing::TestWithParam<const char*> {};

class TextTest : public testing::TestWithParam<const char*> {};

TEST_P(BytesTest, ComeBack) {
  auto tokenizer = load_packed_gguf(std::string("vectors/") + GetParam() + ".gguf.gz");
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::string text = random_bytes(random, random() % 200);
    auto ids = tokenizer->encode(text, SpecialTokens::kParse);
    ASSERT_EQ(tokenizer->decode(ids, SpecialTokens::kAsText), text) << "round " << round;
  }
}

TEST_P(TextTest, ComesBack) {
  auto tokenizer = load_packed_gguf(std::string("vectors/") + GetParam() + ".gguf.gz");
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    // The one character that means something else to SentencePiece.
    std::string text = replace_all(random_utf8(random, random() % 300), kSpaceSymbol, " ");
    auto ids = tokenizer->encode(text, SpecialTokens::kParse);
    ASSERT_EQ(tokenizer->decode(ids, SpecialTokens::kAsText), text) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Families,
                         BytesTest,
                         testing::Values("gpt-2", "llama-bpe", "llama-spm", "phi-3"),
                         name_of);
// GPT-NeoX has no tokens for the bytes that UTF-8 never uses.
INSTANTIATE_TEST_SUITE_P(Families,
                         TextTest,
                         testing::Values("gpt-2", "llama-bpe", "gpt-neox", "llama-spm", "phi-3"),
                         name_of);

TEST(Qwen2Tokenizer, TextComesBackInNormalFormC) {
  auto tokenizer = load_packed_gguf("vectors/qwen2.gguf.gz");
  std::mt19937 random(13);
  for (int round = 0; round < 300; ++round) {
    std::string text =
        round % 2 == 0 ? random_utf8(random, random() % 300) : random_bytes(random, random() % 200);
    auto ids = tokenizer->encode(text, SpecialTokens::kParse);
    ASSERT_EQ(tokenizer->decode(ids, SpecialTokens::kAsText),
              to_unicode_form(text, UnicodeForm::kNfc));
  }
}

TEST(GgufTokenizer, LlamaModelsExpectBosByDefault) {
  EXPECT_TRUE(load_packed_gguf("vectors/llama-bpe.gguf.gz")->bos_for_prompts);
  EXPECT_TRUE(load_packed_gguf("vectors/llama-spm.gguf.gz")->bos_for_prompts);
  EXPECT_FALSE(load_packed_gguf("vectors/gpt-2.gguf.gz")->bos_for_prompts);
  EXPECT_FALSE(load_packed_gguf("vectors/qwen2.gguf.gz")->bos_for_prompts);
}

TEST(GgufTokenizer, FindsTheTokensThatEndAnAnswer) {
  auto llama = load_packed_gguf("vectors/llama-bpe.gguf.gz");
  EXPECT_EQ(llama->end_of_turn_ids, (std::vector<int32_t>{128001, 128009}));
  auto phi = load_packed_gguf("vectors/phi-3.gguf.gz");
  EXPECT_EQ(phi->end_of_turn_ids, (std::vector<int32_t>{32000, 32007}));
}

TEST(GgufTokenizer, Phi3MarkersSwallowTheWhiteSpaceBehindThem) {
  auto tokenizer = load_packed_gguf("vectors/phi-3.gguf.gz");
  auto ids = tokenizer->encode("<|user|>\nHi<|end|>\n<|assistant|>\n", SpecialTokens::kParse);
  EXPECT_EQ(ids, (std::vector<int32_t>{32010, 6324, 32007, 32001}));
}

TEST(GgufTokenizer, SentencePieceDropsTheSpaceThatItAdded) {
  auto tokenizer = load_packed_gguf("vectors/llama-spm.gguf.gz");
  auto ids = tokenizer->encode("<s>Hello", SpecialTokens::kParse);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 15043}));
  EXPECT_EQ(tokenizer->bytes_of(15043), " Hello");
  EXPECT_EQ(tokenizer->decode(ids, SpecialTokens::kParse), "Hello");
  EXPECT_EQ(tokenizer->bytes_of(13), "\n");
}

// The conversation as the model sees it, without the space that the tokenizer itself adds to the
// text behind a marker.
std::string mistral_prompt(const char* file, const std::vector<std::string>& markers) {
  std::string text = read_file(tokenizer_test_folder() / "mistral/no_tools" / file);
  text = replace_all(text, kSpaceSymbol, " ");
  for (const std::string& marker : markers) text = replace_all(text, marker + " ", marker);
  return text;
}

TEST(SentencePieceTokenizer, MistralConversationsHaveTheReferenceTokens) {
  auto folder = tokenizer_test_folder() / "mistral";
  auto first = load_sentencepiece(folder / "tokenizer.model.v1");
  EXPECT_EQ(first->encode(mistral_prompt("text_v1.txt", {"<s>", "</s>"}), SpecialTokens::kParse),
            read_token_list(folder / "no_tools/tokens_v1.json"));
  auto third = load_sentencepiece(folder / "mistral_instruct_tokenizer_240323.model.v3");
  EXPECT_EQ(third->encode(mistral_prompt("text_v3.txt", {"<s>", "</s>", "[INST]", "[/INST]"}),
                          SpecialTokens::kParse),
            read_token_list(folder / "no_tools/tokens_v3.json"));
  EXPECT_EQ(third->bos_id, 1);
  EXPECT_TRUE(third->bos_for_prompts);
}

TEST(SentencePieceTokenizer, AgreesWithSentencePiece) {
  auto folder = tokenizer_test_folder() / "mistral";
  for (const char* name : {"tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"}) {
    auto cases = read_golden(folder / (std::string(name) + ".golden.json"));
    auto tokenizer = load_sentencepiece(folder / name);
    expect_golden(*tokenizer, cases);
    expect_decoded(*tokenizer, cases);
  }
}

// Of this thread alone, whatever else the machine does.
double processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

double encode_ms(const Tokenizer& tokenizer, const std::string& text) {
  double begin = processor_ms();
  EXPECT_FALSE(tokenizer.encode(text, SpecialTokens::kParse).empty());
  return processor_ms() - begin;
}

TEST(TokenizerSpeed, WordsOfAMegabyteTakeTimeInProportion) {
  constexpr size_t kSmall = 1 << 16;
  constexpr size_t kLarge = 1 << 20;
  for (const char* name : {"smollm2.gguf.gz", "vectors/llama-spm.gguf.gz"}) {
    auto tokenizer = load_packed_gguf(name);
    for (const std::string& text :
         {std::string(kLarge, 'a'), random_letters(kLarge), std::string(kLarge, ' ')}) {
      double small = 0;
      for (int round = 0; round < 3; ++round) {
        small = std::max(small, encode_ms(*tokenizer, text.substr(0, kSmall)));
      }
      double large = encode_ms(*tokenizer, text);
      // 16 times the text: n log n with cache misses stays far below the 256 of n squared.
      EXPECT_LT(large, 80 * small) << name << ' ' << text.substr(0, 4);
    }
  }
}

}  // namespace
}  // namespace droidspeak
