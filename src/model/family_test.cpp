#include "model/family.h"

#include <fstream>
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/checkpoint.h"
#include "model/family_check.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

// The tiny family and a full checkpoint "twin" of other weights beside it.
class Families : public testing::Test {
 protected:
  Families() : device_(make_cpu_device()), ops_(make_cpu_ops(*device_, 1)) {
    file_ = read_family_file(write_tiny_family(folder_.path()));
    write_tiny_checkpoint(twin(), {.seed = 7});
    file_.variants.push_back({"twin", twin(), {}});
  }

  std::filesystem::path twin() const { return folder_.path() / "twin"; }

  std::unique_ptr<ModelFamily> load() {
    return std::make_unique<ModelFamily>(*ops_, file_, options_);
  }

  static std::string failure_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  std::string refusal() {
    return failure_of([&] { load(); });
  }

  // Rewrites the configuration of the family's adapter "alpha".
  void edit_adapter(const std::function<void(Json&)>& change) const {
    std::filesystem::path path = folder_.path() / "adapters/alpha/adapter_config.json";
    Json json = Json::parse(std::ifstream(path));
    change(json);
    std::ofstream(path) << json;
  }

  // Rewrites the twin's tokenizer.json.
  void edit_tokenizer(const std::function<void(Json&)>& change) const {
    std::filesystem::path path = twin() / "tokenizer.json";
    Json json = Json::parse(std::ifstream(path));
    change(json);
    std::ofstream(path) << json;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  FamilyFile file_;
  FamilyOptions options_{.precision = Precision::kExact};
};

// Members read each other's caches and are served with one limit: the shortest.
TEST_F(Families, HaveTheLengthOfTheirShortestMember) {
  write_tiny_checkpoint(twin(), {.seed = 7, .max_positions = 256});
  auto family = load();
  for (const auto& variant : family->variants())
    EXPECT_EQ(variant->transformer->max_positions(), 256) << variant->name;
  ModelFamily part(*ops_, file_, options_, {"alpha"});
  EXPECT_EQ(part.base()->transformer->max_positions(), 256) << "whatever is loaded of it";
  options_.max_model_len = 257;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("--max-model-len 257"), HasSubstr(twin().string()),
                               HasSubstr("at most 256")));
  options_.max_model_len = 200;
  EXPECT_EQ(load()->get("twin")->transformer->max_positions(), 200);
}

// Caches are told apart by it.
TEST_F(Families, AreOfThePrecisionThatWasAskedFor) {
  std::set<Digest> configurations;
  for (Precision precision : {Precision::kFast, Precision::kFine, Precision::kExact}) {
    options_.precision = precision;
    configurations.insert(load()->base()->transformer->configuration());
  }
  EXPECT_EQ(configurations.size(), 3u);
}

// Tables of rotations would take 64 GiB.
TEST_F(Families, RefuseLengthsThatNobodyHasMemoryFor) {
  write_tiny_checkpoint(file_.base.path, {.max_positions = 1 << 30});
  write_tiny_checkpoint(twin(), {.seed = 7, .max_positions = 1 << 30});
  EXPECT_THAT(refusal(), AllOf(HasSubstr(file_.base.path.string()),
                               HasSubstr("contexts of 1073741824 tokens take 68719476736 bytes"),
                               HasSubstr("--max-model-len 16777216 or less")));
  options_.max_model_len = 1000;
  EXPECT_EQ(refusal(), "");
}

TEST_F(Families, HoldFullCheckpointsBesideAdapters) {
  auto family = load();
  EXPECT_EQ(family->variants().size(), 4u);
  EXPECT_NE(family->get("twin")->transformer, family->base()->transformer);
  EXPECT_EQ(family->get("alpha")->transformer, family->base()->transformer);
}

TEST_F(Families, SayHowEmbeddingsArePooled) {
  std::filesystem::path path = folder_.path() / "family.json";
  Json json = Json::parse(std::ifstream(path));
  json["base"]["pooling"] = "mean";
  json["variants"][0]["pooling"] = "last";
  std::ofstream(path) << json;
  FamilyFile file = read_family_file(path);
  EXPECT_EQ(file.base.pooling, Pooling::kMean);
  EXPECT_EQ(file.variants[0].pooling, Pooling::kLast);
  EXPECT_EQ(file.variants[1].pooling, Pooling::kNone);
  ModelFamily family(*ops_, file, options_);
  EXPECT_EQ(family.base()->pooling, Pooling::kMean);
  EXPECT_EQ(family.get(file.variants[0].name)->pooling, Pooling::kLast);
  json["base"]["pooling"] = "max";
  std::ofstream(path) << json;
  EXPECT_THAT(failure_of([&] { read_family_file(path); }),
              AllOf(HasSubstr("pooling"), HasSubstr("\"mean\" or \"last\"")));
}

TEST_F(Families, RefuseACheckpointOfAnotherShape) {
  write_tiny_checkpoint(twin(), {.seed = 7, .num_layers = 5});
  EXPECT_THAT(refusal(), HasSubstr("number of layers is 5 where the base has 4"));
}

TEST_F(Families, RefuseATokenWithAnotherId) {
  edit_tokenizer([](Json& json) {
    Json& vocabulary = json["model"]["vocab"];
    std::swap(vocabulary["a"], vocabulary["b"]);
  });
  EXPECT_THAT(refusal(), HasSubstr("its tokenizer differs: vocabulary: token \"a\" is 98 where the "
                                   "base has 97"));
}

TEST_F(Families, RefuseATokenThatTheBaseLacks) {
  edit_tokenizer([](Json& json) { json["model"]["vocab"]["new"] = 300; });
  EXPECT_THAT(refusal(), HasSubstr("token \"new\" (300) is not in the base"));
}

TEST_F(Families, RefuseOtherMerges) {
  edit_tokenizer([](Json& json) { json["model"]["merges"] = {"a b"}; });
  std::filesystem::copy_file(twin() / "tokenizer.json", file_.base.path / "tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(refusal(), "");
  edit_tokenizer([](Json& json) { json["model"]["merges"] = Json::array({{"a", "b"}}); });
  EXPECT_EQ(refusal(), "") << "the same merge in the newer spelling";
  edit_tokenizer([](Json& json) { json["model"]["merges"] = {"b a"}; });
  EXPECT_THAT(refusal(), HasSubstr("merges: number 0 is \"b a\" where the base has \"a b\""));
  edit_tokenizer([](Json& json) { json["model"]["merges"] = {"a b", "b a"}; });
  EXPECT_THAT(refusal(), HasSubstr("merges: number 1 is \"b a\" where the base has none"));
}

TEST_F(Families, RefuseOtherSpecialTokens) {
  edit_tokenizer([](Json& json) { json["added_tokens"][1]["special"] = false; });
  EXPECT_THAT(refusal(), HasSubstr("special tokens: 257 is plain where the base has it special"));
  edit_tokenizer([](Json& json) {
    json["added_tokens"][1]["special"] = true;
    json["added_tokens"][1]["id"] = 300;
  });
  EXPECT_THAT(refusal(), HasSubstr("token \"<|im_start|>\" is 300 where the base has 257"));
}

// Caches hold what the base's tokenizer makes of a text.
TEST_F(Families, RefuseATokenizerThatOnlyReadsTextsOtherwise) {
  edit_tokenizer([](Json& json) { json["normalizer"] = {{"type", "NFKC"}}; });
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("variant \"twin\" does not fit the base"),
                    HasSubstr("its tokenizer differs: normalizer is [{\"type\":\"NFKC\"}] "
                              "where the base has []")));
  edit_tokenizer([](Json& json) {
    json["normalizer"] = nullptr;
    json["pre_tokenizer"]["use_regex"] = false;
  });
  EXPECT_THAT(refusal(), HasSubstr("its tokenizer differs: pre_tokenizer is"));
  edit_tokenizer([](Json& json) {
    json["pre_tokenizer"].erase("use_regex");
    json["added_tokens"][1]["rstrip"] = true;
  });
  EXPECT_THAT(refusal(), HasSubstr("its tokenizer differs: added token \"<|im_start|>\" is"));
}

// Trainers put one beside adapters, too.
TEST_F(Families, RefuseAnAdapterWithATokenizerOfOtherIds) {
  const std::filesystem::path adapter = folder_.path() / "adapters/alpha";
  std::filesystem::copy_file(file_.base.path / "tokenizer.json", adapter / "tokenizer.json");
  EXPECT_EQ(refusal(), "") << "the same";
  Json json = Json::parse(std::ifstream(adapter / "tokenizer.json"));
  std::swap(json["model"]["vocab"]["A"], json["model"]["vocab"]["B"]);
  std::ofstream(adapter / "tokenizer.json") << json;
  EXPECT_THAT(refusal(), AllOf(HasSubstr("variant \"alpha\""), HasSubstr(adapter.string()),
                               HasSubstr("its tokenizer differs: vocabulary: token \"A\" is")));
  for (const MemberCheck& check : check_family(file_))
    EXPECT_EQ(check.problem.starts_with("its tokenizer differs"), check.name == "alpha")
        << check.problem;
}

// Trainers add tokens to pad with, and mark others as special.
TEST_F(Families, TakeAnAdapterWithMoreTokens) {
  const std::filesystem::path adapter = folder_.path() / "adapters/alpha";
  Json json = Json::parse(std::ifstream(file_.base.path / "tokenizer.json"));
  json["added_tokens"].push_back({{"id", 500}, {"content", "[PAD]"}, {"special", true}});
  json["added_tokens"][1]["special"] = false;
  std::ofstream(adapter / "tokenizer.json") << json;
  EXPECT_EQ(refusal(), "");
  const std::vector<MemberCheck> checks = check_family(file_);
  EXPECT_EQ(checks[1].problem, "");
  ASSERT_EQ(checks[1].differences.size(), 1u);
  EXPECT_THAT(checks[1].differences.front(), HasSubstr("token \"[PAD]\" (500) is not in the base"));
}

TEST_F(Families, TakeACheckpointWithoutATokenizerOfItsOwn) {
  std::filesystem::remove(twin() / "tokenizer.json");
  EXPECT_EQ(refusal(), "");
}

TEST_F(Families, NameTheTokenizerFileThatCannotBeRead) {
  std::ofstream(twin() / "tokenizer.json") << "{";
  EXPECT_THAT(refusal(), HasSubstr("twin/tokenizer.json"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  std::ofstream(twin() / "tokenizer.json")
      << R"({"model": {"vocab": {}}, "added_tokens": )" << deep << "}";
  EXPECT_THAT(refusal(), HasSubstr("twin/tokenizer.json: JSON is nested deeper than 64"));
}

TEST_F(Families, NameTheVariantWhoseAdapterIsWrong) {
  edit_adapter([](Json& json) { json["r"] = 0; });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("family.json: variant \"alpha\": "),
                               HasSubstr("alpha/adapter_config.json: field \"r\" is 0")));
  std::filesystem::remove_all(folder_.path() / "adapters/alpha");
  EXPECT_THAT(refusal(), AllOf(HasSubstr("family.json: variant \"alpha\": "),
                               HasSubstr("adapters/alpha: cannot open")));
}

// Sharing would be off, or a model another one, and nobody told.
TEST_F(Families, RefuseFieldsThatNobodyReads) {
  const nlohmann::json good = nlohmann::json::parse(read_file(file_.path));
  for (auto [place, field] :
       {std::pair("", "planbooks"), {"/base", "adaptor"}, {"/variants/0", "scale"}}) {
    nlohmann::json json = good;
    json[nlohmann::json::json_pointer(place)][field] = "x";
    std::ofstream(file_.path) << json;
    EXPECT_THAT(failure_of([&] { read_family_file(file_.path); }),
                AllOf(HasSubstr(std::string(field) + "\" is \"x\": expected no such field"),
                      HasSubstr("name")));
  }
}

// The second list would leave the first one's models out without a word.
TEST_F(Families, RefuseAFieldThatIsThereTwice) {
  const std::filesystem::path path = folder_.path() / "family.json";
  std::string text = read_file(path);
  text.insert(text.rfind('}'), ",\"variants\":[]");
  write_file_atomically(path, text);
  EXPECT_THAT(failure_of([&] { read_family_file(path); }),
              AllOf(HasSubstr("family.json: "),
                    HasSubstr("the field \"variants\" is there twice: expected once")));
}

TEST_F(Families, RefuseDeepNesting) {
  std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  std::ofstream(file_.path) << R"({"name": )" << deep << "}";
  EXPECT_THAT(failure_of([&] { read_family_file(file_.path); }),
              HasSubstr("family.json: JSON is nested deeper than 64"));
}

TEST_F(Families, RefuseFilesWithoutEnd) {
  std::string many = "0";
  for (int i = 0; i < 21; ++i) many += "," + many;
  std::ofstream(file_.path) << R"({"name": [)" << many << "]}";
  EXPECT_THAT(failure_of([&] { read_family_file(file_.path); }),
              HasSubstr("family.json: JSON has more than 1048576 values"));
  std::ofstream(file_.path) << R"({"name": ")" << std::string(17 << 20, 'x') << R"("})";
  EXPECT_THAT(failure_of([&] { read_family_file(file_.path); }),
              HasSubstr("family.json: 17825804 bytes, at most 16777216 are read"));
}

TEST_F(Families, AdaptersReplaceAdaptersOnly) {
  auto family = load();
  std::filesystem::path adapter = folder_.path() / "adapters" / "beta";
  family->add_adapter("alpha", adapter);
  EXPECT_EQ(family->get("alpha")->adapter_digest, family->get("beta")->adapter_digest);
  EXPECT_THROW(family->add_adapter("base", adapter), Failure);
  EXPECT_THROW(family->add_adapter("twin", adapter), Failure);
  EXPECT_EQ(family->variants().size(), 4u);
  EXPECT_EQ(family->get("base"), family->base());
}

TEST_F(Families, KnowWhereTheirMembersComeFrom) {
  auto family = load();
  EXPECT_EQ(family->base()->parent, "");
  EXPECT_EQ(family->base()->path, file_.base.path);
  const auto twin_variant = family->get("twin");
  EXPECT_EQ(twin_variant->parent, "base");
  EXPECT_EQ(twin_variant->path, twin());
  EXPECT_EQ(twin_variant->adapter, nullptr);
  EXPECT_EQ(twin_variant->model_digest, Checkpoint(twin()).digest());
  EXPECT_NE(twin_variant->model_digest, family->base()->model_digest);
  const auto alpha = family->get("alpha");
  EXPECT_EQ(alpha->parent, "base");
  EXPECT_EQ(alpha->path, folder_.path() / "adapters/alpha");
  EXPECT_EQ(alpha->model_digest, family->base()->model_digest);
  EXPECT_EQ(alpha->adapter_digest, alpha->adapter->digest);
  EXPECT_NE(alpha->adapter_digest, Digest());
  EXPECT_THAT(failure_of([&] { family->get("gamma"); }),
              HasSubstr("\"gamma\" is not in family \"tiny\": there are base, alpha, beta, twin"));
}

TEST_F(Families, LoadWhatIsWanted) {
  ModelFamily part(*ops_, file_, options_, {"beta"});
  ASSERT_EQ(part.variants().size(), 2u);
  EXPECT_NE(part.find("beta"), nullptr);
  EXPECT_EQ(part.find("alpha"), nullptr);
}

TEST_F(Families, AreServedUpToTheirLength) {
  options_.max_model_len = 4096;
  EXPECT_EQ(load()->base()->transformer->max_positions(), 4096);
  options_.max_model_len = 4097;
  EXPECT_THAT(refusal(), HasSubstr("at most 4096"));
}

TEST_F(Families, LoseAdaptersOnly) {
  auto family = load();
  EXPECT_FALSE(family->remove_adapter("base"));
  EXPECT_FALSE(family->remove_adapter("twin"));
  EXPECT_FALSE(family->remove_adapter("nothing"));
  EXPECT_TRUE(family->remove_adapter("alpha"));
  EXPECT_FALSE(family->remove_adapter("alpha"));
  EXPECT_EQ(family->variants().size(), 3u);
  EXPECT_NE(family->find("beta"), nullptr);
}

// Under the name of one that family.json pools another folder may come.
TEST_F(Families, PoolOnlyTheAdapterThatTheFileNames) {
  file_.variants[0].pooling = Pooling::kMean;
  auto family = load();
  EXPECT_EQ(family->get("alpha")->pooling, Pooling::kMean);
  EXPECT_EQ(family->get("beta")->pooling, Pooling::kNone);
  family->add_adapter("alpha", folder_.path() / "adapters/beta");
  EXPECT_EQ(family->get("alpha")->pooling, Pooling::kNone);
  family->add_adapter("gamma", folder_.path() / "adapters/alpha");
  EXPECT_EQ(family->get("gamma")->pooling, Pooling::kNone);
  EXPECT_EQ(family->variants().size(), 5u);
}

TEST_F(Families, HaveMembersWithOneNameAndOnePlace) {
  const Json good = Json::parse(read_file(file_.path));
  auto refusal_with = [&](const char* place, const Json& value) {
    Json json = good;
    json[Json::json_pointer(place)] = value;
    std::ofstream(file_.path) << json;
    return failure_of([&] { read_family_file(file_.path); });
  };
  EXPECT_EQ(refusal_with("/variants/0/name", std::string(256, 'n')), "");
  for (const std::string& name : {std::string(), std::string(257, 'n')})
    EXPECT_THAT(refusal_with("/variants/0/name", name), HasSubstr("1 to 256 characters"));
  for (const char* used : {"base", "beta"})
    EXPECT_THAT(refusal_with("/variants/0/name", used), HasSubstr("a name that is used once"));
  EXPECT_THAT(refusal_with("/variants/0/path", "base"),
              HasSubstr("adapter\" is \"adapters/alpha\": expected either \"path\" or"));
  EXPECT_THAT(refusal_with("/variants/0/adapter", nullptr),
              HasSubstr("\"variants[0].path\" is missing: expected either \"path\" or"));
  EXPECT_THAT(refusal_with("/base", nullptr), HasSubstr("\"base\" is null: expected an object"));
  EXPECT_THAT(refusal_with("/base", {{"name", "base"}, {"adapter", "adapters/alpha"}}),
              HasSubstr("\"base.adapter\""));
  EXPECT_EQ(refusal_with("/variants", nullptr), "");
}

TEST_F(Families, NameTheirBooksBesideTheFile) {
  Json json = Json::parse(read_file(file_.path));
  json["plan_books"] = {"books/a.json", "b.json"};
  json["codec_steps"] = "steps.json";
  json["unprofiled"] = "never";
  std::ofstream(file_.path) << json;
  for (const auto& path : {folder_.path(), file_.path}) {
    const FamilyFile file = read_family_file(path);
    EXPECT_EQ(file.path, file_.path);
    EXPECT_EQ(file.name, "tiny");
    EXPECT_EQ(file.plan_books, (std::vector<std::filesystem::path>{folder_.path() / "books/a.json",
                                                                   folder_.path() / "b.json"}));
    EXPECT_EQ(file.codec_steps, folder_.path() / "steps.json");
    EXPECT_EQ(file.unprofiled, "never");
  }
}

TEST_F(Families, AreCheckedMemberByMember) {
  write_tiny_checkpoint(folder_.path() / "other", {.seed = 7, .num_layers = 5});
  file_.variants.push_back({"other", folder_.path() / "other", {}});
  write_tiny_adapter(folder_.path() / "adapters/active", {}, {.invocation = {1, 2}});
  file_.variants.push_back({"active", {}, folder_.path() / "adapters/active"});
  edit_adapter([](Json& json) { json["r"] = 0; });
  edit_tokenizer([](Json& json) { json["model"]["vocab"]["new"] = 300; });
  std::vector<MemberCheck> checks = check_family(file_);
  ASSERT_EQ(checks.size(), 6u);
  EXPECT_EQ(checks[0].name, "base");
  EXPECT_EQ(checks[0].kind, MemberKind::kBase);
  EXPECT_EQ(checks[0].problem, "");
  EXPECT_EQ(checks[1].kind, MemberKind::kAdapter);
  EXPECT_EQ(checks[1].path, folder_.path() / "adapters/alpha");
  EXPECT_THAT(checks[1].problem, HasSubstr("field \"r\" is 0"));
  EXPECT_EQ(checks[2].problem, "");
  EXPECT_FALSE(checks[2].is_activated);
  EXPECT_EQ(checks[3].kind, MemberKind::kCheckpoint);
  EXPECT_EQ(checks[3].path, twin());
  EXPECT_THAT(checks[3].problem, HasSubstr("its tokenizer differs: vocabulary: token \"new\""));
  EXPECT_THAT(checks[4].problem, HasSubstr("number of layers is 5"));
  EXPECT_TRUE(checks[5].is_activated);
  std::filesystem::remove(file_.base.path / "config.json");
  checks = check_family(file_);
  EXPECT_THAT(checks[0].problem, HasSubstr("config.json"));
  EXPECT_EQ(checks[2].problem, "what it should fit, the base, cannot be read");
}

}  // namespace
}  // namespace droidspeak
