#include "sharing/plan_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace droidspeak {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PlanBookTest : public testing::Test {
 protected:
  static PlanEntry entry(const ReusePlan& plan, double cost, double index) {
    PlanEntry made;
    made.plan = plan;
    made.relative_cost = cost;
    made.quality_index = index;
    return made;
  }

  static PlanBook example() {
    PlanBook book;
    book.sender = "base";
    book.receiver = "qa";
    book.num_layers = 8;
    book.data_name = "rows.jsonl";
    book.metric = "f1";
    book.full_score = 0.5;
    book.full_gold_probability = 0.625;
    book.frontier = {entry(ReusePlan::reuse_all(), 0.1, 0.9), entry({0, 2, 4}, 0.4, 0.995)};
    PlanQuality& measured = book.frontier[0].quality;
    measured.kl = 0.07;
    measured.score = 0.45;
    measured.score_low = -0.09;
    measured.score_high = -0.01;
    measured.gold_lost = 0.125;
    measured.gold_lost_error = 0.025;
    book.frontier[1].quality.gold_lost = -0.5;
    book.frontier[1].quality.gold_lost_error = 0;
    return book;
  }

  json saved(const PlanBook& book) {
    save_plan_book(path_, book);
    return json::parse(read_file(path_));
  }

  std::string failure_of(const json& book) {
    write_file_atomically(path_, book.dump());
    try {
      load_plan_book(path_);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "no failure";
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_.path() / "book.json";
};

TEST_F(PlanBookTest, ComesBackAsItWasSaved) {
  const PlanBook book = example();
  save_plan_book(path_, book);
  const PlanBook loaded = load_plan_book(path_);
  EXPECT_EQ(loaded.full_score, book.full_score);
  EXPECT_EQ(loaded.full_gold_probability, book.full_gold_probability);
  EXPECT_EQ(loaded.sender, "base");
  EXPECT_EQ(loaded.receiver, "qa");
  EXPECT_EQ(loaded.num_layers, 8);
  EXPECT_EQ(loaded.data_name, "rows.jsonl");
  EXPECT_EQ(loaded.metric, "f1");
  EXPECT_FALSE(loaded.look_layer);
  EXPECT_TRUE(loaded.maps_file.empty());
  ASSERT_EQ(loaded.frontier.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const PlanQuality& found = loaded.frontier[i].quality;
    const PlanQuality& expected = book.frontier[i].quality;
    EXPECT_EQ(loaded.frontier[i].plan, book.frontier[i].plan);
    EXPECT_EQ(loaded.frontier[i].quality_index, book.frontier[i].quality_index);
    EXPECT_EQ(found.kl, expected.kl);
    EXPECT_EQ(found.score, expected.score);
    EXPECT_EQ(found.score_low, expected.score_low);
    EXPECT_EQ(found.score_high, expected.score_high);
    EXPECT_EQ(found.gold_lost, expected.gold_lost);
    EXPECT_EQ(found.gold_lost_error, expected.gold_lost_error);
  }
}

TEST_F(PlanBookTest, EveryFieldComesBack) {
  PlanBook book = example();
  auto digest_of = [](std::string_view text) { return sha256(std::as_bytes(std::span(text))); };
  book.sender_model = digest_of("model");
  book.sender_adapter = digest_of("sender");
  book.receiver_model = digest_of("model");
  book.receiver_adapter = digest_of("receiver");
  book.data_digest = digest_of("data");
  book.num_contexts = 60;
  book.context_tokens_median = 1345;
  book.look_layer = 7;
  book.maps_file = folder_.path() / "maps.safetensors";
  book.profile_seconds = 12.5;
  book.prefill_equivalents = 31.25;
  book.heat_map = {{.b = 1, .c = 8, .translated = true, .kl = 0.25, .agreement = 0.75}};
  book.sensitivity = {{.layer = 7, .kl = 0.5, .spread = 0.125}};
  PlanEntry& plan = book.frontier[1];
  plan.translated = true;
  plan.quality.kl_low = 0.03;
  plan.quality.kl_high = 0.09;
  plan.quality.agreement = 0.875;
  save_plan_book(path_, book);
  const PlanBook loaded = load_plan_book(path_);
  EXPECT_EQ(loaded.sender_model, book.sender_model);
  EXPECT_EQ(loaded.sender_adapter, book.sender_adapter);
  EXPECT_EQ(loaded.receiver_model, book.receiver_model);
  EXPECT_EQ(loaded.receiver_adapter, book.receiver_adapter);
  EXPECT_EQ(loaded.data_digest, book.data_digest);
  EXPECT_EQ(loaded.num_contexts, 60);
  EXPECT_EQ(loaded.context_tokens_median, 1345);
  EXPECT_EQ(loaded.look_layer, 7);
  EXPECT_EQ(loaded.first_look_layer(), 7);
  EXPECT_EQ(loaded.maps_file, book.maps_file);
  EXPECT_EQ(loaded.profile_seconds, 12.5);
  EXPECT_EQ(loaded.prefill_equivalents, 31.25);
  ASSERT_EQ(loaded.heat_map.size(), 1u);
  EXPECT_EQ(loaded.heat_map[0].b, 1);
  EXPECT_EQ(loaded.heat_map[0].c, 8);
  EXPECT_TRUE(loaded.heat_map[0].translated);
  EXPECT_EQ(loaded.heat_map[0].kl, 0.25);
  EXPECT_EQ(loaded.heat_map[0].agreement, 0.75);
  ASSERT_EQ(loaded.sensitivity.size(), 1u);
  EXPECT_EQ(loaded.sensitivity[0].layer, 7);
  EXPECT_EQ(loaded.sensitivity[0].kl, 0.5);
  EXPECT_EQ(loaded.sensitivity[0].spread, 0.125);
  EXPECT_FALSE(loaded.frontier[0].translated);
  EXPECT_TRUE(loaded.frontier[1].translated);
  EXPECT_EQ(loaded.frontier[1].relative_cost, 0.4);
  EXPECT_EQ(loaded.frontier[1].quality.kl_low, 0.03);
  EXPECT_EQ(loaded.frontier[1].quality.kl_high, 0.09);
  EXPECT_EQ(loaded.frontier[1].quality.agreement, 0.875);
  EXPECT_EQ(example().first_look_layer(), 3) << "the upper 60 % of eight layers";
}

TEST_F(PlanBookTest, OtherFilesAreRefused) {
  json good = saved(example());
  EXPECT_EQ(good["frontier"][0]["recomputed_layers"], 0);
  EXPECT_EQ(good["frontier"][1]["recomputed_layers"], 2);
  for (const auto& [field, value] :
       {std::pair<const char*, json>{"format", "another"}, {"version", 2}}) {
    json bad = good;
    bad[field] = value;
    EXPECT_THAT(failure_of(bad), HasSubstr("expected \"droidspeak plan book\" version 1"));
  }
  json bad = good;
  bad["maps"] = "../maps.safetensors";
  EXPECT_THAT(failure_of(bad), HasSubstr("expected a file name beside the plan book"));
  bad = good;
  bad["deep"] = json::parse(std::string(16, '[') + std::string(16, ']'));
  EXPECT_THAT(failure_of(bad), HasSubstr("JSON"));
  write_file_atomically(path_, "{\"format\": ");
  EXPECT_THROW(load_plan_book(path_), Failure);
}

TEST_F(PlanBookTest, BooksWithoutKnownAnswersStayValid) {
  PlanBook book = example();
  book.full_gold_probability.reset();
  for (PlanEntry& plan : book.frontier)
    plan.quality.gold_lost = plan.quality.gold_lost_error = std::nullopt;
  const json text = saved(book);
  EXPECT_FALSE(text.contains("full_gold_probability"));
  EXPECT_FALSE(text["frontier"][0].contains("gold_lost"));
  EXPECT_FALSE(text["frontier"][0].contains("gold_lost_se"));
  const PlanBook loaded = load_plan_book(path_);
  EXPECT_FALSE(loaded.full_gold_probability);
  EXPECT_FALSE(loaded.frontier[0].quality.gold_lost);
}

TEST_F(PlanBookTest, GoldFiguresOutOfRangeAreRefusedByName) {
  const json good = saved(example());
  EXPECT_EQ(failure_of(good), "no failure");

  struct Wrong {
    const char* field;
    json value;
    const char* said;
  };

  const std::vector<Wrong> wrong = {
      {"gold_lost", 1.5, "gold_lost is 1.5: expected a number of at most 1"},
      {"gold_lost", "much", "gold_lost is \"much\": expected"},
      {"gold_lost", nullptr, "gold_lost is null: expected"},
      {"gold_lost_se", -0.1, "gold_lost_se is -0.1: expected a number that is not negative"},
      {"gold_lost_se", true, "gold_lost_se is true: expected"}};
  for (const Wrong& one : wrong) {
    json bad = good;
    bad["frontier"][1][one.field] = one.value;
    EXPECT_THAT(failure_of(bad), HasSubstr(one.said));
    EXPECT_THAT(failure_of(bad), HasSubstr("book.json"));
  }
  for (const char* field : {"gold_lost", "gold_lost_se"}) {
    json bad = good;
    bad["frontier"][0].erase(field);
    const std::string other = std::string(field) == "gold_lost" ? "gold_lost_se" : "gold_lost";
    EXPECT_THAT(failure_of(bad), testing::EndsWith("expected both or none, found only " + other));
  }
  for (const json& value : {json(-0.1), json(1.01), json("half")}) {
    json bad = good;
    bad["full_gold_probability"] = value;
    EXPECT_THAT(failure_of(bad), HasSubstr("full_gold_probability is " + value.dump()));
  }
}

TEST_F(PlanBookTest, TheFormulaOfAModelMayBeMissing) {
  PlanBook book = example();
  json old = saved(book);
  EXPECT_FALSE(old["sender"]["digests"].contains("formula"));
  EXPECT_FALSE(load_plan_book(path_).sender_formula);
  book.sender_formula = sha256({});
  old = saved(book);
  EXPECT_EQ(load_plan_book(path_).sender_formula, sha256({}));
  EXPECT_FALSE(load_plan_book(path_).receiver_formula);
  book.sender_formula = Digest{};
  saved(book);
  EXPECT_EQ(load_plan_book(path_).sender_formula, Digest{}) << "zeros are a digest, too";
}

// Taken for missing it would hold for every model.
TEST_F(PlanBookTest, AFormulaThatIsNoDigestIsRefused) {
  const json good = saved(example());
  for (const json& value :
       {json(nullptr), json(7), json(false), json(1e300), json::array(), json::object(), json(""),
        json("abc"), json(std::string(64, 'G')), json(std::string(65, 'a'))}) {
    for (const char* side : {"sender", "receiver"}) {
      json bad = good;
      bad[side]["digests"]["formula"] = value;
      EXPECT_THAT(failure_of(bad), HasSubstr("book.json")) << value;
      EXPECT_THAT(failure_of(bad), HasSubstr(value.dump())) << value;
      EXPECT_THAT(failure_of(bad), HasSubstr("expected 64 lower-case hex digits")) << value;
    }
  }
}

// One that was meant for something would do nothing.
TEST_F(PlanBookTest, AFieldThatIsNotReadIsRefusedByName) {
  PlanBook book = example();
  book.heat_map = {{.b = 1, .c = 2}};
  book.sensitivity = {{.layer = 7}};
  const json good = saved(book);
  EXPECT_EQ(failure_of(good), "no failure");
  for (const char* place :
       {"/map_sha256", "/data/rows", "/sender/digest", "/receiver/path", "/sender/digests/weights",
        "/receiver/digests/sha256", "/frontier/1/raw", "/heat_map/0/a", "/sensitivity/0/layers"}) {
    json bad = good;
    const json::json_pointer pointer(place);
    bad[pointer] = 1;
    EXPECT_THAT(failure_of(bad),
                HasSubstr("has the field \"" + pointer.back() + "\", which is unknown"))
        << place;
  }
}

TEST_F(PlanBookTest, RecomputedLayersAreThoseOfThePlan) {
  json book = saved(example());
  book["frontier"][1]["recomputed_layers"] = 3;
  EXPECT_THAT(failure_of(book), HasSubstr("recomputed_layers is 3: expected 2"));
  book["frontier"][1].erase("recomputed_layers");
  EXPECT_EQ(failure_of(book), "no failure");
}

TEST_F(PlanBookTest, SaysWhichMapsItWasMeasuredWith) {
  PlanBook book = example();
  EXPECT_FALSE(saved(book).contains("maps_sha256"));
  book.maps_file = folder_.path() / "maps.safetensors";
  book.maps_digest = sha256({});
  json text = saved(book);
  EXPECT_EQ(load_plan_book(path_).maps_digest, sha256({}));
  text["maps"] = "";
  EXPECT_THAT(failure_of(text), HasSubstr("maps_sha256 is there, and maps is \"\""));
  text["maps"] = "maps.safetensors";
  for (const json& value : {json(nullptr), json(7), json("abc"), json("")}) {
    text["maps_sha256"] = value;
    EXPECT_THAT(failure_of(text), HasSubstr("expected 64 lower-case hex digits")) << value;
  }
  text.erase("maps_sha256");
  EXPECT_EQ(failure_of(text), "no failure");
}

// They would win every choice.
TEST_F(PlanBookTest, FiguresThatCannotBeAreRefusedByName) {
  PlanBook book = example();
  book.heat_map = {{.b = 1, .c = 2}};
  const json good = saved(book);
  EXPECT_EQ(failure_of(good), "no failure");
  const std::vector<std::pair<const char*, json>> wrong = {{"quality_index", 5},
                                                           {"quality_index", -0.1},
                                                           {"quality_index", nullptr},
                                                           {"relative_cost", -1},
                                                           {"relative_cost", "1"},
                                                           {"kl", -3},
                                                           {"agreement", 1.5},
                                                           {"agreement", -0.5},
                                                           {"score", 2},
                                                           {"score", -1},
                                                           {"score", nullptr},
                                                           {"translated", 1},
                                                           {"plan", 7},
                                                           {"kl_ci95", "0..1"},
                                                           {"kl_ci95", json::array({0})},
                                                           {"kl_ci95", nullptr},
                                                           {"kl_ci95", {0.2, 0.1}},
                                                           {"kl_ci95", {"0", 1}},
                                                           {"kl_ci95", {-1, 1}},
                                                           {"kl_ci95", {0, 1, 2}},
                                                           {"score_difference_ci95", {0.1, -0.1}},
                                                           {"score_difference_ci95", 0},
                                                           {"score_difference_ci95", {-2, 0}}};
  for (const auto& [field, value] : wrong) {
    json bad = good;
    bad["frontier"][0][field] = value;
    EXPECT_THAT(failure_of(bad), HasSubstr(std::string(field) + " is " + value.dump()));
  }
  for (const auto& [field, value] : {std::pair{"kl", -1.0}, {"agreement", 2.0}}) {
    json bad = good;
    bad["heat_map"][0][field] = value;
    EXPECT_THAT(failure_of(bad), HasSubstr(std::string(field) + " is "));
  }
  for (const char* field : {"quality_index", "relative_cost", "kl", "agreement"}) {
    json bad = good;
    bad["frontier"][0].erase(field);
    EXPECT_THAT(failure_of(bad), HasSubstr(field));
  }
}

TEST_F(PlanBookTest, WrongTypesAreRefusedByNameWithTheFile) {
  PlanBook book = example();
  book.heat_map = {{.b = 1, .c = 2}};
  book.sensitivity = {{.layer = 7}};
  const json good = saved(book);
  const std::vector<std::pair<const char*, json>> wrong = {{"/sender", "x"},
                                                           {"/receiver", nullptr},
                                                           {"/sender/name", 7},
                                                           {"/sender/digests", json::array()},
                                                           {"/sender/digests/model", 5},
                                                           {"/receiver/digests/adapter", nullptr},
                                                           {"/data", nullptr},
                                                           {"/data/name", json::object()},
                                                           {"/data/sha256", 1},
                                                           {"/metric", nullptr},
                                                           {"/metric", "bleu"},
                                                           {"/full_score", -0.5},
                                                           {"/full_score", 1.5},
                                                           {"/full_score", "half"},
                                                           {"/maps", 3},
                                                           {"/profile_seconds", "long"},
                                                           {"/prefill_equivalents", -1},
                                                           {"/heat_map/0/translated", "yes"},
                                                           {"/sensitivity/0/kl", -0.25},
                                                           {"/sensitivity/0/spread", -1},
                                                           {"/sensitivity/0/kl", nullptr}};
  for (const auto& [place, value] : wrong) {
    json bad = good;
    const json::json_pointer pointer(place);
    bad[pointer] = value;
    EXPECT_THAT(failure_of(bad), HasSubstr("book.json: plan book: ")) << place;
    EXPECT_THAT(failure_of(bad), HasSubstr(pointer.back() + " is " + value.dump() + ": expected "))
        << place;
    bad = good;
    bad.at(pointer.parent_pointer()).erase(pointer.back());
    const bool may_be_missing = pointer.back() == "full_score";
    EXPECT_THAT(failure_of(bad),
                HasSubstr(may_be_missing ? "no failure" : pointer.back() + " is missing"))
        << place;
  }
  for (const char* list : {"frontier", "heat_map", "sensitivity"}) {
    json bad = good;
    bad[list][0] = 5;
    EXPECT_THAT(failure_of(bad), HasSubstr(std::string(list) + "[0]: it is 5: expected an object"));
  }
  EXPECT_THAT(failure_of(json::array({good})), HasSubstr("expected an object"));
}

TEST_F(PlanBookTest, AFieldThatIsThereTwiceIsRefusedByName) {
  std::string text = saved(example()).dump();
  text.insert(text.find("\"frontier\""), "\"frontier\":[],");
  write_file_atomically(path_, text);
  EXPECT_THAT([&] { load_plan_book(path_); },
              testing::ThrowsMessage<Failure>(testing::AllOf(
                  HasSubstr("book.json: plan book: "),
                  HasSubstr("the field \"frontier\" is there twice: expected once"))));
}

TEST_F(PlanBookTest, APlanIsThereOnce) {
  PlanBook book = example();
  book.maps_file = "maps.safetensors";
  book.frontier.push_back(book.frontier[1]);
  book.frontier[2].translated = true;
  EXPECT_EQ(failure_of(saved(book)), "no failure") << "with maps it is another plan";
  book.frontier.push_back(entry(ReusePlan::reuse_all(), 0.2, 1));
  EXPECT_THAT(failure_of(saved(book)),
              HasSubstr("frontier[3]: plan \"reuse\", not translated: it is in the frontier "
                        "already"));
  book.frontier[3] = book.frontier[2];
  EXPECT_THAT(failure_of(saved(book)),
              HasSubstr("frontier[3]: plan \"0,2,4\", translated: it is in the frontier already"));
}

TEST_F(PlanBookTest, FiguresThatContradictEachOtherAreRefused) {
  PlanBook book = example();
  book.heat_map = {{.b = 2, .c = 3}};
  const json good = saved(book);
  json bad = good;
  bad["frontier"][0].erase("score");
  EXPECT_THAT(failure_of(bad), HasSubstr("plan \"reuse\": score_difference_ci95 is [-0.09,-0.01], "
                                         "and score is missing"));
  bad = good;
  bad["heat_map"][0]["b"] = 4;
  EXPECT_THAT(failure_of(bad), HasSubstr("heat_map[0]: b is 4: expected at most c, which is 3"));
}

// Cut to 32 bits the first would be the 8 layers that the model has.
TEST_F(PlanBookTest, NumbersThatDoNotFitAreRefusedByName) {
  PlanBook book = example();
  book.look_layer = 3;
  book.heat_map = {{.b = 1, .c = 8}};
  book.sensitivity = {{.layer = 7}};
  const json good = saved(book);
  EXPECT_EQ(failure_of(good), "no failure");
  const std::vector<std::pair<const char*, json>> wrong = {{"/num_layers", 4294967304},
                                                           {"/num_layers", 8.5},
                                                           {"/num_layers", 1e300},
                                                           {"/num_layers", 0},
                                                           {"/num_layers", 1025},
                                                           {"/look_layer", -1},
                                                           {"/look_layer", 8},
                                                           {"/data/contexts", -1},
                                                           {"/data/context_tokens_median", 1e9},
                                                           {"/heat_map/0/b", -1},
                                                           {"/heat_map/0/c", 9},
                                                           {"/sensitivity/0/layer", 8},
                                                           {"/frontier", nullptr},
                                                           {"/frontier", json::object()}};
  for (const auto& [place, value] : wrong) {
    json bad = good;
    const json::json_pointer pointer(place);
    bad[pointer] = value;
    EXPECT_THAT(failure_of(bad), HasSubstr(pointer.back() + " is ")) << place << ' ' << value;
  }
}

TEST_F(PlanBookTest, TheSmallestAndTheLargestFiguresAreTaken) {
  PlanBook book = example();
  book.look_layer = 0;
  book.heat_map = {{.b = 0, .c = 0}};
  book.sensitivity = {{.layer = 0}};
  book.full_gold_probability = 0;
  PlanEntry& plan = book.frontier[0];
  plan.relative_cost = 0;
  plan.quality_index = 0;
  plan.quality.kl = 0;
  plan.quality.agreement = 0;
  plan.quality.score = 0;
  plan.quality.gold_lost = 1;
  plan.quality.gold_lost_error = 0;
  json good = saved(book);
  EXPECT_EQ(failure_of(good), "no failure");
  good["num_layers"] = 1024;
  good["full_gold_probability"] = 1;
  good["frontier"][0]["quality_index"] = 1;
  EXPECT_EQ(failure_of(good), "no failure");
  PlanBook shallow = example();
  shallow.num_layers = 1;
  shallow.frontier.resize(1);
  save_plan_book(path_, shallow);
  EXPECT_EQ(load_plan_book(path_).num_layers, 1);
}

// Full prefill is what everybody can have without the sender.
TEST_F(PlanBookTest, PlansThatShareNothingAreRefused) {
  for (const char* plan : {"full", "0,0,8", "8,8,8", "4,4,8"}) {
    json book = saved(example());
    book["frontier"][1]["plan"] = plan;
    EXPECT_THAT(failure_of(book),
                HasSubstr(std::string("plan \"") + plan + "\" recomputes every layer: expected"));
  }
}

TEST_F(PlanBookTest, TranslatedPlansNeedMaps) {
  PlanBook book = example();
  book.frontier[1].translated = true;
  EXPECT_THAT(failure_of(saved(book)),
              HasSubstr("plan \"0,2,4\" is translated, and maps is empty"));
  book.maps_file = "maps.safetensors";
  EXPECT_EQ(failure_of(saved(book)), "no failure");
}

// Each plan is weighed for every prompt.
TEST_F(PlanBookTest, HaveAThousandPlansAtMost) {
  PlanBook many = example();
  many.frontier.clear();
  for (int32_t b = 0; many.frontier.size() < 1024; b = (b + 1) % 7)
    many.frontier.push_back(
        entry({0, b, b + 1, static_cast<int32_t>(many.frontier.size() / 7)}, 0.5, 0.9));
  json book = saved(many);
  EXPECT_EQ(failure_of(book), "no failure");
  book["frontier"].push_back(book["frontier"][0]);
  EXPECT_THAT(failure_of(book), HasSubstr("frontier is a list of 1025: expected a list of at most "
                                          "1024"));
}

TEST_F(PlanBookTest, TheCheapestPlanNeedsNoOrder) {
  PlanBook book = example();
  book.frontier = {entry({0, 2, 4}, 0.4, 0.99), entry(ReusePlan::reuse_all(), 0.1, 0.9),
                   entry({0, 2, 6}, 0.6, 0.95), entry({0, 2, 5}, 0.3, 0.985),
                   entry({0, 1, 7}, 0.8, 0.999)};
  EXPECT_EQ(book.cheapest(0.9)->plan, ReusePlan::reuse_all());
  EXPECT_EQ(book.cheapest(0.95)->plan, (ReusePlan{0, 2, 5}));
  EXPECT_EQ(book.cheapest(0.99)->plan, (ReusePlan{0, 2, 4}));
  EXPECT_EQ(book.cheapest(0.991)->plan, (ReusePlan{0, 1, 7}));
  EXPECT_EQ(book.cheapest(1), nullptr);
}

}  // namespace
}  // namespace droidspeak
