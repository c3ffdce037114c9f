#include "server/generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak {

namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// Every byte is a token.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (int c = 0; c < 256; ++c) bytes_.push_back(static_cast<char>(c));
  }

  std::vector<int32_t> encode(std::string_view text, SpecialTokens) const override {
    return {text.begin(), text.end()};
  }

  std::string_view bytes_of(int32_t id) const override {
    return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
  }

  std::string decode(const std::vector<int32_t>& ids, SpecialTokens) const override {
    return {ids.begin(), ids.end()};
  }

  int32_t vocab_size() const override { return 256; }

  bool is_special(int32_t) const override { return false; }

  int32_t find(std::string_view) const override { return -1; }

 private:
  std::string bytes_;
};

// An engine that accepts up to `room` requests at a time and answers what the test pushes.
struct FakeEngine {
  size_t room = 100;
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<TokenStream>> streams;

  Generation::Submit submit() {
    return [this](GenerationRequest request) -> Result<std::shared_ptr<TokenStream>> {
      if (streams.size() >= room) return Error{ErrorCode::kExhausted, "queue full"};
      requests.push_back(std::move(request));
      streams.push_back(std::make_shared<TokenStream>());
      return streams.back();
    };
  }

  void say(size_t stream, std::string_view text) {
    for (char c : text) streams[stream]->push(SampledToken{static_cast<unsigned char>(c), -1, {}});
  }
};

std::vector<GenerationRequest> requests_for(const std::vector<std::vector<int32_t>>& prompts) {
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : prompts) {
    requests.emplace_back();
    requests.back().prompt = prompt;
  }
  return requests;
}

std::string drain_text(Generation& generation, std::vector<ChoicePiece>* pieces = nullptr) {
  std::string text;
  while (auto event = generation.next(milliseconds(0))) {
    auto& piece = std::get<ChoicePiece>(*event);
    text += piece.text;
    if (pieces != nullptr) pieces->push_back(piece);
  }
  return text;
}

TEST(Generation, TurnsTokensIntoText) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}}), {});
  ASSERT_TRUE(generation.start());
  engine.streams[0]->push(PrefillReport{});
  engine.say(0, "hello");
  engine.streams[0]->push(Finished{FinishReason::kLength, -1});
  std::vector<ChoicePiece> pieces;
  EXPECT_EQ(drain_text(generation, &pieces), "hello");
  EXPECT_TRUE(generation.is_done());
  EXPECT_EQ(generation.completion_tokens(), 5);
  EXPECT_EQ(pieces.back().finish, FinishReason::kLength);
  EXPECT_TRUE(generation.prefill(0));
}

TEST(Generation, HoldsTokensUntilTheirTextIsComplete) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}}), {});
  ASSERT_TRUE(generation.start());
  engine.say(0, "\xC3");
  EXPECT_FALSE(generation.next(milliseconds(0)));
  engine.say(0, "\xA4");
  auto piece = std::get<ChoicePiece>(*generation.next(milliseconds(0)));
  EXPECT_EQ(piece.text, "\xC3\xA4");
  EXPECT_EQ(piece.tokens.size(), 2u);
  EXPECT_EQ(piece.offsets, (std::vector<size_t>{0, 0}));
}

TEST(Generation, StopsAtStopStringsAndCancels) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}}),
                        {1, {"END"}, 0, SpecialTokens::kParse});
  ASSERT_TRUE(generation.start());
  engine.say(0, "abENcENDxyz");
  std::vector<ChoicePiece> pieces;
  EXPECT_EQ(drain_text(generation, &pieces), "abENc");
  EXPECT_EQ(pieces.back().finish, FinishReason::kStop);
  EXPECT_TRUE(engine.streams[0]->is_cancelled());
  EXPECT_TRUE(generation.is_done());
}

TEST(Generation, StartsFurtherChoicesOfAPromptWhenItHasBeenRead) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {1}, {1}}), {});
  ASSERT_TRUE(generation.start());
  EXPECT_EQ(engine.streams.size(), 1u);
  engine.streams[0]->push(PrefillReport{});
  generation.next(milliseconds(0));
  generation.next(milliseconds(0));
  EXPECT_EQ(engine.streams.size(), 2u);
}

TEST(Generation, GivesEveryChoiceOfAPromptASeedOfItsOwn) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  std::vector<GenerationRequest> requests = requests_for({{1}, {2}});
  for (GenerationRequest& request : requests) request.sampling.seed = 7;
  Generation generation(engine.submit(), tokenizer, std::move(requests), {2, {}, {}});
  EXPECT_EQ(generation.num_choices(), 4u);
  ASSERT_TRUE(generation.start());
  EXPECT_EQ(engine.streams.size(), 1u);
  engine.streams[0]->push(PrefillReport{});
  drain_text(generation);
  drain_text(generation);
  EXPECT_EQ(engine.streams.size(), 3u);  // the second prompt does not wait for the first
  engine.streams[2]->push(PrefillReport{});
  drain_text(generation);
  drain_text(generation);
  ASSERT_EQ(engine.streams.size(), 4u);
  std::vector<std::pair<int32_t, uint64_t>> submitted;
  for (const GenerationRequest& request : engine.requests)
    submitted.emplace_back(request.prompt->front(), request.sampling.seed);
  using Pair = std::pair<int32_t, uint64_t>;
  EXPECT_THAT(submitted, ElementsAre(Pair{1, 7}, Pair{1, 8}, Pair{2, 7}, Pair{2, 8}));
  EXPECT_EQ(generation.request(1).prompt->front(), 1);
  EXPECT_EQ(generation.request(2).prompt->front(), 2);
}

TEST(Generation, LeavesRoomInTheQueueForOthers) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  engine.room = 1000;
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 200; ++i) prompts.push_back({i});
  Generation generation(engine.submit(), tokenizer, requests_for(prompts), {});
  ASSERT_TRUE(generation.start());
  EXPECT_EQ(engine.streams.size(), 64u);
  engine.streams[0]->push(Finished{});
  generation.next(milliseconds(0));
  generation.next(milliseconds(0));
  EXPECT_EQ(engine.streams.size(), 65u);
}

TEST(Generation, InterleavesChoices) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {2}}), {});
  ASSERT_TRUE(generation.start());
  ASSERT_EQ(engine.streams.size(), 2u);
  engine.say(0, "aa");
  engine.say(1, "bb");
  EXPECT_EQ(drain_text(generation), "abab");
}

TEST(Generation, WaitsForItsOwnChoicesWhenTheQueueIsFull) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  engine.room = 1;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {2}}), {});
  ASSERT_TRUE(generation.start());
  EXPECT_EQ(engine.streams.size(), 1u);
  engine.room = 2;
  engine.say(0, "a");
  engine.streams[0]->push(Finished{});
  drain_text(generation);
  ASSERT_EQ(engine.streams.size(), 2u);
  engine.streams[1]->push(Finished{});
  drain_text(generation);
  EXPECT_TRUE(generation.is_done());
}

TEST(Generation, IsAnsweredWholeOnceItsFirstChoiceIsInTheQueue) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  engine.room = 1;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {2}, {3}}), {2, {}, {}});
  ASSERT_TRUE(generation.start());
  engine.streams[0]->push(PrefillReport{});
  engine.streams[0]->push(Finished{});
  drain_text(generation);
  // Nothing of it runs, and others have filled the queue: it waits.
  EXPECT_FALSE(generation.next(milliseconds(5)));
  EXPECT_FALSE(generation.is_done());
  for (size_t choice = 1; choice < 6; ++choice) {
    engine.room = choice + 1;
    drain_text(generation);
    ASSERT_EQ(engine.streams.size(), choice + 1);
    engine.streams[choice]->push(Finished{});
    drain_text(generation);
  }
  EXPECT_TRUE(generation.is_done());
  EXPECT_FALSE(engine.requests[0].continues);
  for (size_t i = 1; i < 6; ++i) EXPECT_TRUE(engine.requests[i].continues);
}

TEST(Generation, EndsWhenTheEngineStopsWhileItWaitsForAPlace) {
  ByteTokenizer tokenizer;
  bool is_open = true;
  FakeEngine engine;
  engine.room = 1;
  auto submit = [&](GenerationRequest request) -> Result<std::shared_ptr<TokenStream>> {
    if (!is_open) return Error{ErrorCode::kUnavailable, "gone"};
    return engine.submit()(std::move(request));
  };
  Generation generation(submit, tokenizer, requests_for({{1}, {2}}), {});
  ASSERT_TRUE(generation.start());
  engine.streams[0]->push(Finished{});
  drain_text(generation);
  is_open = false;
  auto event = generation.next(milliseconds(0));
  ASSERT_TRUE(event);
  EXPECT_EQ(std::get<Error>(*event).message, "gone");
}

TEST(Generation, SharesWhatItsChoicesHaveInCommon) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  std::vector<GenerationRequest> requests = requests_for({{1}, {2}});
  Shared<std::set<int32_t>> stops = {5, 6};
  Shared<std::map<int32_t, float>> bias = {{1, 2.0f}};
  for (GenerationRequest& request : requests) {
    request.stop_tokens = stops;
    request.sampling.logit_bias = bias;
  }
  Generation generation(engine.submit(), tokenizer, std::move(requests), {});
  ASSERT_TRUE(generation.start());
  ASSERT_EQ(engine.requests.size(), 2u);
  for (const GenerationRequest& request : engine.requests) {
    EXPECT_EQ(&*request.stop_tokens, &*stops);
    EXPECT_EQ(&*request.sampling.logit_bias, &*bias);
  }
}

TEST(Generation, ReportsAFullQueueWhenNothingOfItRuns) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  engine.room = 0;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}}), {});
  auto started = generation.start();
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kExhausted);
}

TEST(Generation, EndsWithAnErrorAndCancelsTheRest) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {2}}), {});
  ASSERT_TRUE(generation.start());
  engine.streams[0]->push(Error{ErrorCode::kUnavailable, "gone"});
  auto event = generation.next(milliseconds(0));
  ASSERT_TRUE(event);
  EXPECT_EQ(std::get<Error>(*event).message, "gone");
  EXPECT_TRUE(generation.is_done());
  EXPECT_TRUE(engine.streams[1]->is_cancelled());
}

TEST(Generation, CancelsWhenDropped) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  {
    Generation generation(engine.submit(), tokenizer, requests_for({{1}}), {});
    ASSERT_TRUE(generation.start());
  }
  EXPECT_TRUE(engine.streams[0]->is_cancelled());
}

TEST(Generation, LetsGoOfAllItsStreamsWhenOneFails) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {2}, {3}}), {});
  ASSERT_TRUE(generation.start());
  ASSERT_EQ(engine.streams.size(), 3u);
  engine.streams[1]->push(Error{ErrorCode::kUnavailable, "broken"});
  auto event = generation.next(milliseconds(0));
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(std::get<Error>(*event).message, "broken");
  EXPECT_TRUE(generation.is_done());
  for (const auto& stream : engine.streams) {
    EXPECT_TRUE(stream->is_cancelled());
    EXPECT_EQ(stream.use_count(), 1) << "held by nobody but this test";
  }
}

TEST(Generation, SaysWhatEndedIt) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}}),
                        {1, {"END", "STOP"}, 0, SpecialTokens::kParse});
  ASSERT_TRUE(generation.start());
  engine.say(0, "aSTOPb");
  std::vector<ChoicePiece> pieces;
  EXPECT_EQ(drain_text(generation, &pieces), "a");
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].stop, "");
  EXPECT_FALSE(pieces[0].finish);
  EXPECT_EQ(pieces[0].tokens.size(), 1u);
  EXPECT_EQ(pieces[1].stop, "STOP");
  EXPECT_EQ(pieces[1].text, "");
  EXPECT_EQ(pieces[1].tokens.size(), 4u);
  EXPECT_EQ(generation.completion_tokens(), 5);
}

TEST(Generation, LetsNoStopStringCountBeforeTheShortestAnswer) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}}),
                        {1, {"a"}, 3, SpecialTokens::kParse});
  ASSERT_TRUE(generation.start());
  engine.say(0, "aaaaa");
  EXPECT_EQ(drain_text(generation), "aaa");
  EXPECT_EQ(generation.completion_tokens(), 4);
  EXPECT_TRUE(generation.is_done());
}

TEST(Generation, GivesOutAtTheEndWhatItHeld) {
  ByteTokenizer tokenizer;
  auto last_piece = [&](const std::string& stop) {
    FakeEngine engine;
    Generation generation(engine.submit(), tokenizer, requests_for({{1}}),
                          {1, {stop}, 0, SpecialTokens::kParse});
    EXPECT_TRUE(generation.start());
    engine.say(0, "abEN\xC3");
    engine.streams[0]->push(Finished{FinishReason::kLength, -1});
    std::vector<ChoicePiece> pieces;
    drain_text(generation, &pieces);
    return pieces.back();
  };
  ChoicePiece whole = last_piece("END");
  EXPECT_EQ(whole.text, "EN\xEF\xBF\xBD");
  EXPECT_EQ(whole.tokens.size(), 3u);
  EXPECT_EQ(whole.finish, FinishReason::kLength);
  EXPECT_EQ(whole.stop, "");
  ChoicePiece stopped = last_piece("EN\xEF\xBF\xBD");
  EXPECT_EQ(stopped.text, "");
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.stop, "EN\xEF\xBF\xBD");
}

TEST(Generation, KeepsWhatComesBesideTokens) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {2}}), {});
  ASSERT_TRUE(generation.start());
  PrefillReport report;
  report.cached_tokens = 3;
  engine.streams[1]->push(report);
  engine.streams[1]->push(PromptLogprobs{{SampledToken{7, -1, {}}}});
  engine.streams[1]->push(Embedding{{0.5f, 0.25f}});
  drain_text(generation);
  EXPECT_FALSE(generation.prefill(0));
  EXPECT_EQ(generation.prefill(1)->cached_tokens, 3);
  ASSERT_EQ(generation.prompt_logprobs(1).size(), 1u);
  EXPECT_EQ(generation.prompt_logprobs(1)[0].token, 7);
  EXPECT_THAT(generation.embedding(1), ElementsAre(0.5f, 0.25f));
  EXPECT_TRUE(generation.embedding(0).empty());
}

TEST(Generation, StartsAFurtherChoiceWhenTheOneBeforeHasEnded) {
  ByteTokenizer tokenizer;
  FakeEngine engine;
  Generation generation(engine.submit(), tokenizer, requests_for({{1}, {1}, {2}}), {});
  ASSERT_TRUE(generation.start());
  EXPECT_EQ(engine.streams.size(), 1u);
  engine.streams[0]->push(Finished{});
  drain_text(generation);
  EXPECT_EQ(engine.streams.size(), 3u) << "another prompt does not wait";
  EXPECT_FALSE(generation.is_done());
}

}  // namespace

}  // namespace droidspeak
