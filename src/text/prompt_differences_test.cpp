#include "text/prompt_differences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "text/tokenizer_test_support.h"

namespace droidspeak {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A base and a variant with the same tokenizer.
class PromptDifferences : public testing::Test {
 protected:
  PromptDifferences() {
    for (const char* name : {"base", "variant"}) {
      std::filesystem::create_directory(folder_.path() / name);
      std::filesystem::copy_file(tokenizer_test_folder() / "tiny/llama2/tokenizer.json",
                                 folder_.path() / name / "tokenizer.json");
    }
    write("base/tokenizer_config.json", R"({"eos_token": "</s>", "chat_template": "T"})");
    write("base/generation_config.json", R"({"eos_token_id": [2, 5]})");
  }

  void write(const char* name, const std::string& content) const {
    write_file_atomically(folder_.path() / name, content);
  }

  std::vector<std::string> differences() const {
    return describe_prompt_differences(*load_hf_tokenizer(folder_.path() / "base"),
                                       folder_.path() / "variant");
  }

  TemporaryFolder folder_;
};

TEST_F(PromptDifferences, AreNotWhatTheVariantDoesNotSay) {
  EXPECT_THAT(differences(), IsEmpty());
  write("variant/tokenizer_config.json", R"({"eos_token": "</s>", "chat_template": "T\n"})");
  EXPECT_THAT(differences(), IsEmpty());
}

TEST_F(PromptDifferences, AreToldOneByOne) {
  write("variant/tokenizer_config.json",
        R"({"bos_token": "</s>", "eos_token": "</s>", "add_bos_token": false})");
  write("variant/chat_template.jinja", "U");
  write("variant/generation_config.json", R"({"eos_token_id": [2, 6]})");
  EXPECT_THAT(differences(),
              ElementsAre("its chat template is another one; the base's is used",
                          HasSubstr("its BOS is \"</s>\"; the base's is used, \"<s>\""),
                          "its prompts begin without BOS; the base's way is used",
                          HasSubstr("its answers end with token 6 ")));
}

TEST_F(PromptDifferences, AreWhatStandsBehindPrompts) {
  write("variant/tokenizer_config.json", R"({"add_eos_token": true, "eos_token": "</s>"})");
  EXPECT_THAT(differences(),
              ElementsAre("token 2 stands behind its prompts; the base's way is used"));
  std::filesystem::remove(folder_.path() / "variant/tokenizer.json");
  EXPECT_THAT(differences(), ElementsAre(HasSubstr("token 2 stands behind its prompts")));
  write("base/tokenizer_config.json", R"({"add_eos_token": true, "eos_token": "</s>"})");
  EXPECT_THAT(differences(), IsEmpty());
  write("variant/tokenizer_config.json", R"({"add_eos_token": false})");
  EXPECT_THAT(differences(),
              ElementsAre("nothing stands behind its prompts; the base's way is used"));
}

// An adapter's folder, say.
TEST_F(PromptDifferences, AreFoundWithoutATokenizer) {
  std::filesystem::remove(folder_.path() / "variant/tokenizer.json");
  EXPECT_THAT(differences(), IsEmpty());
  write("variant/chat_template.jinja", "U");
  write("variant/tokenizer_config.json", R"({"eos_token": "<s>", "add_bos_token": true})");
  EXPECT_THAT(differences(), ElementsAre("its chat template is another one; the base's is used",
                                         HasSubstr("its answers end with token 1 ")));
  write("variant/generation_config.json", R"({"eos_token_id": [1, 6]})");
  EXPECT_THAT(differences(), ElementsAre("its chat template is another one; the base's is used",
                                         HasSubstr("its answers end with token 1 "),
                                         HasSubstr("its answers end with token 6 ")));
}

TEST_F(PromptDifferences, OfFilesThatCannotBeReadAreErrors) {
  write("variant/tokenizer_config.json", "[]");
  EXPECT_THROW(differences(), Failure);
}

}  // namespace
}  // namespace droidspeak
