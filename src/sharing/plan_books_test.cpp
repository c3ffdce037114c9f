#include "sharing/plan_books.h"

#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "device/device.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

constexpr int32_t kLayers = 4;

Digest digest(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

Variant variant(const std::string& name) {
  Variant made;
  made.name = name;
  made.model_digest = digest("model");
  made.adapter_digest = digest(name);
  return made;
}

class PlanBooksTest : public testing::Test {
 protected:
  std::filesystem::path write_book(const std::string& file, int32_t num_layers = kLayers) {
    PlanBook book;
    book.sender = sender_.name;
    book.sender_model = sender_.model_digest;
    book.sender_adapter = sender_.adapter_digest;
    book.receiver = receiver_.name;
    book.receiver_model = receiver_.model_digest;
    book.receiver_adapter = receiver_.adapter_digest;
    book.num_layers = num_layers;
    book.data_name = "none";
    PlanEntry entry;
    entry.plan = {0, 1, 3};
    book.frontier = {entry};
    save_plan_book(folder_.path() / file, book);
    return folder_.path() / file;
  }

  PlanBooks books(const std::vector<std::filesystem::path>& files,
                  const std::string& unprofiled = "") {
    ModelConfig config;
    config.num_layers = kLayers;
    FamilyFile family;
    family.path = "family.json";
    family.plan_books = files;
    family.unprofiled = unprofiled;
    return {*ops_, config, family};
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
  const Variant sender_ = variant("reader");
  const Variant receiver_ = variant("writer");
};

// Every field that says whose weights a book was measured with.
const std::map<std::string, std::function<void(Variant&)>> kChanges = {
    {"model", [](Variant& of) { of.model_digest = digest("another"); }},
    {"adapter", [](Variant& of) { of.adapter_digest = digest("another"); }},
};

TEST_F(PlanBooksTest, ABookCountsForItsPairOnly) {
  const PlanBooks found = books({write_book("book.json")});
  ASSERT_NE(found.find(sender_, receiver_), nullptr);
  EXPECT_EQ(found.find(receiver_, sender_), nullptr);
  for (const auto& [field, change] : kChanges) {
    Variant other_sender = sender_;
    change(other_sender);
    EXPECT_EQ(found.find(other_sender, receiver_), nullptr) << "sender's " << field;
    Variant other_receiver = receiver_;
    change(other_receiver);
    EXPECT_EQ(found.find(sender_, other_receiver), nullptr) << "receiver's " << field;
  }
}

TEST_F(PlanBooksTest, ABookCountsForItsPairWhateverTheirNames) {
  const PlanBooks found = books({write_book("book.json")});
  Variant sender = sender_;
  sender.name = receiver_.name;
  Variant receiver = receiver_;
  receiver.name = sender_.name;
  EXPECT_NE(found.find(sender, receiver), nullptr);
  EXPECT_EQ(found.find(receiver, sender), nullptr);
  EXPECT_EQ(found.captured_layers(sender), std::vector<int32_t>{1});
}

TEST_F(PlanBooksTest, CapturesLayersForItsOwnSendersOnly) {
  const PlanBooks found = books({write_book("book.json")});
  EXPECT_EQ(found.captured_layers(sender_), std::vector<int32_t>{1});
  EXPECT_TRUE(found.captured_layers(receiver_).empty());
  for (const auto& [field, change] : kChanges) {
    Variant other = sender_;
    change(other);
    EXPECT_TRUE(found.captured_layers(other).empty()) << field;
  }
}

TEST_F(PlanBooksTest, ABookOfAnotherDepthIsRefusedByName) {
  try {
    books({write_book("deeper.json", kLayers + 2)});
    FAIL() << "a book of six layers was taken for a model of four";
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("deeper.json"), std::string::npos);
    EXPECT_NE(std::string(failure.what()).find("num_layers is 6"), std::string::npos);
  }
}

// A tiny family whose files are changed behind the back of a book from "base" to "alpha".
class ChangedFamily : public PlanBooksTest {
 protected:
  std::unique_ptr<ModelFamily> load(const FamilyOptions& options = {}) const {
    return std::make_unique<ModelFamily>(*ops_, read_family_file(file_), options);
  }

  PlanBook measured() const {
    auto family = load();
    PlanBook book;
    set_pair(book, *family->get("base"), *family->get("alpha"));
    book.num_layers = kLayers;
    book.frontier.emplace_back().plan = {0, 1, 3};
    return book;
  }

  PlanBooks saved(const PlanBook& book) {
    save_plan_book(folder_.path() / "book.json", book);
    return books({folder_.path() / "book.json"});
  }

  void configure(const std::string& field, const nlohmann::json& value) const {
    const std::filesystem::path path = folder_.path() / "family/base/config.json";
    nlohmann::json config = nlohmann::json::parse(read_file(path));
    config[field] = value;
    write_file_atomically(path, config.dump());
  }

  static bool is_used(const PlanBooks& found, const ModelFamily& family) {
    auto sender = family.get("base");
    const bool is_found = found.find(*sender, *family.get("alpha")) != nullptr;
    EXPECT_EQ(found.captured_layers(*sender).empty(), !is_found);
    EXPECT_EQ(found.unused(family).empty(), is_found);
    return is_found;
  }

  const std::filesystem::path file_ = write_tiny_family(folder_.path() / "family");
};

TEST_F(ChangedFamily, ABookHoldsForHowWeightsAreUsedOnly) {
  const PlanBooks found = saved(measured());
  EXPECT_TRUE(is_used(found, *load()));
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"rope_theta", 10001.0},
      {"rms_norm_eps", 1e-6},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}};
  for (const auto& [field, value] : changes) {
    const std::string before = read_file(folder_.path() / "family/base/config.json");
    configure(field, value);
    auto family = load();
    EXPECT_FALSE(is_used(found, *family)) << field;
    ASSERT_EQ(found.unused(*family).size(), 1u) << field;
    EXPECT_THAT(found.unused(*family)[0],
                testing::AllOf(testing::HasSubstr("book.json: "),
                               testing::HasSubstr("made for another configuration of \"base\"")));
    write_file_atomically(folder_.path() / "family/base/config.json", before);
  }
  EXPECT_TRUE(is_used(found, *load()));
}

TEST_F(ChangedFamily, ABookHoldsForEveryPrecisionAndLength) {
  const PlanBooks found = saved(measured());
  for (Precision precision : {Precision::kFast, Precision::kFine, Precision::kExact})
    EXPECT_TRUE(is_used(found, *load({.precision = precision})));
  EXPECT_TRUE(is_used(found, *load({.max_model_len = 100})));
  configure("max_position_embeddings", 8192);
  EXPECT_TRUE(is_used(found, *load()));
}

TEST_F(ChangedFamily, ABookWithoutAFormulaHoldsForEveryUseOfItsWeights) {
  PlanBook book = measured();
  book.sender_formula.reset();
  book.receiver_formula.reset();
  const PlanBooks found = saved(book);
  configure("rope_theta", 10001.0);
  EXPECT_TRUE(is_used(found, *load()));
}

TEST_F(PlanBooksTest, APairWithoutABookHasThePlanOfTheFamily) {
  const PlanBooks none = books({});
  EXPECT_FALSE(none.may_share(sender_, receiver_));
  const PlanBooks allowed = books({}, "reuse+10%");
  EXPECT_TRUE(allowed.may_share(sender_, receiver_));
  EXPECT_EQ(allowed.unprofiled(), (ReusePlan{0, 0, 0, 100}));
  EXPECT_EQ(allowed.choose({.is_auto = true}, sender_, receiver_).shown, "reuse+10%");
  EXPECT_EQ(none.choose({.is_auto = true}, sender_, receiver_).shown, "full");
}

TEST_F(PlanBooksTest, APairWhoseBookHasNoMapsIsNotTranslated) {
  const PlanBooks found = books({write_book("book.json")});
  const ChosenPlan chosen = found.choose({.plan = {0, 2, 3}}, sender_, receiver_);
  EXPECT_EQ(chosen.shown, "0,2,3");
  EXPECT_EQ(chosen.translator, nullptr);
}

TEST_F(PlanBooksTest, PlansAreShownAsTheyCouldBeAskedFor) {
  const PlanBooks found = books({write_book("book.json")});
  auto shown = [&](const PlanBooks& of, const std::string& plan) {
    return of.choose(parse_plan_request(plan, kLayers), sender_, receiver_).shown;
  };
  EXPECT_EQ(shown(found, "0,0,0"), "reuse") << "there are no maps";
  EXPECT_EQ(shown(found, "0,2,2"), "reuse") << "there are no maps";
  EXPECT_EQ(shown(found, "0,0,0r"), "reuse");
  EXPECT_EQ(shown(found, "reuse"), "reuse");
  EXPECT_EQ(shown(found, "reuse+10%"), "reuse+10%");
  EXPECT_EQ(shown(books({}, "reuse"), "0,0,0"), "reuse") << "there are no maps";
}

TEST_F(PlanBooksTest, AutoIsTheCheapestPlanOfTheBookThatIsGoodEnough) {
  const PlanBooks found = books({write_book("book.json")}, "reuse");
  const PlanRequest any{.is_auto = true};
  EXPECT_EQ(found.choose(any, sender_, receiver_).shown, "0,1,3");
  EXPECT_EQ(found.choose(any, sender_, receiver_, 1.5).shown, "full");
  EXPECT_EQ(found.choose(any, receiver_, sender_).shown, "reuse") << "a pair without a book";
  EXPECT_EQ(found.choose(any, sender_, receiver_).look_layer, 1);
  EXPECT_EQ(found.choose(any, sender_, receiver_).translator, nullptr);
}

TEST_F(PlanBooksTest, MapsAreForPlansThatAreTranslatedAndReuseSomething) {
  TranslationMaps maps;
  maps.inputs[1] = {1, std::vector<float>(6, 0.5f), std::vector<float>(6, 0.5f),
                    std::vector<float>(6, 0.0f)};
  save_translation(folder_.path() / "maps.safetensors", maps);
  PlanBook book = load_plan_book(write_book("book.json"));
  book.maps_file = folder_.path() / "maps.safetensors";
  book.frontier[0].relative_cost = 0.5;
  book.frontier[0].quality_index = 0.9;
  PlanEntry translated{.plan = {0, 1, 4}, .translated = true, .quality = {}};
  translated.relative_cost = 0.75;
  book.frontier.push_back(translated);
  book.look_layer = 3;
  save_plan_book(folder_.path() / "book.json", book);
  ModelConfig config;
  config.num_layers = kLayers;
  config.d_model = 6;
  FamilyFile family;
  family.plan_books = {folder_.path() / "book.json"};
  const PlanBooks found(*ops_, config, family);
  auto chosen = [&](const std::string& plan, double floor = 0.99) {
    return found.choose(parse_plan_request(plan, kLayers), sender_, receiver_, floor);
  };
  EXPECT_EQ(chosen("auto", 0.5).shown, "0,1,3");
  EXPECT_EQ(chosen("auto", 0.5).translator, nullptr) << "the book says so";
  EXPECT_EQ(chosen("auto").shown, "0,1,4");
  EXPECT_NE(chosen("auto").translator, nullptr);
  EXPECT_NE(chosen("0,1,3").translator, nullptr);
  EXPECT_EQ(chosen("0,1,3r").translator, nullptr);
  EXPECT_EQ(chosen("full").translator, nullptr);
  for (const char* plan : {"0,0,0", "0,3,3"}) {
    EXPECT_NE(chosen(plan).translator, nullptr) << plan;
    EXPECT_EQ(chosen(plan).shown, "0,0,0") << "reuse would be the raw plan";
  }
  EXPECT_EQ(chosen("0,3,3r").shown, "reuse");
  EXPECT_EQ(chosen("0,1,3").look_layer, 3);
}

TranslationMaps maps_of(float value) {
  TranslationMaps maps;
  maps.inputs[1] = {1, std::vector<float>(6, value), std::vector<float>(6, value),
                    std::vector<float>(6, 0.0f)};
  return maps;
}

// Those of another pair fit the model just as well.
TEST_F(PlanBooksTest, OtherMapsThanThoseOfTheBookAreRefused) {
  const std::filesystem::path own = folder_.path() / "own.safetensors";
  const std::filesystem::path other = folder_.path() / "other.safetensors";
  save_translation(own, maps_of(0.5f));
  save_translation(other, maps_of(0.25f));
  PlanBook book = load_plan_book(write_book("book.json"));
  ModelConfig config;
  config.num_layers = kLayers;
  config.d_model = 6;
  FamilyFile family;
  family.plan_books = {folder_.path() / "book.json"};
  auto load = [&](const std::filesystem::path& maps) {
    book.maps_file = maps;
    save_plan_book(family.plan_books[0], book);
    return PlanBooks(*ops_, config, family).pairs()[0].maps->digest();
  };
  const Digest digest_of_own = load(own);
  EXPECT_NE(load(other), digest_of_own) << "a book that does not say takes both";
  book.maps_digest = digest_of_own;
  EXPECT_EQ(load(own), digest_of_own);
  try {
    load(other);
    FAIL() << "another pair's maps were taken";
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), testing::HasSubstr("book.json: maps_sha256 is "));
    EXPECT_THAT(failure.what(), testing::HasSubstr("other.safetensors is another file"));
  }
}

TEST_F(PlanBooksTest, TwoBooksForOnePairAreRefusedByName) {
  const std::filesystem::path first = write_book("first.json");
  const std::filesystem::path second = write_book("second.json");
  try {
    books({first, second});
    FAIL() << "one of two books was taken";
  } catch (const Failure& failure) {
    for (const char* text : {"family.json: plan_books: ", "first.json", "second.json",
                             "both for sender \"reader\" and receiver \"writer\""})
      EXPECT_THAT(failure.what(), testing::HasSubstr(text));
  }
  PlanBook other = load_plan_book(second);
  auto save = [&] { save_plan_book(second, other); };
  other.sender_adapter = digest("another");
  save();
  EXPECT_EQ(books({first, second}).pairs().size(), 2u);
  // Only one of them can hold for how the weights are used.
  PlanBook same = load_plan_book(first);
  same.sender_formula = digest("one formula");
  save_plan_book(first, same);
  other.sender_adapter = same.sender_adapter;
  save();
  EXPECT_THROW(books({first, second}), Failure) << "it holds for every use of its weights";
  other.sender_formula = digest("another formula");
  save();
  EXPECT_EQ(books({first, second}).pairs().size(), 2u);
}

TEST_F(PlanBooksTest, APlanThatNeedsABookIsNoneForPairsWithout) {
  for (const char* plan : {"0,1,3", "0,1,3+10%", "full", "auto", "auto+", "reuse+0%", "most"}) {
    try {
      books({}, plan);
      ADD_FAILURE() << plan;
    } catch (const Failure& failure) {
      EXPECT_THAT(failure.what(), testing::HasSubstr("family.json: unprofiled")) << plan;
      EXPECT_THAT(failure.what(), testing::HasSubstr(plan)) << plan;
    }
  }
}

}  // namespace
}  // namespace droidspeak
