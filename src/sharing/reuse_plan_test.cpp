#include "sharing/reuse_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace droidspeak {
namespace {

constexpr int32_t kLayers = 30;

TEST(ReusePlan, WordsAndNumbersComeBackAsTheyWere) {
  for (const char* text : {"full", "reuse", "0,16,24", "3,3,9", "0,0,1", "30,30,30", "reuse+10%",
                           "reuse+0.1%", "0,16,19+15%", "0,16,24+2.5%", "reuse+100%"}) {
    std::string same = std::string(text) == "30,30,30" ? "full" : text;
    EXPECT_EQ(parse_plan(text, kLayers).to_string(kLayers), same);
  }
  EXPECT_EQ(parse_plan("0,16,24+5%", kLayers), (ReusePlan{0, 16, 24, 50}));
  EXPECT_EQ(parse_plan("0,16,24+5.0%", kLayers), (ReusePlan{0, 16, 24, 50}));
  EXPECT_EQ(parse_plan("reuse+12.3%", kLayers), (ReusePlan{0, 0, 0, 123}));
}

TEST(ReusePlan, NamesWhatIsNoPlan) {
  for (const char* text : {"",
                           "auto",
                           "reuse+",
                           "reuse+0%",
                           "reuse+0.0%",
                           "reuse+100.1%",
                           "reuse+101%",
                           "reuse+-5%",
                           "reuse+5",
                           "reuse+5 %",
                           "reuse+1.25%",
                           "reuse+.5%",
                           "reuse+5.%",
                           "reuse+nan%",
                           "reuse+1e1%",
                           "reuse+5%%",
                           "reuse+5%+5%",
                           "full+5%",
                           "30,30,30+5%",
                           "0,16",
                           "0,16,24,",
                           "0,16,24,3",
                           "0,16,31",
                           "5,4,6",
                           "0,7,6",
                           "-1,0,3",
                           "0,16,24 ",
                           "+5%",
                           "0,16,24+99999999999%",
                           "r",
                           "0,16,2147483648",
                           "reuse+٥%"}) {
    SCOPED_TRACE(text);
    try {
      parse_plan(text, kLayers);
      ADD_FAILURE() << "taken for a plan";
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(),
                  testing::HasSubstr(std::string("plan \"") + text + "\": expected"));
    }
  }
}

TEST(ReusePlan, RequestsMayBeAutoOrRaw) {
  EXPECT_TRUE(parse_plan_request("auto", kLayers).is_auto);
  EXPECT_TRUE(parse_plan_request("reuse", kLayers).is_raw);
  for (const char* text : {"full", "0,0,0", "0,16,24", "reuse+10%"})
    EXPECT_FALSE(parse_plan_request(text, kLayers).is_raw) << text;
  for (const char* text : {"0,16,24r", "reuse+10%r", "0,16,24+5%r"}) {
    PlanRequest request = parse_plan_request(text, kLayers);
    EXPECT_TRUE(request.is_raw) << text;
    EXPECT_EQ(request.plan.to_string(kLayers) + "r", text);
  }
  for (const char* text : {"r", "auto+5%", "autor", "reuse+10%rr", "10%"})
    EXPECT_THROW(parse_plan_request(text, kLayers), Failure) << text;
}

TEST(ReusePlan, ThatRecomputesNothingIsOnePlanHoweverItIsWritten) {
  for (const char* text : {"reuse", "0,0,0", "0,2,2", "0,28,28"})
    EXPECT_EQ(parse_plan(text, kLayers), ReusePlan::reuse_all()) << text;
  EXPECT_EQ(parse_plan("0,2,2+5%", kLayers), (ReusePlan{0, 0, 0, 50}));
}

TEST(ReusePlan, LooksAtItsShareOfTheTokensRoundedUp) {
  EXPECT_EQ((ReusePlan{0, 0, 0, 100}).looked_at_tokens(640), 64);
  EXPECT_EQ((ReusePlan{0, 0, 0, 100}).looked_at_tokens(64), 7);
  EXPECT_EQ((ReusePlan{0, 0, 0, 1}).looked_at_tokens(64), 1);
  EXPECT_EQ((ReusePlan{0, 0, 0, 1000}).looked_at_tokens(1 << 20), 1 << 20);
  EXPECT_EQ((ReusePlan{0, 0, 0, 0}).looked_at_tokens(1 << 20), 0);
}

TEST(ReusePlan, TheLastLayerOfARangeIsMostlyLeftOut) {
  EXPECT_DOUBLE_EQ(ReusePlan::reuse_all().recompute_work(), 0);
  EXPECT_DOUBLE_EQ((ReusePlan{0, 16, 24}.recompute_work()), 7 + 1.0 / 6);
  EXPECT_DOUBLE_EQ((ReusePlan{2, 16, 24}.recompute_work()), 8 + 2.0 / 6) << "two ranges";
  EXPECT_DOUBLE_EQ((ReusePlan{3, 3, 9}.recompute_work()), 8 + 1.0 / 6) << "one range";
  EXPECT_DOUBLE_EQ((ReusePlan{4, 4, 4}.recompute_work()), 3 + 1.0 / 6);
}

}  // namespace
}  // namespace droidspeak
