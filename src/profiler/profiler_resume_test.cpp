// Profiles that were stopped and go on.
#include <algorithm>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "profiler/profiler.h"
#include "profiler/profiler_fixture.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;

class ProfilerResume : public ProfilerFixture {
 protected:
  void load_family_again(const FamilyOptions& use) {
    family_ = std::make_unique<ModelFamily>(*ops_, family_->file(), use);
  }

  std::string failure_of_run(const ProfileOptions& profile) {
    try {
      run_profile(pair("base", "alpha"), *tokenizer_, profile);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }
};

TEST_F(ProfilerResume, StoppedAndResumedEqualsUninterrupted) {
  std::string text;
  for (int i = 0; i < 10; ++i) text += item_row(i);
  write_file_atomically(data_, text);
  ProfileOptions profile = options("whole.json");
  profile.fit_contexts = 5;
  PlanBook whole = run_profile(pair("base", "alpha"), *tokenizer_, profile);
  ASSERT_EQ(whole.num_confirming, 5);
  profile.out = options("stopped.json").out;
  int asked = 0;
  int stops = 0;
  int patience = 3;
  profile.should_stop = [&] { return ++asked > patience; };
  std::optional<PlanBook> book;
  while (!book) {
    try {
      asked = 0;
      book = run_profile(pair("base", "alpha"), *tokenizer_, profile);
    } catch (const Failure& failure) {
      ASSERT_EQ(failure.code(), ErrorCode::kCancelled) << failure.what();
      EXPECT_FALSE(std::filesystem::exists(profile.out));
      EXPECT_TRUE(std::filesystem::exists(partial_path(profile.out)));
      profile.start = ProfileStart::kResume;
      patience += 4;
      ASSERT_LT(++stops, 50);
    }
  }
  EXPECT_GE(stops, 3);
  expect_same_measurements(whole, *book);
  EXPECT_FALSE(std::filesystem::exists(partial_path(profile.out)));
}

TEST_F(ProfilerResume, RefusesTheStateOfAnotherProfile) {
  ProfileOptions profile = options("book.json");
  profile.should_stop = [] { return true; };
  EXPECT_THROW(run_profile(pair("base", "alpha"), *tokenizer_, profile), Failure);
  profile.start = ProfileStart::kResume;
  try {
    run_profile(pair("base", "beta"), *tokenizer_, profile);
    FAIL() << "another pair's state was taken";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("other models, data or options"));
  }
}

TEST_F(ProfilerResume, RefusesOtherRowsThatConfirm) {
  ProfileOptions profile = options("book.json");
  profile.confirm_data = folder_.path() / "further.jsonl";
  write_rows(profile.confirm_data, {6, 7, 8, 9, 10});
  profile.should_stop = [] { return true; };
  failure_of_run(profile);
  profile.start = ProfileStart::kResume;
  write_rows(profile.confirm_data, {7, 8, 9, 10, 11});
  EXPECT_THAT(failure_of_run(profile), HasSubstr("other rows confirm; take its --confirm-data"));
  write_rows(profile.confirm_data, {6, 7, 8, 9, 10});
  for (int32_t fewer : {4, 3, 0}) {  // of which 3 are too few to count
    profile.confirm_contexts = fewer;
    EXPECT_THAT(failure_of_run(profile), HasSubstr("other rows confirm; take its --confirm-data"));
  }
  profile.confirm_contexts = 300;
  profile.should_stop = {};
  EXPECT_EQ(failure_of_run(profile), "") << "these are the same";
}

// Rows that a shorter limit leaves out make room for others.
TEST_F(ProfilerResume, RefusesTheRowsOfAnotherLengthLimit) {
  write_rows(data_, {0, 1, 2, 3, 4});
  int32_t longest = 0;
  for (const QaPrompt& prompt : prompts(5))
    longest = std::max(longest, static_cast<int32_t>(prompt.tokens.size()));
  ProfileOptions profile = options("book.json");
  profile.fit_contexts = 5;
  profile.should_stop = [] { return true; };
  const FamilyOptions shorter{Precision::kExact, longest + kAnswerTokens};
  for (const std::vector<int>& numbers :
       {std::vector<int>{0, 1, 123456789, 2, 3, 4}, std::vector<int>{0, 1, 2, 3, 123456789, 4}}) {
    write_rows(data_, numbers);
    load_family_again({Precision::kExact, 0});
    profile.start = ProfileStart::kFresh;
    failure_of_run(profile);
    profile.start = ProfileStart::kResume;
    EXPECT_THAT(failure_of_run(profile), HasSubstr("profile stopped")) << "these are the same";
    load_family_again(shorter);
    EXPECT_THAT(failure_of_run(profile), HasSubstr("other models, data or options"));
  }
}

TEST_F(ProfilerResume, RefusesTheStateOfAnotherPrecision) {
  ProfileOptions profile = options("book.json");
  profile.should_stop = [] { return true; };
  failure_of_run(profile);
  profile.start = ProfileStart::kResume;
  for (Precision other : {Precision::kFast, Precision::kFine}) {
    load_family_again({other, 0});
    EXPECT_THAT(failure_of_run(profile), HasSubstr("other models, data or options"));
  }
}

TEST_F(ProfilerResume, RefusesTheStateOfAnotherConfiguration) {
  ProfileOptions profile = options("book.json");
  profile.should_stop = [] { return true; };
  EXPECT_THROW(run_profile(pair("base", "alpha"), *tokenizer_, profile), Failure);
  profile.start = ProfileStart::kResume;
  const std::filesystem::path config = family_->file().base.path / "config.json";
  std::string text = read_file(config);
  const std::string theta = "\"rope_theta\": 10000.0";
  write_file_atomically(config,
                        text.replace(text.find(theta), theta.size(), "\"rope_theta\": 9999"));
  family_ =
      std::make_unique<ModelFamily>(*ops_, family_->file(), FamilyOptions{Precision::kExact, 0});
  try {
    run_profile(pair("base", "alpha"), *tokenizer_, profile);
    FAIL() << "the state of another RoPE was taken";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("other models, data or options"));
  }
}

}  // namespace
}  // namespace droidspeak
