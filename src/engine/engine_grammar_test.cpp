// Answers that follow a grammar.
#include <gtest/gtest.h>

#include "base/file.h"
#include "engine/engine_fixture.h"
#include "grammar/grammar_compiler.h"
#include "text/tokenizer.h"

namespace droidspeak {
namespace {

class EngineGrammarTest : public testing::Test {
 protected:
  std::shared_ptr<const CompiledGrammar> compile(const std::string& regex) {
    return compiler_.compile({OutputFormat::Kind::kRegex, regex}).take_or_throw();
  }

  GenerationRequest request(const std::string& model,
                            const std::string& regex,
                            float temperature = 1) {
    GenerationRequest wanted{.model = model,
                             .prompt = random_prompt(7, 200),
                             .max_tokens = 40,
                             .sampling = {.temperature = temperature, .seed = 5}};
    wanted.grammar = compile(regex);
    return wanted;
  }

  std::string text_of(const Outcome& outcome) const {
    return tokenizer_->decode(outcome.tokens, SpecialTokens::kParse);
  }

  TinyFamily family_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_hf_tokenizer(family_.file().base.path);
  GrammarCompiler compiler_{*tokenizer_, family_.models().config().vocab_size};
};

bool is_word(const std::string& text, size_t low, size_t high) {
  return text.size() >= low && text.size() <= high &&
         std::ranges::all_of(text, [](char c) { return c >= 'a' && c <= 'c'; });
}

TEST_F(EngineGrammarTest, AFinishedGrammarEndsTheAnswer) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  for (float temperature : {0.0f, 1.0f}) {
    Outcome outcome = generate(engine, request("alpha", "[abc]{8}", temperature));
    ASSERT_TRUE(outcome.finished);
    EXPECT_EQ(outcome.finished->reason, FinishReason::kStop);
    EXPECT_TRUE(is_word(text_of(outcome), 8, 8)) << text_of(outcome);
  }
}

TEST_F(EngineGrammarTest, CutsAtTheLimitAndEndsAtTheEndToken) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  Outcome cut = generate(engine, request("base", "[abc]{60}"));
  ASSERT_TRUE(cut.finished);
  EXPECT_EQ(cut.finished->reason, FinishReason::kLength);
  EXPECT_TRUE(is_word(text_of(cut), 40, 40));
  GenerationRequest open = request("base", "[abc]{1,39}");  // without stop tokens of its own
  Outcome ended = generate(engine, open);
  ASSERT_TRUE(ended.finished);
  EXPECT_EQ(ended.finished->reason, FinishReason::kStop);
  EXPECT_TRUE(is_word(text_of(ended), 1, 39));
}

// Alone, with others, after a preemption and on a sender's caches the grammar holds, and where the
// prompt is computed exactly the answer is the same.
TEST_F(EngineGrammarTest, AnswersDoNotDependOnTheBatch) {
  std::vector<Outcome> alone;
  {
    Engine engine(family_.ops(), family_.file(), tiny_options());
    for (const char* name : {"base", "alpha", "beta"})
      alone.push_back(generate(engine, request(name, "[abc]{30}")));
  }
  for (int32_t num_blocks : {64, 9}) {  // with 9, one of the three has to wait and read again
    Engine engine(family_.ops(), family_.file(), tiny_options(num_blocks));
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const char* name : {"base", "alpha", "beta"}) {
      streams.push_back(*engine.submit(request(name, "[abc]{30}")));
      GenerationRequest free = request(name, "[abc]");
      free.grammar = nullptr;
      streams.push_back(*engine.submit(free));
    }
    for (size_t i = 0; i < alone.size(); ++i) {
      Outcome outcome = collect(*streams[2 * i]);
      EXPECT_EQ(outcome.tokens, alone[i].tokens);
      EXPECT_TRUE(is_word(text_of(outcome), 30, 30));
      EXPECT_EQ(collect(*streams[2 * i + 1]).tokens.size(), 40u);
    }
  }
}

// Forced text is drafted and goes through the model in one step; what comes is what would have come
// token by token, in every bit.
TEST_F(EngineGrammarTest, ForcedTextIsDraftedAndChangesNothing) {
  const char* kFormats[] = {"(abc){12}", "[ab]{2}hello world[ab]", "(first answer|second answer)x*",
                            "a+ of a kind, b+ of another"};
  auto run = [&](Speculation speculation, int32_t num_blocks) {
    EngineOptions options = tiny_options(num_blocks);
    options.speculation = speculation;
    Engine engine(family_.ops(), family_.file(), options);
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (float temperature : {0.0f, 1.0f}) {
      for (const char* format : kFormats) {
        GenerationRequest wanted = request("alpha", format, temperature);
        wanted.num_top_logprobs = 2;
        streams.push_back(*engine.submit(wanted));
      }
    }
    std::vector<Outcome> outcomes;
    for (auto& stream : streams) outcomes.push_back(collect(*stream));
    return std::pair(outcomes, engine.metrics());
  };
  auto [slow, counted] = run(Speculation::kNone, 64);
  EXPECT_EQ(counted.drafted_tokens, 0u);
  for (int32_t num_blocks : {64, 20}) {
    auto [fast, metrics] = run(Speculation::kForced, num_blocks);
    EXPECT_GT(metrics.accepted_tokens, 8u);
    for (size_t i = 0; i < slow.size(); ++i) {
      ASSERT_TRUE(fast[i].finished) << i;
      EXPECT_EQ(fast[i].tokens, slow[i].tokens) << i;
      EXPECT_EQ(fast[i].finished->reason, slow[i].finished->reason) << i;
      EXPECT_EQ(fast[i].finished->stop_token, slow[i].finished->stop_token) << i;
      ASSERT_EQ(fast[i].sampled.size(), slow[i].sampled.size());
      for (size_t t = 0; t < fast[i].sampled.size(); ++t)
        EXPECT_EQ(fast[i].sampled[t].logprob, slow[i].sampled[t].logprob) << i << " " << t;
    }
  }
}

// With a plan that looks at tokens the scout drafts a token, which is no part of the answer.
TEST_F(EngineGrammarTest, HoldsWithEveryPlan) {
  family_.add_book("base", "alpha", {{{0, 2, 3}, 0.995}});
  for (const char* plan : {"full", "reuse", "0,2,3", "reuse+10%", "0,2,3+5%"}) {
    SCOPED_TRACE(plan);
    Engine engine(family_.ops(), family_.file(), tiny_options());
    ASSERT_TRUE(generate(engine, request("base", "[abc]")).finished);
    GenerationRequest shared = request("alpha", "[abc]{20}");
    shared.sharing = {SharingRequest::Mode::kExplicit, "base", plan};
    Outcome outcome = generate(engine, shared);
    ASSERT_TRUE(outcome.finished) << (outcome.error ? outcome.error->message : "");
    EXPECT_EQ(outcome.report.plan, plan);
    EXPECT_TRUE(is_word(text_of(outcome), 20, 20)) << text_of(outcome);
  }
}

TEST_F(EngineGrammarTest, LogprobsAreThoseOfTheModel) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  GenerationRequest wanted = request("base", "[abc]{3}");
  wanted.num_top_logprobs = 320;
  Outcome outcome = generate(engine, wanted);
  ASSERT_EQ(outcome.sampled.size(), 3u);
  for (const SampledToken& token : outcome.sampled) {
    auto same = std::ranges::find_if(
        token.top, [&](const TokenLogprob& other) { return other.token == token.token; });
    ASSERT_NE(same, token.top.end());
    EXPECT_FLOAT_EQ(same->logprob, token.logprob);
    EXPECT_LT(token.logprob, -1);  // one of 320, not of three
  }
}

TEST_F(EngineGrammarTest, AGrammarOfAnotherVocabularyIsRefused) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  GrammarCompiler other(*tokenizer_, 1000);
  GenerationRequest wanted = request("base", "a");
  wanted.grammar = other.compile({OutputFormat::Kind::kRegex, "a"}).take_or_throw();
  Outcome outcome = generate(engine, wanted);
  ASSERT_TRUE(outcome.error);
  EXPECT_EQ(outcome.error->code, ErrorCode::kInvalidArgument);
}

// Bytes beyond ASCII are no tokens of this tokenizer, which has only half of them.
class AsciiTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view, SpecialTokens) const override { return {}; }

  std::string_view bytes_of(int32_t id) const override {
    return {&kBytes[static_cast<size_t>(id)], 1};
  }

  std::string decode(const std::vector<int32_t>&, SpecialTokens) const override { return ""; }

  int32_t vocab_size() const override { return 128; }

  bool is_special(int32_t) const override { return false; }

  int32_t find(std::string_view) const override { return -1; }

 private:
  static constexpr std::array<char, 128> kBytes = [] {
    std::array<char, 128> bytes{};
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
    return bytes;
  }();
};

TEST_F(EngineGrammarTest, WhereNoTokenFitsOnlyThatRequestEnds) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  AsciiTokenizer ascii;
  GrammarCompiler compiler(ascii, family_.models().config().vocab_size);
  GenerationRequest stuck = request("base", "a");
  stuck.grammar = compiler.compile({OutputFormat::Kind::kRegex, "ab\xC3\xA9"}).take_or_throw();
  auto first = *engine.submit(stuck);
  auto second = *engine.submit(request("base", "[abc]{30}"));
  Outcome failed = collect(*first);
  ASSERT_TRUE(failed.error);
  EXPECT_NE(failed.error->message.find("no token"), std::string::npos) << failed.error->message;
  EXPECT_EQ(failed.error->code, ErrorCode::kInvalidArgument) << "who asks for it can change it";
  EXPECT_TRUE(is_word(text_of(collect(*second)), 30, 30));
}

TEST_F(EngineGrammarTest, StopTokensWaitForTheLeastTokens) {
  Engine engine(family_.ops(), family_.file(), tiny_options());
  std::set<int32_t> all_but_two;
  for (int32_t token = 2; token < 320; ++token) all_but_two.insert(token);
  GenerationRequest wanted{.model = "base", .prompt = random_prompt(3, 20), .max_tokens = 30};
  wanted.stop_tokens = all_but_two;
  wanted.min_tokens = 9;
  Outcome outcome = generate(engine, wanted);
  ASSERT_TRUE(outcome.finished);
  EXPECT_GE(outcome.tokens.size(), 9u);
  for (size_t i = 0; i < 9; ++i) EXPECT_LT(outcome.tokens[i], 2);
}

}  // namespace
}  // namespace droidspeak
