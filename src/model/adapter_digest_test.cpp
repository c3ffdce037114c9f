// What an adapter's digest covers.
#include <gtest/gtest.h>

#include "support/adapter_fixture.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;
using AdapterDigests = AdapterTest;

TEST_F(AdapterDigests, DigestsCoverWhatChangesTheAnswer) {
  std::vector<Digest> digests{digest()};
  auto expect_new = [&](const std::string& what) {
    digests.push_back(digest());
    EXPECT_EQ(std::ranges::count(digests, digests.back()), 1) << what;
  };
  EXPECT_EQ(digest(), digests.front());
  Json plain = config_;
  config_["base_model_name_or_path"] = "elsewhere";
  config_["target_modules"] = {"q_proj", "v_proj", "down_proj"};
  config_["exclude_modules"] = {"o_proj"};
  EXPECT_EQ(digest(), digests.front());
  config_["lora_alpha"] = 5;
  expect_new("lora_alpha");
  config_ = plain;
  config_["use_rslora"] = true;
  expect_new("use_rslora");
  config_ = plain;
  config_["alora_invocation_tokens"] = {1, 2};
  expect_new("alora_invocation_tokens");
  config_["alora_invocation_tokens"] = {2, 1};
  expect_new("their order");
  config_["alora_invocation_tokens"] = {1};
  expect_new("their number");
  config_ = plain;
  config_["alpha_pattern"] = {{"q_proj", 7}};
  expect_new("alpha_pattern");
  config_["alpha_pattern"] = {{"q_proj", 7.5}};
  expect_new("alpha_pattern's value");
  config_["alpha_pattern"] = {{"v_proj", 7}};
  expect_new("alpha_pattern's key");
  config_ = plain;
  config_["rank_pattern"] = {{"o_proj", 7}};
  expect_new("rank_pattern");
  config_ = plain;
  tensors_[kQueryA].values[5] += 0.25f;
  expect_new("a value");
  tensors_.erase(kQueryA);
  tensors_.erase(kQueryB);
  expect_new("fewer layers");
}

TEST_F(AdapterDigests, DigestsCoverTheOrderOfPatterns) {
  config_text_ =
      R"({"r": 2, "target_modules": "all-linear", "alpha_pattern": {"q_proj": 3, ".*_proj": 5}})";
  Digest one = digest();
  config_text_ =
      R"({"r": 2, "target_modules": "all-linear", "alpha_pattern": {".*_proj": 5, "q_proj": 3}})";
  EXPECT_NE(digest(), one) << "the first that fits counts, so they scale differently";
}

// Plan books of the shipped adapters name them by digest.
TEST_F(AdapterDigests, KeepTheDigestsOfShippedFamilies) {
  config_text_ = R"({"r": 2, "lora_alpha": 4, "target_modules": "all-linear"})";
  EXPECT_EQ(digest().hex(), "8c78b6505dd3750f3dfb58705c2b5a1376e75793a0f59ea1d2cb341d877288ed");
  config_text_ = R"({"r": 2, "lora_alpha": 4, "target_modules": ".*_proj", "use_rslora": true,
                     "alpha_pattern": {"q_proj": 3}, "rank_pattern": {"o_proj": 8}})";
  EXPECT_EQ(digest().hex(), "c53eeb14d0d60f9d9fc5a928917c658930795538bd94607c148512889cbe47fe");
}

}  // namespace
}  // namespace droidspeak
