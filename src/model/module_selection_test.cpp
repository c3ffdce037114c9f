#include "model/module_selection.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/json_fields.h"

namespace droidspeak {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using Json = nlohmann::json;

ModuleSelection selection(const Json& value) {
  const std::string text = Json{{"target_modules", value}}.dump();
  return {JsonFields("adapter_config.json", text, {.depth = 8, .values = 1 << 20, .keys = 8}),
          "target_modules"};
}

// x: selected, as check_target_module_exists() of PEFT says.
TEST(ModuleSelections, SelectAsPeftDoes) {
  const char* const modules[] = {"model.layers.1.self_attn.q_proj",
                                 "model.layers.11.self_attn.q_proj", "model.layers.1.mlp.down_proj",
                                 "model.layers.0.mlp.experts.3.w1"};
  const std::pair<Json, std::string> cases[] = {
      {{"q_proj"}, "xx.."},
      {{"proj"}, "...."},
      {{"_proj"}, "...."},
      {{"q.proj"}, "...."},
      {{".*"}, "...."},
      {{""}, "...."},
      {{"."}, "...."},
      {{".q_proj"}, "...."},
      {{"self_attn.q_proj", "w1"}, "xx.x"},
      {{"1.self_attn.q_proj"}, "x..."},
      {{"layers.1.mlp.down_proj"}, "..x."},
      {{"model.layers.1.mlp.down_proj"}, "..x."},
      {{"self_attn", "mlp", "model.layers.1"}, "...."},
      {{"Q_PROJ"}, "...."},
      {"q_proj", "...."},
      {".*q_proj", "xx.."},
      {".*", "xxxx"},
      {R"(.*\.(q_proj|down_proj))", "xxx."},
      {R"(model\.layers\.1\..*|x)", "x.x."},
      {R"(model\.layers\.1)", "...."},
      {R"((?i).*Q_PROJ)", "xx.."},
      {R"(^.*proj$)", "xxx."},
      {R"(.*layers\.(?!11\.).*q_proj)", "x..."},
      {"", "...."},
      {Json::array(), "...."},
      {nullptr, "...."},
  };
  for (const auto& [value, expected] : cases) {
    const ModuleSelection selected = selection(value);
    std::string found;
    for (const char* module : modules) found += selected.has(module) ? 'x' : '.';
    EXPECT_EQ(found, expected) << value;
  }
}

// As a trainer writes it for models that see and read.
TEST(ModuleSelections, TakeTheLongExpressionsOfTrainers) {
  const std::string parts = "self_attn|attention|attn|mlp|feed_forward|ffn|dense|mixer";
  const std::string names = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj";
  const ModuleSelection selected =
      selection("(?:.*?(?:language|text).*?(?:" + parts + ").*?(?:" + names + ").*?)|(?:\\bmodel" +
                "\\.layers\\.[\\d]{1,}\\.(?:" + parts + ")\\.(?:(?:" + names + ")))");
  EXPECT_TRUE(selected.has("model.layers.31.mlp.down_proj"));
  EXPECT_TRUE(selected.has("model.language_model.layers.31.self_attn.q_proj"));
  EXPECT_FALSE(selected.has("model.layers.31.mlp.router"));
}

TEST(ModuleSelections, TakeLongListsOfPaths) {
  Json names;
  for (int i = 0; i < 60'000; ++i) names.push_back("model.layers." + std::to_string(i) + ".q_proj");
  const ModuleSelection selected = selection(names);
  for (int i = 0; i < 60'000; ++i)
    ASSERT_TRUE(selected.has("model.layers." + std::to_string(i) + ".q_proj"));
  EXPECT_FALSE(selected.has("model.layers.60000.q_proj"));
  EXPECT_LT(selected.shown().size(), 200u);
}

TEST(ModuleSelections, ShowWholeCharactersOnly) {
  std::string name = "a";
  for (int i = 0; i < 200; ++i) name += "\xC3\xA9";
  EXPECT_THAT(selection({name}).shown(), EndsWith("\xC3\xA9...)"));
}

}  // namespace
}  // namespace droidspeak
