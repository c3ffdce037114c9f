// adapter_config.json: what of it counts, and what is refused and how.
#include "model/adapter_config.h"

#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "support/adapter_fixture.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;
using AdapterFields = AdapterTest;

TEST_F(AdapterFields, RefuseFieldsThatChangeTheMeaning) {
  const std::pair<const char*, Json> fields[] = {
      {"peft_type", "IA3"},
      {"use_dora", true},
      {"bias", "all"},
      {"bias", "lora_only"},
      {"lora_bias", true},
      {"fan_in_fan_out", true},
      {"modules_to_save", {"lm_head"}},
      {"use_qalora", true},
      {"layer_replication", Json::array({{0, 2}})},
      {"trainable_token_indices", {5}},
      {"trainable_token_indices", {{"embed_tokens", {5}}}},
      {"megatron_config", {{"a", 1}}},
      {"arrow_config", {{"top_k", 3}}},
      {"kasa_config", {{"beta", 1}}},
      {"monteclora_config", {{"num_samples", 8}}},
      {"use_bdlora", {{"nblocks", 2}}},
      {"ensure_weight_tying", true},
      {"layers_pattern", "blocks"},
      {"layers_pattern", {"layers", "blocks"}},
      {"layers_to_transform", "0"},
      {"layers_to_transform", -1},
      {"layers_to_transform", 0.5},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "pissa_niter_16"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "corda"},
      {"init_lora_weights", "loftq"},
      {"init_lora_weights", "lora_ga"},
      {"init_lora_weights", "something"},
      {"init_lora_weights", 1},
      {"use_rslora", "yes"},
      {"rank_pattern", {1}},
      {"alpha_pattern", "q_proj"}};
  for (const auto& [field, value] : fields) {
    EXPECT_THAT(refusal_with(field, value),
                HasSubstr(std::string("field \"") + field + "\" is " + value.dump()));
  }
  EXPECT_THAT(refusal_with("layers_to_transform", {0, -1}),
              HasSubstr("field \"layers_to_transform[1]\" is -1"));
}

TEST_F(AdapterFields, RefuseUnknownFieldsThatAreNotBlank) {
  for (const Json& value :
       {Json(true), Json(1), Json(-0.5), Json("on"), Json({1}), Json({{"a", 0}})})
    EXPECT_THAT(refusal_with("use_magic", value), HasSubstr("not known to this version"));
  for (const Json& value :
       {Json(false), Json(0), Json(0.0), Json(""), Json(nullptr), Json::array(), Json::object()})
    EXPECT_EQ(refusal_with("use_magic", value), "") << value;
}

TEST_F(AdapterFields, TakeFieldsThatDoNotMatterHere) {
  const std::pair<const char*, Json> fields[] = {
      {"base_model_name_or_path", "another/base"},
      {"task_type", "CAUSAL_LM"},
      {"revision", "main"},
      {"inference_mode", true},
      {"peft_version", "0.21.2"},
      {"auto_mapping", {{"base_model_class", "LlamaForCausalLM"}}},
      {"lora_dropout", 0.1},
      {"target_parameters", {"mlp.experts.down_proj"}},
      {"megatron_core", "megatron.core"},
      {"qalora_group_size", 16},
      {"loftq_config", {{"loftq_bits", 4}}},
      {"eva_config", {{"rho", 2}}},
      {"corda_config", {{"corda_method", "ipm"}}},
      {"lora_ga_config", {{"direction", "ArB2r"}}},
      {"velora_config", {{"num_groups", 64}}},
      {"runtime_config", {{"ephemeral_gpu_offload", true}}},
      {"init_lora_weights", false},
      {"init_lora_weights", "gaussian"},
      {"init_lora_weights", "eva"},
      {"init_lora_weights", "Orthogonal"},
      {"layers_pattern", "layers"},
      {"layers_to_transform", {0, 1}},
      {"layers_to_transform", Json::array()},
      {"use_dora", nullptr},
      {"modules_to_save", Json::array()},
      {"alora_invocation_tokens", nullptr}};
  for (const auto& [field, value] : fields) EXPECT_EQ(refusal_with(field, value), "") << field;
}

// Shapes alone do not tell: many architectures have layers of the same ones.
TEST_F(AdapterFields, RefuseAnotherArchitecture) {
  auto refusal_for = [&](const std::string& library) {
    return refusal_with("auto_mapping", {{"base_model_class", "Any"}, {"parent_library", library}});
  };
  for (const char* type : {"qwen2", "granite", "gemma2", "gemma3", "phi3", "smollm3"}) {
    EXPECT_THAT(refusal_for(fmt::format("transformers.models.{0}.modeling_{0}", type)),
                AllOf(HasSubstr("field \"auto_mapping.parent_library\" is"), HasSubstr(type),
                      HasSubstr("architecture, llama")));
  }
  for (const char* library :
       {"transformers.models.llama.modeling_llama", "transformers.models.mistral.modeling_mistral",
        "transformers.models.unknown.modeling_unknown", "transformers_modules.own.modeling_qwen2",
        "unsloth.models.qwen2", ""}) {
    EXPECT_EQ(refusal_for(library), "") << library;
  }
}

TEST_F(AdapterFields, ReadTheInvocationOfAnActivatedLora) {
  EXPECT_TRUE(load()->invocation.empty());
  config_["alora_invocation_tokens"] = {1, 0, 319};
  EXPECT_EQ(load()->invocation, (std::vector<int32_t>{1, 0, 319}));
  config_["alora_invocation_tokens"] = std::vector<int32_t>(256, 7);
  EXPECT_EQ(load()->invocation.size(), 256u);
}

TEST_F(AdapterFields, RefuseInvocationsThatCannotBe) {
  const Json values[] = {Json::array(),
                         {320},
                         {1, -1},
                         {1.5},
                         {"1"},
                         {nullptr},
                         Json::array({Json::array({1})}),
                         {4294967297},
                         5,
                         0,
                         false,
                         "assistant",
                         Json::object(),
                         Json{{"tokens", {1}}},
                         std::vector<int32_t>(257, 7)};
  for (const Json& value : values) {
    EXPECT_THAT(refusal_with("alora_invocation_tokens", value),
                AllOf(HasSubstr("adapter_config.json"),
                      HasSubstr("field \"alora_invocation_tokens"), HasSubstr("0 to 319")))
        << value;
  }
}

TEST_F(AdapterFields, RefuseTensorsOfLayersLeftOut) {
  EXPECT_THAT(refusal_with("layers_to_transform", {0, 2}),
              HasSubstr("is for layer 1, which layers_to_transform leaves out"));
  EXPECT_THAT(refusal_with("layers_to_transform", 1), HasSubstr("is for layer 0"));
}

TEST_F(AdapterFields, TakeTensorsOfTheModulesThatAreNamed) {
  const Json values[] = {"all-linear",
                         "All-Linear",
                         ".*_proj",
                         R"(model\.layers\.\d+\.(self_attn|mlp)\.(q|v|down)_proj)",
                         {"q_proj", "v_proj", "down_proj", "lm_head"},
                         {"self_attn.q_proj", "model.layers.1.self_attn.v_proj", "mlp.down_proj"}};
  for (const Json& value : values) EXPECT_EQ(refusal_with("target_modules", value), "") << value;
  for (const Json& value : {Json(nullptr), Json(""), Json::array(), Json({"o_proj"}), Json("proj"),
                            Json("q_proj"), Json({"model.layers.0.self_attn.v_proj"})})
    EXPECT_EQ(refusal_with("exclude_modules", value), "") << value;
}

// PEFT answers without them.
TEST_F(AdapterFields, RefuseTensorsOfModulesThatAreNotNamed) {
  const std::pair<Json, const char*> wrong[] = {
      {{"v_proj", "down_proj"}, "is outside target_modules (v_proj, down_proj)"},
      {{"proj", "model.layers.1"}, "is outside target_modules (proj, model.layers.1)"},
      {Json::array(), "is outside target_modules ()"},
      {"", "is outside target_modules ()"},
      {"q_proj", "is outside target_modules (q_proj)"},
      {R"(.*\.mlp\..*)", R"(is outside target_modules (.*\.mlp\..*))"},
      {"model", "is outside target_modules (model)"}};
  for (const auto& [value, said] : wrong) {
    EXPECT_THAT(refusal_with("target_modules", value),
                AllOf(HasSubstr(std::string("tensor \"") + kQueryA + "\" " + said),
                      HasSubstr("expected \"model.layers.0.self_attn.q_proj\" among")))
        << value;
  }
  config_.erase("target_modules");
  EXPECT_EQ(refusal(), "") << "it is for what it has";
  config_["target_parameters"] = {"mlp.experts.down_proj"};
  EXPECT_THAT(refusal(), HasSubstr("is outside target_modules (missing)"));
}

TEST_F(AdapterFields, RefuseTensorsOfModulesThatAreExcluded) {
  for (const Json& value :
       {Json({"v_proj"}), Json(".*v_proj"), Json({"o_proj", "self_attn.v_proj"}),
        Json({"model.layers.1.self_attn.v_proj"})}) {
    EXPECT_THAT(
        refusal_with("exclude_modules", value),
        AllOf(HasSubstr("layers.1.self_attn.v_proj.lora_A.weight\" is within exclude_modules"),
              HasSubstr("where PEFT leaves it out")))
        << value;
  }
}

TEST_F(AdapterFields, RefuseSelectionsThatAreNone) {
  for (const char* field : {"target_modules", "exclude_modules"}) {
    for (const Json& value :
         {Json(1), Json(0), Json(true), Json(1e300), Json::object(), Json{{"q_proj", 1}}, Json({1}),
          Json::array({nullptr}), Json({"q_proj", 2}), Json::array({Json::array({"q_proj"})}),
          Json("("), Json("a)|(b"), Json("*"), Json(std::string(16385, 'a'))}) {
      EXPECT_THAT(refusal_with(field, value), HasSubstr(std::string("field \"") + field + "\" is"))
          << field << value;
    }
    EXPECT_THAT(refusal_with(field, "(([a-z0-9_.]+)+)+[XY]"),
                AllOf(HasSubstr(std::string("field \"") + field), HasSubstr("cannot be matched")));
  }
  for (const Json& value : {Json("mlp.experts.down_proj"), Json(3), Json({1}), Json::object()})
    EXPECT_THAT(refusal_with("target_parameters", value),
                HasSubstr("field \"target_parameters\" is"));
}

TEST_F(AdapterFields, RefuseTextThatIsNoConfig) {
  config_text_ = "";
  EXPECT_THAT(refusal(), HasSubstr("adapter_config.json: file is empty"));
  for (const char* text : {"[]", "{", "null", "{\"r\": 2,}"}) {
    config_text_ = text;
    EXPECT_THAT(refusal(), HasSubstr("adapter_config.json: expected a JSON object")) << text;
  }
  config_text_ = R"({"r": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_THAT(refusal(), HasSubstr("nested deeper than 64"));
  std::string many;
  for (int i = 0; i < 17'000; ++i) many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  config_text_ = R"({"r": 2, "runtime_config": {)" + many + "}}";
  EXPECT_THAT(refusal(), HasSubstr("adapter_config.json: JSON has more than 16384 keys"));
  config_text_ = R"({"x": ")" + std::string(2 << 20, 'x') + "\"}";
  EXPECT_THAT(refusal(), HasSubstr("adapter_config.json"));
}

TEST_F(AdapterFields, RefusePatternsThatTakeForEver) {
  for (const char* key : {"(([a-z0-9_.]+)+)+[XY]", "(.*.*.*.*.*.*.*.*)*[XY]", "((.+)+)+[!?]"}) {
    EXPECT_THAT(refusal_with("rank_pattern", {{key, 2}}), HasSubstr("cannot be matched")) << key;
    EXPECT_THAT(refusal_with("alpha_pattern", {{key, 2}}), HasSubstr("cannot be matched")) << key;
  }
  EXPECT_EQ(refusal_with("rank_pattern", {{"(a+)+$", 3}}), "") << "it fits nothing, soon";
}

TEST_F(AdapterFields, RefusePatternsThatAreNone) {
  for (const char* key : {"(", "a)|(b", "[", "*", "\\", "(?<n>a)(?<n>b)"})
    EXPECT_THAT(refusal_with("rank_pattern", {{key, 2}}), HasSubstr("rank_pattern.")) << key;
  EXPECT_THAT(refusal_with("rank_pattern", {{std::string(513, '*'), 2}}),
              HasSubstr("at most 512 are supported"));
}

TEST_F(AdapterFields, BoundTheNumberOfPatterns) {
  Json expressions;
  for (int i = 0; i < 65; ++i) expressions["(a|b)" + std::to_string(i)] = 2;
  EXPECT_THAT(refusal_with("rank_pattern", expressions),
              HasSubstr("at most 64 regular expressions"));
  Json names;
  for (int i = 0; i < 4096; ++i) names["name_" + std::to_string(i)] = 2;
  EXPECT_EQ(refusal_with("alpha_pattern", names), "");
  names["one_more"] = 2;
  EXPECT_THAT(refusal_with("alpha_pattern", names), HasSubstr("at most 4096 entries"));
}

class AdapterConfigs : public testing::Test {
 protected:
  AdapterConfig read(const std::string& text) const {
    write_file_atomically(folder_.path() / "adapter_config.json", text);
    ModelConfig base;
    base.vocab_size = 320;
    return {InputFile(folder_.path() / "adapter_config.json"), base};
  }

  TemporaryFolder folder_;
};

TEST_F(AdapterConfigs, ScaleByRankOrItsRoot) {
  EXPECT_EQ(read(R"({"r": 16, "lora_alpha": 32})").scale("model.layers.0.mlp.up_proj", 16), 2);
  EXPECT_EQ(read(R"({"r": 16, "lora_alpha": 32, "use_rslora": true})").scale("q_proj", 16), 8);
  EXPECT_EQ(read(R"({"r": 16})").scale("q_proj", 16), 0.5) << "PEFT's alpha is 8";
  AdapterConfig config = read(
      R"({"r": 16, "lora_alpha": 32, "rank_pattern": {"q_proj": 4}, "alpha_pattern": {"v_proj": 8}})");
  EXPECT_EQ(config.rank("model.layers.0.self_attn.q_proj"), 4);
  EXPECT_EQ(config.scale("model.layers.0.self_attn.q_proj", 4), 8);
  EXPECT_EQ(config.rank("model.layers.0.self_attn.v_proj"), 16);
  EXPECT_EQ(config.scale("model.layers.0.self_attn.v_proj", 16), 0.5);
}

TEST_F(AdapterConfigs, TakeTheFirstKeyOfTheFileThatFits) {
  AdapterConfig config = read(R"({"r": 2, "rank_pattern": {"z.*_proj|q_proj": 3, "q_proj": 4,
                                  "a.q_proj": 5, "q_proj": 6}})");
  EXPECT_EQ(config.rank("model.a.q_proj"), 3);
  config = read(R"({"r": 2, "rank_pattern": {"q_proj": 4, ".*_proj": 3, "q_proj": 6}})");
  EXPECT_EQ(config.rank("model.a.q_proj"), 6) << "the first place with the last value";
  EXPECT_EQ(config.rank("model.a.v_proj"), 3);
}

// x: fits, as Python's re.match(rf"(.*\.)?({key})$", module) says.
TEST_F(AdapterConfigs, MatchKeysAsPeftDoes) {
  const char* const modules[] = {"model.layers.1.self_attn.q_proj",
                                 "model.layers.11.self_attn.q_proj", "model.layers.1.mlp.down_proj",
                                 "model.layers.21.self_attn.v_proj"};
  const std::pair<const char*, std::string> cases[] = {
      {R"(q_proj)", "xx.."},
      {R"(proj)", "...."},
      {R"(layers.1.self_attn.q_proj)", "x..."},
      {R"(1.self_attn.q_proj)", "x..."},
      {R"(self_attn)", "...."},
      {R"(model.layers.1.self_attn.q_proj)", "x..."},
      {R"(^model.layers.1.self_attn.q_proj)", "x..."},
      {R"(l.yers.1.self_attn.q_proj)", "x..."},
      {R"(layers\.[0-9]+\.self_attn\.(q|v)_proj)", "xx.x"},
      {R"(.*_proj)", "xxxx"},
      {R"(q_proj|down_proj)", "xxx."},
      {R"((?:q|v)_proj$)", "xx.x"},
      {R"(\d+.self_attn.q_proj)", "xx.."},
      {R"(layersx1.self_attn.q_proj)", "...."},
      {R"(layers.1.*)", "xxx."},
      {R"()", "...."},
      {R"(layers.1.mlp.down.proj)", "..x."},
      {R"(el.layers.1.self_attn.q_proj)", "...."},
  };
  for (const auto& [key, expected] : cases) {
    Json config = {{"r", 2}, {"rank_pattern", {{key, 9}}}};
    AdapterConfig parsed = read(config.dump());
    std::string fits;
    for (const char* module : modules) fits += parsed.rank(module) == 9 ? 'x' : '.';
    EXPECT_EQ(fits, expected) << key;
  }
}

TEST_F(AdapterConfigs, TakeTheLastOfTwoObjectsOfPatterns) {
  AdapterConfig config = read(
      R"({"r": 2, "rank_pattern": {"a": 3, "q_proj": 4}, "rank_pattern": {"q_proj": 5, "v_proj": 6}})");
  EXPECT_EQ(config.rank("model.a.q_proj"), 5);
  EXPECT_EQ(config.rank("model.a.v_proj"), 6);
  EXPECT_EQ(config.rank("model.a"), 2);
}

TEST_F(AdapterConfigs, TakeExpressionsUpToTheirBound) {
  const std::string key = "(" + std::string(510, 'a') + ")";
  AdapterConfig config = read(R"({"r": 2, "rank_pattern": {")" + key + R"(": 7}})");
  EXPECT_EQ(config.rank("model." + std::string(510, 'a')), 7);
}

TEST_F(AdapterFields, BoundWhatIsParsed) {
  std::string many = "0";
  for (int i = 0; i < 17; ++i) many += "," + many;
  config_text_ = R"({"r": 2, "runtime_config": [)" + many + "]}";
  EXPECT_THAT(refusal(), HasSubstr("JSON has more than 65536 values"));
}

TEST_F(AdapterFields, TakeLayersByTheirOneName) {
  EXPECT_EQ(refusal_with("layers_pattern", Json::array({"layers"})), "");
  EXPECT_THAT(refusal_with("layers_pattern", Json::array({"h"})), HasSubstr("\"layers_pattern\""));
}

}  // namespace
}  // namespace droidspeak
