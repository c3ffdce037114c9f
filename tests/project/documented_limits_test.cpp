// The table of limits in docs/http_api.md against the program's, both ways.
#include <limits>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "grammar/grammar_compiler.h"
#include "grammar/grammar_text.h"
#include "grammar/schema_grammar.h"
#include "server/openai/json_document.h"
#include "server/openai/limits.h"
#include "server/openai/requests.h"
#include "server/server.h"

namespace droidspeak {
namespace {

using openai::JsonDocument;
using testing::HasSubstr;

std::string limits_section() {
  std::string text = read_file(std::string(DROIDSPEAK_SOURCE_DIR) + "/docs/http_api.md");
  size_t begin = text.find("\n### Limits\n");
  EXPECT_NE(begin, std::string::npos);
  return text.substr(begin, text.find("\n#", begin + 2) - begin);
}

// By what stands in their first column.
std::map<std::string, std::string> documented_limits() {
  static const std::regex kRow(R"(\n\| ([^|]+) \| ([^|]+) \|)");
  std::string text = limits_section();
  text = text.substr(text.find("|---|"));
  std::map<std::string, std::string> rows;
  for (std::sregex_iterator i(text.begin(), text.end(), kRow), end; i != end; ++i)
    rows[(*i)[1]] = (*i)[2];
  return rows;
}

std::string size_text(size_t bytes) {
  if (bytes % (size_t{1} << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes % (size_t{64} << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} bytes", bytes);
}

// Whether the largest is taken and one more is not, and this field is named.
void expect_most(const std::string& field, int64_t most) {
  auto wrong_field = [&](int64_t value) {
    auto request = openai::parse_completion_request(
        fmt::format(R"({{"model": "m", "prompt": "x", "{}": {}}})", field, value));
    return request ? std::string() : request.error().param;
  };
  EXPECT_EQ(wrong_field(most), "") << field;
  EXPECT_EQ(wrong_field(most + 1), field);
}

std::map<std::string, std::vector<std::string>> real_limits() {
  using namespace openai;
  const SchemaLimits schema;
  const GrammarLimits grammars;
  const ServerOptions server;
  return {
      {"body",
       {size_text(server.max_body_bytes), fmt::format("{} values", JsonDocument::kMaxValues),
        fmt::format("{} keys", JsonDocument::kMaxKeys),
        fmt::format("{} levels", JsonDocument::kMaxDepth)}},
      {"`model`, `sharing.sender`", {size_text(kMaxModelNameBytes)}},
      {"`sharing.plan`", {size_text(kMaxPlanBytes)}},
      {"`cache_salt`", {size_text(kMaxSaltBytes)}},
      {"`user`, `safety_identifier`, `prompt_cache_key`", {size_text(kMaxUserBytes)}},
      {"`metadata`",
       {fmt::format("{} entries, keys of {} bytes, values of {} bytes", kMaxMetadataEntries,
                    kMaxMetadataKeyBytes, kMaxMetadataValueBytes)}},
      {"`stop`", {fmt::format("{} strings of {} bytes", kMaxStops, kMaxStopBytes)}},
      {"`stop_token_ids`", {fmt::to_string(kMaxStopTokens)}},
      {"`logit_bias`", {fmt::format("{} entries", kMaxBiases)}},
      {"a schema",
       {size_text(kMaxSchemaBytes), size_text(schema.bytes),
        fmt::format("{} levels, {} values, {} keys", schema.depth, schema.values, schema.keys)}},
      {"all schemas of a request, as grammars",
       {fmt::format("{} states, {} rules, {}", grammars.states, grammars.rules,
                    size_text(grammars.bytes)),
        size_text(GrammarCompiler::kMostBytes) + " once compiled"}},
      {"`json_schema.name`", {size_text(kMaxSchemaNameBytes)}},
      {"`structured_outputs.regex`, `pattern`", {size_text(kMaxRegexBytes)}},
      {"`structured_outputs.choice`",
       {fmt::format("{} texts, {} together", kMaxOutputChoices, size_text(kMaxOutputChoiceBytes))}},
      {"`structured_outputs.grammar`", {size_text(kMaxGrammarBytes)}},
      {"`messages`",
       {fmt::format("{}, each with at most {} parts", kMaxMessages, kMaxParts),
        "`name` " + size_text(kMaxAuthorBytes)}},
      {"`tools`",
       {fmt::format("{}, each of {} and all of {}", kMaxTools, size_text(kMaxToolBytes),
                    size_text(kMaxToolsBytes)),
        "names of " + size_text(kMaxToolNameBytes)}},
      {"`tool_calls` of a message",
       {fmt::format("{}; ids of {}", kMaxToolCalls, size_text(kMaxCallIdBytes))}},
      {"`input`", {fmt::format("{} items, each with at most {} parts", kMaxMessages, kMaxParts)}},
      {"`instructions`", {size_text(kMaxInstructionBytes)}},
      {"`stop_sequences`", {"as `stop`"}},
      {"`chat_template_kwargs`",
       {fmt::format("{}, {} keys, {} levels", size_text(kMaxTemplateArgumentBytes),
                    kMaxTemplateArguments, kMaxTemplateArgumentDepth)}},
      {"`prompt`",
       {fmt::format("{} prompts, {} tokens", kMaxPrompts, kMaxPromptTokens),
        size_text(kMaxRepeatedBytes) + " of text"}},
      {"`tokens` of `/detokenize`", {size_text(kMaxRepeatedBytes) + " of text"}},
      {"`input` of embeddings, `query` and `documents`",
       {fmt::format("{} texts, {} tokens and {} numbers", kMaxPrompts, kMaxPromptTokens,
                    kMaxEmbeddingValues)}},
      {"`n`", {fmt::format("128, and {} choices", kMaxChoices)}},
      {"`logprobs`, `top_logprobs`", {fmt::format("20, and {} values", kMaxLogprobValues)}},
      {"prompt and `max_tokens` of one choice", {"the context length"}},
      {"`lora_name`, `lora_path`",
       {fmt::format("{} and {} bytes", kMaxAdapterNameBytes, kMaxAdapterPathBytes)}},
      {"`max_tokens` and its other names, `min_tokens`, `top_k`, `top_n`, `priority` either way, "
       "token ids",
       {fmt::to_string(std::numeric_limits<int32_t>::max())}},
      {"`ttft_slo_ms`", {"1000000000000"}},
      {"other texts: of messages, of `system`, of prompts and documents, `arguments` of calls",
       {"what the body may hold"}}};
}

TEST(DocumentedLimits, AreThoseOfTheProgram) {
  std::map<std::string, std::string> left = documented_limits();
  for (const auto& [field, limits] : real_limits()) {
    ASSERT_TRUE(left.contains(field)) << field;
    for (const std::string& limit : limits) EXPECT_THAT(left[field], HasSubstr(limit));
    left.erase(field);
  }
  for (const auto& [field, limit] : left)
    ADD_FAILURE() << field << " has a limit that this test does not know: " << limit;
}

TEST(DocumentedLimits, OfNumbersAreThoseOfTheReaders) {
  for (const char* field : {"max_tokens", "min_tokens", "top_k", "priority"})
    expect_most(field, std::numeric_limits<int32_t>::max());
  expect_most("ttft_slo_ms", 1'000'000'000'000);
  expect_most("n", 128);
  expect_most("logprobs", 20);
  expect_most("prompt_logprobs", 20);
}

TEST(DocumentedLimits, OfAllRequestsTogetherAreThoseOfTheProgram) {
  std::string text = limits_section();
  EXPECT_THAT(text, HasSubstr(fmt::format("{} tokens of prompts", openai::kAllPromptTokens)));
  EXPECT_THAT(text, HasSubstr(fmt::format("each choice counts as {} more", openai::kChoiceTokens)));
  EXPECT_THAT(text, HasSubstr(fmt::format("{} values of logprobs", openai::kAllLogprobValues)));
  EXPECT_THAT(text, HasSubstr(size_text(GrammarCompiler::kAllBytes) + " of compiled formats"));
}

}  // namespace
}  // namespace droidspeak
