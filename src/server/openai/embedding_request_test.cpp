#include "server/openai/embedding_request.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/base64.h"
#include "server/openai/limits.h"

namespace droidspeak::openai {

namespace {

using testing::ElementsAre;

std::string embedding_param(const std::string& fields) {
  auto request = parse_embedding_request(R"({"model":"m",)" + fields + "}");
  return request ? "accepted" : request.error().param;
}

std::string rerank_param(const std::string& fields) {
  auto request = parse_rerank_request(R"({"model":"m",)" + fields + "}");
  return request ? "accepted" : request.error().param;
}

TEST(EmbeddingRequest, TakesTextsAndTokens) {
  auto request = parse_embedding_request(
      R"({"model":"m","input":["a",[1,2]],"encoding_format":"base64","dimensions":8,"priority":-2})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_THAT(request->inputs, ElementsAre(Prompt("a"), Prompt(std::vector<int32_t>{1, 2})));
  EXPECT_EQ(request->format, EmbeddingFormat::kBase64);
  EXPECT_EQ(request->dimensions, 8);
  EXPECT_EQ(request->priority, -2);
  auto tokens = parse_embedding_request(R"({"model":"m","input":[1,2]})");
  ASSERT_TRUE(tokens);
  EXPECT_EQ(tokens->inputs.size(), 1u);
  EXPECT_EQ(tokens->format, EmbeddingFormat::kFloat);
}

TEST(EmbeddingRequest, IsRefusedByTheNameOfWhatIsWrong) {
  EXPECT_EQ(embedding_param(R"("user":"x")"), "input");
  EXPECT_EQ(embedding_param(R"("input":"")"), "input");
  EXPECT_EQ(embedding_param(R"("input":[])"), "input");
  EXPECT_EQ(embedding_param(R"("input":["a",""])"), "input");
  EXPECT_EQ(embedding_param(R"("input":["a",7])"), "input");
  EXPECT_EQ(embedding_param(R"("input":[-1])"), "input");
  EXPECT_EQ(embedding_param(R"("input":{})"), "input");
  std::string many = R"("a")";
  for (size_t i = 0; i < kMaxPrompts; ++i) many += R"(,"a")";
  EXPECT_EQ(embedding_param(R"("input":[)" + many + "]"), "input");
  EXPECT_EQ(embedding_param(R"("input":"a","encoding_format":"int8")"), "encoding_format");
  EXPECT_EQ(embedding_param(R"("input":"a","dimensions":0)"), "dimensions");
  EXPECT_EQ(embedding_param(R"("input":"a","truncate_prompt_tokens":5)"), "truncate_prompt_tokens");
}

TEST(EmbeddingRequest, TakesWhatIsDoneAnyway) {
  for (const char* field : {R"("normalize":true)", R"("normalize":null)",
                            R"("embed_dtype":"float32")", R"("embed_dtype":null)"})
    EXPECT_EQ(embedding_param(R"("input":"a",)" + std::string(field)), "accepted") << field;
  for (const char* value : {"false", "0", R"("")", "[]"})
    EXPECT_EQ(embedding_param(fmt::format(R"("input":"a","normalize":{})", value)), "normalize");
  for (const char* value : {"false", R"("float16")", R"("")", "[]"})
    EXPECT_EQ(embedding_param(fmt::format(R"("input":"a","embed_dtype":{})", value)),
              "embed_dtype");
}

TEST(EmbeddingRequest, RefusesWhatItDoesNotDoWithAnyValue) {
  for (const char* name : {"truncate_prompt_tokens", "messages", "additional_data", "endianness"}) {
    for (const char* value : {"false", "true", "0", R"("")", "[]", "{}"})
      EXPECT_EQ(embedding_param(fmt::format(R"("input":"a","{}":{})", name, value)), name) << value;
    EXPECT_EQ(embedding_param(fmt::format(R"("input":"a","{}":null)", name)), "accepted");
  }
  for (const char* name : {"truncate_prompt_tokens", "max_chunks_per_doc", "max_tokens_per_doc",
                           "rank_fields", "activation", "use_activation", "instruction"}) {
    for (const char* value : {"false", "0", R"("")", "[]"})
      EXPECT_EQ(rerank_param(fmt::format(R"("query":"q","documents":["a"],"{}":{})", name, value)),
                name)
          << value;
  }
}

TEST(RerankRequest, TakesDocumentsInBothShapes) {
  auto request = parse_rerank_request(
      R"({"model":"m","query":"q","documents":["a",{"text":"b"}],"top_n":9,"return_documents":false})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_THAT(request->documents, ElementsAre("a", "b"));
  EXPECT_EQ(request->num_results, 2u);
  EXPECT_FALSE(request->returns_documents);
}

TEST(RerankRequest, IsRefusedByTheNameOfWhatIsWrong) {
  EXPECT_EQ(rerank_param(R"("documents":["a"])"), "query");
  EXPECT_EQ(rerank_param(R"("query":"","documents":["a"])"), "query");
  EXPECT_EQ(rerank_param(R"("query":"q")"), "documents");
  EXPECT_EQ(rerank_param(R"("query":"q","documents":[])"), "documents");
  EXPECT_EQ(rerank_param(R"("query":"q","documents":["a",""])"), "documents[1]");
  EXPECT_EQ(rerank_param(R"("query":"q","documents":[7])"), "documents[0]");
  EXPECT_EQ(rerank_param(R"("query":"q","documents":[{}])"), "documents[0].text");
  EXPECT_EQ(rerank_param(R"("query":"q","documents":["a"],"top_n":0)"), "top_n");
  EXPECT_EQ(rerank_param(R"("query":"q","documents":["a"],"instruction":"x")"), "instruction");
}

TEST(Base64, IsThatOfTheStandard) {
  auto encoded = [](const std::string& text) {
    return base64(std::vector<uint8_t>(text.begin(), text.end()));
  };
  EXPECT_EQ(encoded(""), "");
  EXPECT_EQ(encoded("f"), "Zg==");
  EXPECT_EQ(encoded("fo"), "Zm8=");
  EXPECT_EQ(encoded("foo"), "Zm9v");
  EXPECT_EQ(encoded("foobar\xff"), "Zm9vYmFy/w==");
}

}  // namespace

}  // namespace droidspeak::openai
