// How much one request may ask of the engine, and all together.
#include "server/engine_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "e2e/tiny_server.h"
#include "server/openai/limits.h"

namespace droidspeak {

namespace {

using testing::ElementsAre;

class EngineLimits : public testing::Test {
 protected:
  using Prompts = std::vector<Shared<std::vector<int32_t>>>;

  static Shared<std::vector<int32_t>> prompt_of(size_t tokens) {
    return std::vector<int32_t>(tokens, 'x');
  }

  static openai::GenerationFields fields_with(std::optional<int32_t> max_tokens) {
    openai::GenerationFields fields;
    fields.max_tokens = max_tokens;
    return fields;
  }

  EngineRequestOptions options(const Prompts& prompts, int32_t top_logprobs = -1) const {
    EngineRequestOptions options;
    options.variant = service_.find_model("base")->variant;
    options.prompts = prompts;
    options.num_top_logprobs = top_logprobs;
    return options;
  }

  // "param code", or how many tokens the first answer may have.
  std::string made(const openai::GenerationFields& fields, const EngineRequestOptions& options) {
    auto requests = make_engine_requests(service_, fields, options);
    if (requests) return std::to_string(requests->front().max_tokens);
    return requests.error().param + " " + requests.error().code;
  }

  TinyServer server_;
  const std::unique_ptr<Tokenizer> tokenizer_ = load_hf_tokenizer(server_.folder() / "base");
  Service service_{server_.engine(), *tokenizer_, {}};
};

TEST_F(EngineLimits, HoldForPromptAndAnswerTogether) {
  auto room = [&](size_t prompt, std::optional<int32_t> max_tokens) {
    return made(fields_with(max_tokens), options({prompt_of(prompt)}));
  };
  const std::string too_long = "prompt context_length_exceeded";
  EXPECT_EQ(room(1, {}), "4095");
  EXPECT_EQ(room(1, 4095), "4095");
  EXPECT_EQ(room(1, 4096), too_long);
  EXPECT_EQ(room(4095, {}), "1");
  EXPECT_EQ(room(4096, {}), too_long);
  EXPECT_EQ(room(4096, 0), "0");
  EXPECT_EQ(room(4097, 0), too_long);
  EXPECT_EQ(room(0, 1), "prompt invalid_value");
  auto refused = make_engine_requests(service_, fields_with(7), options({prompt_of(4090)}));
  EXPECT_EQ(
      refused.error().message,
      "This model's maximum context length is 4096 tokens. However, you requested 4097 tokens "
      "(4090 in the prompt, 7 in the completion). Please reduce the length of the prompt or "
      "completion.");
  refused = make_engine_requests(service_, fields_with({}), options({prompt_of(5000)}));
  EXPECT_THAT(refused.error().message, testing::HasSubstr("requested 5001 tokens (5000 in"));
}

TEST_F(EngineLimits, HoldForTheShortestAnswer) {
  openai::GenerationFields fields = fields_with(5);
  fields.min_tokens = 5;
  EXPECT_EQ(made(fields, options({prompt_of(1)})), "5");
  fields.min_tokens = 6;
  EXPECT_EQ(made(fields, options({prompt_of(1)})), "min_tokens integer_above_max_value");
}

TEST_F(EngineLimits, HoldForTokens) {
  openai::GenerationFields fields = fields_with(1);
  fields.stop_token_ids = {319};
  fields.sampling.logit_bias = std::map<int32_t, float>{{319, 1.0f}};
  Shared<std::vector<int32_t>> last = std::vector<int32_t>{1, 319};
  Shared<std::vector<int32_t>> beyond = std::vector<int32_t>{1, 320};
  EXPECT_EQ(made(fields, options({last})), "1");
  EXPECT_EQ(made(fields, options({last, beyond})), "prompt invalid_value");
  fields.stop_token_ids = {1, 320};
  EXPECT_EQ(made(fields, options({last})), "stop_token_ids invalid_value");
}

TEST_F(EngineLimits, HoldForLogprobs) {
  // Of each token the alternatives and itself: 256 values of 1024 tokens are all.
  openai::GenerationFields fields = fields_with(1024);
  EXPECT_EQ(made(fields, options({prompt_of(1)}, 255)), "1024");
  EXPECT_EQ(made(fields, options({prompt_of(1)}, 256)), "logprobs invalid_value");
  EXPECT_EQ(made(fields, options({prompt_of(1), prompt_of(1)}, 127)), "1024");
  EXPECT_EQ(made(fields, options({prompt_of(1), prompt_of(1)}, 128)), "logprobs invalid_value");
  fields.num_choices = 128;
  EXPECT_EQ(made(fields, options({prompt_of(1)}, 1)), "1024");
  EXPECT_EQ(made(fields, options({prompt_of(1)}, 2)), "logprobs invalid_value");
  EXPECT_EQ(made(fields, options({prompt_of(1)})), "1024") << "none are wanted";
  // An answer whose length was left open is cut.
  fields.max_tokens = {};
  EXPECT_EQ(made(fields, options({prompt_of(1)}, 1)), "1024");
  EXPECT_EQ(made(fields, options({prompt_of(1)}, 3)), "512");
  EXPECT_EQ(made(fields, options({prompt_of(1)})), "4095");
  // Those of the prompt count, too; the larger number of alternatives counts for all.
  openai::GenerationFields scored = fields_with(1);
  scored.prompt_logprobs = 255;
  EXPECT_EQ(made(scored, options({prompt_of(1024)})), "1");
  EXPECT_EQ(made(scored, options({prompt_of(1025)})), "logprobs invalid_value");
  EXPECT_EQ(made(scored, options({prompt_of(1023)}, 0)), "1");
  EXPECT_EQ(made(scored, options({prompt_of(1024)}, 0)), "logprobs invalid_value");
}

TEST_F(EngineLimits, AskForThePromptsLogprobsWhereNothingElseIsWanted) {
  auto wants = [&](int32_t max_tokens, bool embedding, std::optional<int32_t> prompt_logprobs) {
    EngineRequestOptions wanted = options({prompt_of(2)});
    wanted.wants_embedding = embedding;
    openai::GenerationFields fields = fields_with(max_tokens);
    fields.prompt_logprobs = prompt_logprobs;
    auto requests = make_engine_requests(service_, fields, wanted);
    EXPECT_EQ(requests->front().wants_embedding, embedding);
    return requests->front().wants_prompt_logprobs;
  };
  EXPECT_TRUE(wants(0, false, {}));
  EXPECT_FALSE(wants(0, true, {}));
  EXPECT_FALSE(wants(1, false, {}));
  EXPECT_TRUE(wants(1, false, 0));
}

TEST_F(EngineLimits, EndTokensEndAnAnswerUnlessTheyAreIgnored) {
  openai::GenerationFields fields = fields_with(1);
  fields.stop_token_ids = {7};
  auto stops = [&] {
    return *make_engine_requests(service_, fields, options({prompt_of(1)}))->front().stop_tokens;
  };
  EXPECT_THAT(stops(), ElementsAre(7, kTinyEndOfText, kTinyMessageEnd));
  fields.ignores_end_tokens = true;
  EXPECT_THAT(stops(), ElementsAre(7));
}

TEST_F(EngineLimits, SeedsAreRandomUnlessGiven) {
  openai::GenerationFields fields = fields_with(1);
  auto seed = [&] {
    return make_engine_requests(service_, fields, options({prompt_of(1)}))->front().sampling.seed;
  };
  EXPECT_NE(seed(), seed());
  fields.seed = 5;
  EXPECT_EQ(seed(), 5u);
}

TEST_F(EngineLimits, WhatRequestsHoldIsCountedUntilTheyAreAnswered) {
  openai::GenerationFields fields = fields_with(10);
  fields.num_choices = 3;
  fields.kept_bytes = 4000;
  auto requests =
      make_engine_requests(service_, fields, options({prompt_of(20), prompt_of(30)}, 4));
  ASSERT_TRUE(requests);
  {
    HttpRequest request;
    EXPECT_FALSE(reserve_memory(service_, *requests, fields, request));
    EXPECT_EQ(service_.prompt_budget().used(), 4000u / 4 + 2u * 3 * 128 + 50);
    EXPECT_EQ(service_.logprob_budget().used(), 2u * 10 * 5 * 3);
    EXPECT_FALSE(reserve_answer(service_, 400, request));
    EXPECT_EQ(service_.prompt_budget().used(), 4000u / 4 + 2u * 3 * 128 + 50 + 100);
  }
  EXPECT_EQ(service_.prompt_budget().used(), 0u);
  EXPECT_EQ(service_.logprob_budget().used(), 0u);
}

TEST_F(EngineLimits, AFullBudgetIsTooManyRequests) {
  openai::GenerationFields fields = fields_with(10);
  auto requests = make_engine_requests(service_, fields, options({prompt_of(20)}, 4));
  ASSERT_TRUE(requests);
  auto status = [&](Budget& budget, size_t most, size_t left) {
    Budget::Share others(budget);
    EXPECT_TRUE(others.take(most - left));
    HttpRequest request;
    auto error = reserve_memory(service_, *requests, fields, request);
    return error ? error->status : 200;
  };
  EXPECT_EQ(status(service_.prompt_budget(), openai::kAllPromptTokens, 128 + 20), 200);
  EXPECT_EQ(status(service_.prompt_budget(), openai::kAllPromptTokens, 128 + 19), 429);
  EXPECT_EQ(status(service_.logprob_budget(), openai::kAllLogprobValues, 50), 200);
  EXPECT_EQ(status(service_.logprob_budget(), openai::kAllLogprobValues, 49), 429);
}

// Two prompts with three choices each, of which the first is submitted when the adapter changes.
class ChangedAdapter : public EngineLimits {
 protected:
  ChangedAdapter() { write_tiny_adapter(other(), {}, {.seed = 999}); }

  std::filesystem::path other() const { return server_.folder() / "other"; }

  std::shared_ptr<Generation> generation(SharingRequest sharing = {}) {
    openai::GenerationFields fields = fields_with(12);
    fields.num_choices = 3;
    fields.sampling.temperature = 0;
    fields.ignores_end_tokens = true;
    fields.sharing = std::move(sharing);
    EngineRequestOptions wanted = options({prompt_of(200), prompt_of(150)});
    wanted.variant = service_.find_model("alpha")->variant;
    auto requests = make_engine_requests(service_, fields, std::move(wanted));
    return make_generation(service_, fields, std::move(*requests));
  }

  // The texts of all choices, or the error that ended them.
  static std::vector<std::string> texts_of(Generation& generation) {
    std::vector<std::string> texts(generation.num_choices());
    while (!generation.is_done()) {
      auto event = generation.next(std::chrono::seconds(60));
      if (!event) return {"the generation is stuck"};
      if (auto* error = std::get_if<Error>(&*event)) return {error->message};
      auto& piece = std::get<ChoicePiece>(*event);
      texts[static_cast<size_t>(piece.choice)] += piece.text;
    }
    return texts;
  }

  std::vector<std::string> answer(SharingRequest sharing = {}) {
    auto whole = generation(std::move(sharing));
    EXPECT_TRUE(whole->start());
    return texts_of(*whole);
  }
};

TEST_F(ChangedAdapter, AnswersAllOfARequestAsItBegan) {
  const std::vector<std::string> expected = answer();
  for (bool has_begun : {false, true}) {
    auto begun = generation();
    if (has_begun) {
      ASSERT_TRUE(begun->start());
    }
    ASSERT_TRUE(server_.engine().load_adapter("alpha", other()));
    if (!has_begun) {
      ASSERT_TRUE(begun->start());
    }
    EXPECT_EQ(texts_of(*begun), expected) << has_begun;
    EXPECT_NE(answer(), expected) << "the next one is the new adapter's";
    ASSERT_TRUE(server_.engine().load_adapter("alpha", server_.folder() / "adapters/alpha"));
  }
}

TEST_F(ChangedAdapter, FinishesWhatBeganBeforeItWasUnloaded) {
  const SharingRequest from_itself{SharingRequest::Mode::kExplicit, "alpha", "reuse"};
  for (const SharingRequest& sharing : {SharingRequest(), from_itself}) {
    const std::vector<std::string> expected = answer(sharing);
    auto begun = generation(sharing);
    ASSERT_TRUE(begun->start());
    ASSERT_TRUE(server_.engine().unload_adapter("alpha"));
    EXPECT_EQ(texts_of(*begun), expected) << sharing.plan;
    EXPECT_FALSE(service_.find_model("alpha"));
    ASSERT_TRUE(server_.engine().load_adapter("alpha", server_.folder() / "adapters/alpha"));
  }
}

}  // namespace

}  // namespace droidspeak
