// Answers that follow a grammar, through the whole engine on every device: among rows of other
// kinds they are what the CPU gives alone. The vocabulary fills no whole number of a mask's words.
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "grammar/grammar_compiler.h"
#include "support/device_under_test.h"
#include "text/tokenizer.h"

namespace droidspeak {
namespace {

constexpr int32_t kVocabulary = 330;
constexpr int32_t kMinTokens = 12;

class GrammarServing : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam())) GTEST_SKIP() << "no CUDA device";
    device_ = make_test_device(GetParam());
    ops_ = make_test_ops(*device_, Precision::kExact);
  }

  GenerationRequest request(const std::string& model, const std::string& regex, float temperature) {
    GenerationRequest wanted{.model = model,
                             .prompt = random_prompt(11, 40 + static_cast<int32_t>(regex.size())),
                             .max_tokens = 40,
                             .sampling = {.temperature = temperature, .seed = 5}};
    if (!regex.empty())
      wanted.grammar = compiler_.compile({OutputFormat::Kind::kRegex, regex}).take_or_throw();
    return wanted;
  }

  // Greedy, so that all devices say the same.
  std::vector<GenerationRequest> greedy_requests() {
    std::vector<GenerationRequest> all = {
        request("base", "[abc]{30}", 0), request("alpha", "(first answer|second answer)x{3,9}", 0),
        request("beta", "", 0), request("base", "[^a-z]{20}", 0), request("alpha", "", 0)};
    all[0].num_top_logprobs = 3;
    all[2].min_tokens = kMinTokens;
    std::set<int32_t> bytes;
    for (int32_t byte = 0; byte < 256; ++byte) bytes.insert(byte);
    all[2].stop_tokens = std::move(bytes);
    all[3].wants_prompt_logprobs = true;
    return all;
  }

  std::vector<Outcome> answers_alone() {
    EngineOptions options = tiny_options();
    options.speculation = Speculation::kNone;
    Engine engine(*cpu_ops_, file_, options);
    std::vector<Outcome> outcomes;
    for (const GenerationRequest& wanted : greedy_requests())
      outcomes.push_back(generate(engine, wanted));
    return outcomes;
  }

  std::string text_of(const Outcome& outcome) const {
    return tokenizer_->decode(outcome.tokens, SpecialTokens::kParse);
  }

  void expect_what_was_asked_for(const std::vector<Outcome>& alone) {
    EXPECT_EQ(alone[0].tokens.size(), 30u);
    EXPECT_EQ(text_of(alone[0]).find_first_not_of("abc"), std::string::npos);
    EXPECT_NE(text_of(alone[1]).find(" answerxxx"), std::string::npos);
    EXPECT_GE(alone[2].tokens.size(), static_cast<size_t>(kMinTokens));
    for (int32_t token : alone[2].tokens) EXPECT_GE(token, 256);
    EXPECT_EQ(alone[3].prompt_logprobs.tokens.size() + 1, greedy_requests()[3].prompt->size());
    EXPECT_EQ(alone[4].tokens.size(), 40u);
  }

  static void expect_near(const std::vector<SampledToken>& some,
                          const std::vector<SampledToken>& wanted) {
    ASSERT_EQ(some.size(), wanted.size());
    for (size_t i = 0; i < some.size(); ++i) {
      EXPECT_NEAR(some[i].logprob, wanted[i].logprob, 1e-3f) << i;
      EXPECT_EQ(some[i].top.size(), wanted[i].top.size()) << i;
    }
  }

  TemporaryFolder folder_;
  FamilyFile file_ =
      read_family_file(write_tiny_family(folder_.path(), {.vocab_size = kVocabulary}));
  std::unique_ptr<Tokenizer> tokenizer_ = load_hf_tokenizer(file_.base.path);
  GrammarCompiler compiler_{*tokenizer_, kVocabulary};
  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Ops> cpu_ops_ = make_cpu_ops(*cpu_, 1);
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
};

TEST_P(GrammarServing, RowsOfAllKindsGoTogether) {
  const std::vector<Outcome> alone = answers_alone();
  expect_what_was_asked_for(alone);
  EngineOptions options = tiny_options();
  options.store.device = device_.get();
  Engine engine(*ops_, file_, options);
  for (int round = 0; round < 3; ++round) {  // steps that come again are recorded, then repeated
    std::vector<std::shared_ptr<TokenStream>> streams;
    for (const GenerationRequest& wanted : greedy_requests())
      streams.push_back(*engine.submit(wanted));
    auto sampled = *engine.submit(request("beta", "[abc]{30}", 1));
    auto free = *engine.submit(request("base", "", 1));
    for (size_t i = 0; i < streams.size(); ++i) {
      Outcome outcome = collect(*streams[i]);
      ASSERT_FALSE(outcome.error) << i << ": " << outcome.error->message;
      EXPECT_EQ(outcome.tokens, alone[i].tokens) << i;
      expect_near(outcome.prompt_logprobs.tokens, alone[i].prompt_logprobs.tokens);
      if (i == 0) expect_near(outcome.sampled, alone[i].sampled);
    }
    const std::string drawn = text_of(collect(*sampled));
    EXPECT_EQ(drawn.size(), 30u);
    EXPECT_EQ(drawn.find_first_not_of("abc"), std::string::npos) << drawn;
    EXPECT_TRUE(collect(*free).finished);
  }
  EXPECT_GT(engine.metrics().accepted_tokens, 0u);
}

INSTANTIATE_TEST_SUITE_P(All,
                         GrammarServing,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         [](const testing::TestParamInfo<DeviceKind>& device) {
                           return device_name(device.param);
                         });

}  // namespace
}  // namespace droidspeak
