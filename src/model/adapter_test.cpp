// PEFT folders: what is done, what is refused and how, and what a digest covers.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "model/adapter_config.h"
#include "model/adapter_files.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::string failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

// A small adapter of the tiny base, rank 2 on some linear layers, to be changed by tests.
class Adapters : public testing::Test {
 protected:
  struct Matrix {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };

  Adapters() : device_(make_cpu_device()), ops_(make_cpu_ops(*device_, 1)) {
    write_tiny_checkpoint(folder_.path() / "base");
    base_ = load_config(folder_.path() / "base");
    add_pair("model.layers.0.self_attn.q_proj", 2, 64, 64);
    add_pair("model.layers.1.self_attn.v_proj", 2, 32, 64);
    add_pair("model.layers.1.mlp.down_proj", 2, 64, 128);
  }

  void add(const std::string& name, int64_t rows, int64_t columns) {
    Matrix& matrix = tensors_[name];
    matrix.shape = {rows, columns};
    matrix.values.clear();
    for (int64_t i = 0; i < rows * columns; ++i)
      matrix.values.push_back(static_cast<float>(i % 7 - 3) / 8);
  }

  void add_pair(const std::string& module, int64_t rank, int64_t rows, int64_t columns) {
    add("base_model.model." + module + ".lora_A.weight", rank, columns);
    add("base_model.model." + module + ".lora_B.weight", rows, rank);
  }

  void write() const {
    std::vector<FileTensor> tensors;
    for (const auto& [name, matrix] : tensors_) {
      tensors.push_back(
          {name, DType::kF32, matrix.shape, std::as_bytes(std::span<const float>(matrix.values))});
    }
    write_safetensors(folder_.path() / "adapter_model.safetensors", tensors, {});
    write_config();
  }

  void write_config() const {
    std::ofstream(folder_.path() / "adapter_config.json") << config_text_.value_or(config_.dump());
  }

  std::shared_ptr<const Adapter> load() {
    write();
    return load_adapter(*ops_, folder_.path(), base_, Precision::kExact);
  }

  Digest digest() { return load()->digest; }

  std::string refusal() {
    return failure_of([&] { load(); });
  }

  std::string refusal_with(const std::string& field, const Json& value) {
    Json before = config_;
    config_[field] = value;
    std::string text = refusal();
    config_ = before;
    return text;
  }

  // config_ as a text in which `value` stands in the place of a field's value.
  std::string refusal_with_text(const std::string& field, const std::string& value) {
    Json edited = config_;
    edited[field] = "HERE";
    std::string text = edited.dump();
    config_text_ = text.replace(text.find("\"HERE\""), 6, value);
    std::string refused = refusal();
    config_text_.reset();
    return refused;
  }

  static constexpr const char* kQueryA =
      "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  static constexpr const char* kQueryB =
      "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  ModelConfig base_;
  std::map<std::string, Matrix> tensors_;
  Json config_ = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}};
  std::optional<std::string> config_text_;
};

TEST_F(Adapters, PutEachPairInItsPlace) {
  auto adapter = load();
  ASSERT_EQ(adapter->layers.size(), 4u);
  const LoraLinear& query = adapter->layers[0].qkv;
  ASSERT_EQ(query.parts.size(), 1u);
  EXPECT_EQ(query.down->rows(), 2);
  EXPECT_EQ(query.down->columns(), 64);
  EXPECT_EQ(query.parts[0].up->rows(), 64);
  EXPECT_EQ(query.parts[0].first_column, 0);
  const LoraLinear& value = adapter->layers[1].qkv;
  ASSERT_EQ(value.parts.size(), 1u);
  EXPECT_EQ(value.parts[0].first_column, 64 + 32);
  EXPECT_EQ(adapter->layers[1].down.down->columns(), 128);
  EXPECT_EQ(adapter->layers[2].qkv.down, nullptr);
  EXPECT_EQ(adapter->layers[0].output.down, nullptr);
}

TEST_F(Adapters, NeedNoFilesOnceTheyAreRead) {
  write();
  AdapterFiles files(folder_.path(), base_, Precision::kExact);
  std::filesystem::resize_file(folder_.path() / "adapter_model.safetensors", 16);
  LoraLayer layer = files.pack_layer(*ops_, 1);
  EXPECT_EQ(layer.down.down->columns(), 128);
}

TEST_F(Adapters, RefuseAFileThatWasCut) {
  write();
  std::filesystem::path path = folder_.path() / "adapter_model.safetensors";
  auto size = std::filesystem::file_size(path);
  for (uintmax_t kept : {uintmax_t{0}, uintmax_t{4}, uintmax_t{100}, size / 2, size - 1}) {
    std::filesystem::resize_file(path, kept);
    EXPECT_THAT(failure_of([&] { AdapterFiles(folder_.path(), base_, Precision::kFast); }),
                HasSubstr("adapter_model.safetensors"))
        << kept;
    write();
  }
}

TEST_F(Adapters, RefuseRanksThatAreNone) {
  for (const Json& rank : {Json(0), Json(-4), Json(2.5), Json(65537), Json("4"), Json(true),
                           Json(nullptr), Json(uint64_t{1} << 63)}) {
    EXPECT_THAT(refusal_with("r", rank), AllOf(HasSubstr("field \"r\" is " + rank.dump()),
                                               HasSubstr("an integer from 1 to 65536")));
    EXPECT_THAT(refusal_with("rank_pattern", {{"q_proj", rank}}),
                HasSubstr("field \"rank_pattern.q_proj\" is " + rank.dump()));
  }
  for (const char* rank : {"NaN", "Infinity", "1e999"}) {
    EXPECT_NE(refusal_with_text("r", rank), "") << rank;
    EXPECT_NE(refusal_with_text("rank_pattern", std::string("{\"q_proj\":") + rank + "}"), "");
  }
  config_.erase("r");
  EXPECT_THAT(refusal(), HasSubstr("field \"r\" is missing"));
}

TEST_F(Adapters, RefuseARankBeyondTheLayer) {
  config_["rank_pattern"] = {{"q_proj", 65}};
  add_pair("model.layers.0.self_attn.q_proj", 65, 64, 64);
  EXPECT_THAT(refusal(), HasSubstr("has rank 65: the layer is 64 x 64"));
  config_["rank_pattern"] = {{"q_proj", 64}};
  add_pair("model.layers.0.self_attn.q_proj", 64, 64, 64);
  EXPECT_EQ(refusal(), "");
}

TEST_F(Adapters, RefuseAlphasThatAreNone) {
  for (const char* alpha : {"NaN", "Infinity", "1e999", "\"4\"", "[4]", "true"}) {
    EXPECT_NE(refusal_with_text("lora_alpha", alpha), "") << alpha;
    EXPECT_NE(refusal_with_text("alpha_pattern", std::string("{\"q_proj\":") + alpha + "}"), "");
  }
  EXPECT_THAT(refusal_with("lora_alpha", 1e300),
              AllOf(HasSubstr("lora_B.weight\" times its scale"), HasSubstr("is not finite")));
  EXPECT_THAT(refusal_with("alpha_pattern", {{"q_proj", 1e300}}), HasSubstr(kQueryB));
}

TEST_F(Adapters, KeepScaledHalvesThatOverflowIn32Bits) {
  config_["lora_alpha"] = 2 * 131072;
  write();
  std::vector<uint16_t> halves(128, 0x3c00);  // 1.0
  std::vector<FileTensor> tensors = {
      {kQueryA, DType::kF16, {2, 64}, std::as_bytes(std::span<const uint16_t>(halves))},
      {kQueryB, DType::kF16, {64, 2}, std::as_bytes(std::span<const uint16_t>(halves))}};
  write_safetensors(folder_.path() / "adapter_model.safetensors", tensors, {});
  auto adapter = load_adapter(*ops_, folder_.path(), base_, Precision::kFast);
  EXPECT_EQ(adapter->layers[0].qkv.parts[0].up->format(), "f32");
  EXPECT_EQ(adapter->layers[0].qkv.down->format(), "f16");
  config_["lora_alpha"] = 4;
  write_config();
  adapter = load_adapter(*ops_, folder_.path(), base_, Precision::kFast);
  EXPECT_EQ(adapter->layers[0].qkv.parts[0].up->format(), "f16");
}

TEST_F(Adapters, RefuseTensorsThatAreNotFinite) {
  for (const char* name : {kQueryA, kQueryB}) {
    for (float value : {kNaN, kInfinity, -kInfinity}) {
      add_pair("model.layers.0.self_attn.q_proj", 2, 64, 64);
      tensors_[name].values[77] = value;
      EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr("infinite or not a number")));
    }
  }
}

TEST_F(Adapters, RefuseOtherShapes) {
  add(kQueryA, 0, 64);
  EXPECT_THAT(refusal(), HasSubstr("has shape [0, 64]: the base model and adapter_config.json "
                                   "want [2, 64]"));
  add(kQueryA, 3, 64);
  EXPECT_THAT(refusal(), HasSubstr("has shape [3, 64]"));
  add(kQueryA, 2, 63);
  EXPECT_THAT(refusal(), HasSubstr("has shape [2, 63]"));
  add(kQueryA, 2, 64);
  tensors_[kQueryA].shape = {128};
  EXPECT_THAT(refusal(), HasSubstr("has shape [128]"));
  tensors_[kQueryA].shape = {2, 64, 1};
  EXPECT_THAT(refusal(), HasSubstr("has shape [2, 64, 1]"));
  tensors_[kQueryA].shape = {2, 64};
  add(kQueryB, 64, 0);
  EXPECT_THAT(refusal(), HasSubstr("want [64, 2]"));
}

TEST_F(Adapters, RefuseTensorsThatAreNoFloats) {
  write();
  std::filesystem::path path = folder_.path() / "adapter_model.safetensors";
  std::string content = read_file(path);
  content.replace(content.find("F32"), 3, "I32");
  std::ofstream(path, std::ios::binary) << content;
  EXPECT_THAT(failure_of([&] { AdapterFiles(folder_.path(), base_, Precision::kFast); }),
              AllOf(HasSubstr(kQueryA), HasSubstr("is I32: expected F32, F16 or BF16")));
}

TEST_F(Adapters, RefuseTensorsThatFitNoLayer) {
  for (const char* name :
       {"base_model.model.model.layers.4.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.99999999999.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.x.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.w_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_C.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.other.weight",
        "base_model.model.lm_head.lora_A.weight", "base_model.model.model.embed_tokens.weight",
        "model.layers.", ""}) {
    add(name, 2, 64);
    EXPECT_THAT(refusal(), HasSubstr(std::string("tensor \"") + name +
                                     "\" fits no linear layer of the base model (4 layers of "
                                     "llama)"));
    tensors_.erase(name);
  }
}

TEST_F(Adapters, RefuseHalfAPair) {
  Matrix kept = tensors_[kQueryA];
  tensors_.erase(kQueryA);
  EXPECT_THAT(refusal(), HasSubstr("q_proj\" has lora_B but no lora_A"));
  tensors_.erase(kQueryB);
  tensors_[kQueryA] = kept;
  EXPECT_THAT(refusal(), HasSubstr("q_proj\" has lora_A but no lora_B"));
}

TEST_F(Adapters, RefuseTwoNamesForOneLayer) {
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"}) {
    add(name, 2, 64);
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr(kQueryA), HasSubstr("one layer")));
    tensors_.erase(name);
  }
  add_pair("model.layers.0.self_attn.qkv_proj", 2, 128, 64);
  EXPECT_THAT(refusal(), HasSubstr("\"model.layers.0.self_attn.q_proj\" and "
                                   "\"model.layers.0.self_attn.qkv_proj\" are the same"));
}

TEST_F(Adapters, RefuseAFileWithoutTensors) {
  tensors_.clear();
  EXPECT_THAT(refusal(), HasSubstr("it holds no tensors"));
}

TEST_F(Adapters, RefuseAFileLargerThanTheBase) {
  write();
  std::filesystem::path path = folder_.path() / "adapter_model.safetensors";
  std::filesystem::resize_file(path, max_adapter_bytes(base_) + 1);
  EXPECT_THAT(failure_of([&] { AdapterFiles(folder_.path(), base_, Precision::kFast); }),
              HasSubstr("an adapter of this base has at most"));
}

TEST_F(Adapters, RefuseWhatIsNoRegularFile) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    write();
    std::filesystem::remove(folder_.path() / name);
    EXPECT_THAT(failure_of([&] { AdapterFiles(folder_.path(), base_, Precision::kFast); }),
                HasSubstr(name));
    ASSERT_EQ(::mkfifo((folder_.path() / name).c_str(), 0600), 0);  // opening it would wait
    EXPECT_THAT(failure_of([&] { AdapterFiles(folder_.path(), base_, Precision::kFast); }),
                AllOf(HasSubstr(name), HasSubstr("no regular file")));
    std::filesystem::remove(folder_.path() / name);
    std::filesystem::create_directory(folder_.path() / name);
    EXPECT_THAT(failure_of([&] { AdapterFiles(folder_.path(), base_, Precision::kFast); }),
                AllOf(HasSubstr(name), HasSubstr("no regular file")));
    std::filesystem::remove(folder_.path() / name);
  }
}

TEST_F(Adapters, RefuseFieldsThatChangeTheMeaning) {
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
      {"target_parameters", {"weight"}},
      {"arrow_config", {{"top_k", 3}}},
      {"kasa_config", {{"beta", 1}}},
      {"monteclora_config", {{"num_samples", 8}}},
      {"use_bdlora", {{"nblocks", 2}}},
      {"ensure_weight_tying", true},
      {"layers_pattern", "blocks"},
      {"layers_pattern", {"layers", "blocks"}},
      {"layers_to_transform", "0"},
      {"layers_to_transform", {-1}},
      {"layers_to_transform", {0.5}},
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
}

TEST_F(Adapters, RefuseUnknownFieldsThatAreNotBlank) {
  for (const Json& value :
       {Json(true), Json(1), Json(-0.5), Json("on"), Json({1}), Json({{"a", 0}})})
    EXPECT_THAT(refusal_with("use_magic", value), HasSubstr("not known to this version"));
  for (const Json& value :
       {Json(false), Json(0), Json(0.0), Json(""), Json(nullptr), Json::array(), Json::object()})
    EXPECT_EQ(refusal_with("use_magic", value), "") << value;
}

TEST_F(Adapters, TakeFieldsThatDoNotMatterHere) {
  const std::pair<const char*, Json> fields[] = {
      {"base_model_name_or_path", "another/base"},
      {"task_type", "CAUSAL_LM"},
      {"revision", "main"},
      {"inference_mode", true},
      {"peft_version", "0.21.2"},
      {"auto_mapping", {{"base_model_class", "LlamaForCausalLM"}}},
      {"lora_dropout", 0.1},
      {"target_modules", {"q_proj"}},
      {"target_modules", ".*_proj"},
      {"exclude_modules", {"o_proj"}},
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
      {"use_dora", nullptr},
      {"modules_to_save", Json::array()},
      {"alora_invocation_tokens", nullptr}};
  for (const auto& [field, value] : fields) EXPECT_EQ(refusal_with(field, value), "") << field;
}

TEST_F(Adapters, ReadTheInvocationOfAnActivatedLora) {
  EXPECT_TRUE(load()->invocation.empty());
  config_["alora_invocation_tokens"] = {1, 0, 319};
  EXPECT_EQ(load()->invocation, (std::vector<int32_t>{1, 0, 319}));
  config_["alora_invocation_tokens"] = std::vector<int32_t>(256, 7);
  EXPECT_EQ(load()->invocation.size(), 256u);
}

TEST_F(Adapters, RefuseInvocationsThatCannotBe) {
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
                      HasSubstr("field \"alora_invocation_tokens\" is"), HasSubstr("0 to 319")))
        << value;
  }
}

TEST_F(Adapters, RefuseTensorsOfLayersLeftOut) {
  EXPECT_THAT(refusal_with("layers_to_transform", {0, 2}),
              HasSubstr("is for layer 1, which layers_to_transform leaves out"));
  EXPECT_THAT(refusal_with("layers_to_transform", 1), HasSubstr("is for layer 0"));
}

TEST_F(Adapters, RefuseTextThatIsNoConfig) {
  for (const char* text : {"", "[]", "{", "null", "{\"r\": 2,}"}) {
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

TEST_F(Adapters, RefusePatternsThatTakeForEver) {
  for (const char* key : {"(([a-z0-9_.]+)+)+[XY]", "(.*.*.*.*.*.*.*.*)*[XY]", "((.+)+)+[!?]"}) {
    EXPECT_THAT(refusal_with("rank_pattern", {{key, 2}}), HasSubstr("cannot be matched")) << key;
    EXPECT_THAT(refusal_with("alpha_pattern", {{key, 2}}), HasSubstr("cannot be matched")) << key;
  }
  EXPECT_EQ(refusal_with("rank_pattern", {{"(a+)+$", 3}}), "") << "it fits nothing, soon";
}

TEST_F(Adapters, RefusePatternsThatAreNone) {
  for (const char* key : {"(", "a)|(b", "[", "*", "\\", "(?<n>a)(?<n>b)"})
    EXPECT_THAT(refusal_with("rank_pattern", {{key, 2}}), HasSubstr("rank_pattern.")) << key;
  EXPECT_THAT(refusal_with("rank_pattern", {{std::string(513, '*'), 2}}),
              HasSubstr("at most 512 are supported"));
}

TEST_F(Adapters, BoundTheNumberOfPatterns) {
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

TEST_F(Adapters, DigestsCoverWhatChangesTheAnswer) {
  std::vector<Digest> digests{digest()};
  auto expect_new = [&](const std::string& what) {
    digests.push_back(digest());
    EXPECT_EQ(std::ranges::count(digests, digests.back()), 1) << what;
  };
  EXPECT_EQ(digest(), digests.front());
  Json plain = config_;
  config_["base_model_name_or_path"] = "elsewhere";
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

TEST_F(Adapters, DigestsCoverTheOrderOfPatterns) {
  config_text_ = R"({"r": 2, "alpha_pattern": {"q_proj": 3, ".*_proj": 5}})";
  Digest one = digest();
  config_text_ = R"({"r": 2, "alpha_pattern": {".*_proj": 5, "q_proj": 3}})";
  EXPECT_NE(digest(), one) << "the first that fits counts, so they scale differently";
}

// Plan books of the shipped adapters name them by digest.
TEST_F(Adapters, KeepTheDigestsOfShippedFamilies) {
  config_text_ = R"({"r": 2, "lora_alpha": 4})";
  EXPECT_EQ(digest().hex(), "8c78b6505dd3750f3dfb58705c2b5a1376e75793a0f59ea1d2cb341d877288ed");
  config_text_ = R"({"r": 2, "lora_alpha": 4, "use_rslora": true, "alpha_pattern": {"q_proj": 3},
                     "rank_pattern": {"o_proj": 8}})";
  EXPECT_EQ(digest().hex(), "c53eeb14d0d60f9d9fc5a928917c658930795538bd94607c148512889cbe47fe");
}

class AdapterConfigs : public testing::Test {
 protected:
  AdapterConfig read(const std::string& text) const {
    write_file_atomically(folder_.path() / "adapter_config.json", text);
    return {folder_.path() / "adapter_config.json", 320};
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

}  // namespace
}  // namespace droidspeak
