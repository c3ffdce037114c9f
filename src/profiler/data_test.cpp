#include "profiler/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

class DataTest : public testing::Test {
 protected:
  DataTest() {
    write_tiny_checkpoint(folder_.path() / "model");
    tokenizer_ = load_hf_tokenizer(folder_.path() / "model");
  }

  std::filesystem::path write(const std::string& text) {
    std::filesystem::path path = folder_.path() / "rows.jsonl";
    write_file_atomically(path, text);
    return path;
  }

  std::string failure_of(const std::string& text) {
    try {
      read_qa_file(write(text));
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "no failure";
  }

  TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

constexpr const char* kRow =
    R"({"id":"x","documents":[{"title":"Paris","text":"A city."},{"title":"Rome","text":"Another one."}],"question":"Which?","answers":["Paris"]})";

TEST_F(DataTest, LaysPromptsOutAsTheModelsWereTrained) {
  QaFile file = read_qa_file(write(std::string(kRow) + "\n"));
  QaPrompt prompt = make_qa_prompt(*tokenizer_, file.rows.front());
  EXPECT_EQ(tokenizer_->decode(prompt.tokens, SpecialTokens::kAsText),
            "<|im_start|>system\nYou are a helpful assistant. Read the documents and do what the "
            "user asks.<|im_end|>\n"
            "<|im_start|>user\nParis: A city.\n\nRome: Another one.\n\nQuestion: "
            "Which?<|im_end|>\n<|im_start|>assistant\n");
  std::vector<int32_t> context(prompt.tokens.begin(),
                               prompt.tokens.begin() + prompt.context_tokens);
  EXPECT_TRUE(tokenizer_->decode(context, SpecialTokens::kAsText).ends_with("Another one.\n\n"));
}

TEST_F(DataTest, TheGoldAnswerIsTheShortestAndIsCut) {
  QaPrompt prompt;
  EXPECT_TRUE(gold_tokens(*tokenizer_, prompt, 8).empty());
  prompt.answers = {"Paris, France", "Paris", "London"};
  EXPECT_EQ(gold_tokens(*tokenizer_, prompt, 8),
            tokenizer_->encode("Paris", SpecialTokens::kAsText));
  EXPECT_EQ(gold_tokens(*tokenizer_, prompt, 2), tokenizer_->encode("Pa", SpecialTokens::kAsText));
  prompt.answers = {"<|im_end|>"};
  EXPECT_EQ(gold_tokens(*tokenizer_, prompt, 32).size(), 10u) << "as text";
  prompt.answers = {"Paris", ""};
  EXPECT_EQ(gold_tokens(*tokenizer_, prompt, 8),
            tokenizer_->encode("Paris", SpecialTokens::kAsText));
  prompt.answers = {""};
  EXPECT_TRUE(gold_tokens(*tokenizer_, prompt, 8).empty());
}

TEST_F(DataTest, NamesFileAndLineOfWhatIsWrong) {
  std::string good = std::string(kRow) + "\n";
  EXPECT_THAT(failure_of(good + "{\"id\":"), HasSubstr("rows.jsonl:2: not valid JSON"));
  EXPECT_THAT(failure_of(good + "\n[1]\n"), HasSubstr("rows.jsonl:3: array: expected an object"));
  EXPECT_THAT(failure_of(R"({"documents":[],"question":"?","answers":[]})"),
              HasSubstr("documents are empty"));
  EXPECT_THAT(failure_of(R"({"documents":[{"title":"a","text":" "}],"question":"?","answers":[]})"),
              HasSubstr("documents are empty"));
  EXPECT_THAT(failure_of(R"({"documents":[{"title":"a","text":"b"}],"answers":[]})"),
              HasSubstr("\"question\" is missing"));
  EXPECT_THAT(failure_of(R"({"documents":[{"title":"a","text":3}],"question":"?","answers":[]})"),
              HasSubstr("\"text\" is number"));
  EXPECT_THAT(failure_of("\n\n"), HasSubstr("no rows"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(failure_of(good + R"({"id":)" + deep + "}"),
              HasSubstr("rows.jsonl:2: JSON is nested deeper than 64 levels"));
}

TEST_F(DataTest, SkipsRowsThatDoNotFitAndCountsThem) {
  std::string long_text(500, 'a');
  std::string longer_row = R"({"documents":[{"title":"t","text":")" + long_text +
                           R"("}],"question":"?","answers":["a"]})";
  QaFile file = read_qa_file(write(std::string(kRow) + "\n" + longer_row + "\n"));
  PromptSet set = make_prompts(*tokenizer_, file, {0, 400, 32});
  EXPECT_EQ(set.prompts.size(), 1u);
  EXPECT_EQ(set.num_too_long, 1);
  EXPECT_THAT(describe_skipped(set, {0, 400, 32}), HasSubstr("1 of more than 368 tokens"));
  EXPECT_THROW(make_prompts(*tokenizer_, file, {0, 100, 32}), Failure);
}

TEST_F(DataTest, LimitTakesTheFirstRows) {
  std::string good = std::string(kRow) + "\n";
  QaFile file = read_qa_file(write(good + good + good));
  EXPECT_EQ(make_prompts(*tokenizer_, file, {2, 4096, 32}).prompts.size(), 2u);
}

}  // namespace
}  // namespace droidspeak
