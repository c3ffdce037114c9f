// PEFT folders: what of their tensors is taken, and what is refused and how.
#include <cmath>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>
#include <sys/stat.h>

#include "support/adapter_fixture.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Adapters = AdapterTest;

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
  AdapterFiles files(AdapterOpener(folder_.path()), base_, Precision::kExact);
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
    EXPECT_THAT(
        failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
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
  auto adapter = AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast).pack(*ops_);
  EXPECT_EQ(adapter->layers[0].qkv.parts[0].up->format(), "f32");
  EXPECT_EQ(adapter->layers[0].qkv.down->format(), "f16");
  config_["lora_alpha"] = 4;
  write_config();
  adapter = AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast).pack(*ops_);
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
  EXPECT_THAT(
      failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
      AllOf(HasSubstr(kQueryA), HasSubstr("is I32: expected F32, F16 or BF16")));
}

TEST_F(Adapters, RefuseTensorsThatFitNoLayer) {
  for (const char* name :
       {"base_model.model.model.layers.4.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.-0.self_attn.q_proj.lora_A.weight",
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

// Three experts of size 24; the values they become are those of PEFT in tests/parity.
class ExpertParameters : public Adapters {
 protected:
  ExpertParameters() {
    base_.experts = {.count = 3, .per_row = 2, .ffn_dim = 24};
    config_["target_parameters"] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    base_.ffn_dim = 0;
    tensors_.clear();
    add_pair("model.layers.1.mlp.experts.base_layer", 3 * 2, 2 * 24, 64);  // gate and up
    add_pair("model.layers.1.mlp.experts", 3 * 2, 64, 24);                 // down
  }
};

TEST_F(ExpertParameters, AreTakenApart) {
  Matrix& b = tensors_["base_model.model.model.layers.1.mlp.experts.lora_B.weight"];
  for (size_t i = 0; i < b.values.size(); ++i) b.values[i] = static_cast<float>(i % 6);
  auto adapter = load();
  EXPECT_TRUE(adapter->layers[0].experts.empty());
  ASSERT_EQ(adapter->layers[1].experts.size(), 3u);
  for (size_t e = 0; e < 3; ++e) {
    const ExpertLora& expert = adapter->layers[1].experts[e];
    EXPECT_EQ(expert.gate_up.down->columns(), 64);
    EXPECT_EQ(expert.gate_up.parts.at(0).up->rows(), 48);
    EXPECT_EQ(expert.down.down->columns(), 24);
    const WeightMatrix& up = *expert.down.parts.at(0).up;
    ASSERT_EQ(up.rows(), 64);
    Tensor row(*device_, DType::kF32, 1, 2);
    const int32_t first = 0;
    ops_->embed(up, {&first, 1}, row.view());
    // Times alpha / rank.
    EXPECT_EQ(row.view().f32()[0], 2 * static_cast<float>(e)) << "rank 0 of expert " << e;
    EXPECT_EQ(row.view().f32()[1], 2 * static_cast<float>(3 + e)) << "rank 1 of expert " << e;
  }
}

TEST_F(ExpertParameters, RefuseWhatFitsNoExperts) {
  const std::string stem = "base_model.model.model.layers.1.mlp.experts.";
  add(stem + "lora_A.weight", 3 * 2, 64);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(stem + "lora_A.weight"), HasSubstr("older PEFT")));
  add(stem + "lora_A.weight", 7, 24);
  EXPECT_THAT(refusal(), HasSubstr("expected ranks of 3 experts"));
  add(stem + "lora_A.weight", 3 * 4, 24);
  add(stem + "lora_B.weight", 64, 3 * 4);
  EXPECT_THAT(refusal(), HasSubstr("has shape [4, 24]: the base model and adapter_config.json"));
  tensors_.erase(stem + "lora_B.weight");
  EXPECT_THAT(refusal(), HasSubstr("has no \"" + stem + "lora_B.weight\" beside it"));
  tensors_.erase(stem + "lora_A.weight");
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(refusal_with("rank_pattern", {{"q_proj", 8}}), "");
  for (const char* key : {"gate_up_proj", "mlp.experts", ".*experts.gate_up_proj"})
    EXPECT_THAT(refusal_with("alpha_pattern", {{key, 8}}), HasSubstr("for experts")) << key;
  add_pair("model.layers.1.mlp.experts.2.up_proj", 2, 24, 64);
  EXPECT_THAT(refusal(), HasSubstr("are the same linear layer"));
}

// In which order its rows were meant cannot be told.
TEST_F(ExpertParameters, OfOneExpertAreNoModuleWhereGateAndUpLieByTurns) {
  tensors_.clear();
  config_.erase("target_parameters");
  add_pair("model.layers.1.mlp.experts.2.gate_up_proj", 2, 48, 64);
  config_["target_modules"] = {"gate_up_proj"};
  EXPECT_EQ(refusal(), "");
  base_.architecture = "gpt_oss";
  EXPECT_THAT(refusal(), HasSubstr("is for a module that gpt_oss does not have"));
}

TEST_F(ExpertParameters, AreRefusedWhereTheyAreNotNamed) {
  const std::string gate_up = "layers.1.mlp.experts.base_layer.lora_A.weight\" is outside ";
  const std::string down = "layers.1.mlp.experts.lora_A.weight\" is outside ";
  const std::pair<Json, std::string> wrong[] = {
      {{"mlp.experts.gate_up_proj"}, down + "target_parameters (mlp.experts.gate_up_proj)"},
      {{"model.layers.1.mlp.experts.down_proj"}, gate_up + "target_parameters (model.layers.1."},
      {{"experts"}, gate_up + "target_parameters (experts)"},
      {Json::array(), gate_up + "target_parameters ()"},
      {nullptr, gate_up + "target_parameters (missing)"}};
  for (const auto& [value, said] : wrong)
    EXPECT_THAT(refusal_with("target_parameters", value), HasSubstr(said)) << value;
  EXPECT_EQ(refusal_with("target_parameters", {"gate_up_proj", "down_proj"}), "");
  EXPECT_EQ(refusal_with("target_modules", nullptr), "") << "they are no modules";
}

TEST_F(Adapters, RefuseParametersOfExpertsThatTheBaseHasNot) {
  add_pair("model.layers.1.mlp.experts", 6, 64, 24);
  EXPECT_THAT(refusal(), HasSubstr("mlp.experts.lora_A.weight\" fits no linear layer"));
}

TEST_F(Adapters, RefuseAFileWithoutTensors) {
  tensors_.clear();
  EXPECT_THAT(refusal(), HasSubstr("it holds no tensors"));
}

TEST_F(Adapters, RefuseAFileLargerThanTheBase) {
  write();
  std::filesystem::path path = folder_.path() / "adapter_model.safetensors";
  std::filesystem::resize_file(path, max_adapter_bytes(base_) + 1);
  EXPECT_THAT(
      failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
      HasSubstr("an adapter of this base has at most"));
}

TEST_F(Adapters, RefuseWhatIsNoRegularFile) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    write();
    std::filesystem::remove(folder_.path() / name);
    EXPECT_THAT(
        failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
        HasSubstr(name));
    ASSERT_EQ(::mkfifo((folder_.path() / name).c_str(), 0600), 0);  // opening it would wait
    EXPECT_THAT(
        failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
        AllOf(HasSubstr(name), HasSubstr("not a regular file")));
    std::filesystem::remove(folder_.path() / name);
    std::filesystem::create_directory(folder_.path() / name);
    EXPECT_THAT(
        failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
        AllOf(HasSubstr(name), HasSubstr("not a regular file")));
    std::filesystem::remove(folder_.path() / name);
  }
}

TEST_F(ExpertParameters, MayBeNamedWithTheirAdapter) {
  std::map<std::string, Matrix> named;
  for (auto& [name, matrix] : tensors_) {
    std::string longer = name;
    longer.insert(longer.rfind(".weight"), ".default");
    named[longer] = matrix;
  }
  tensors_ = named;
  EXPECT_EQ(refusal(), "");
  const std::string bias = "base_model.model.model.layers.1.mlp.experts.lora_A.bias";
  add(bias, 6, 24);
  EXPECT_THAT(refusal(), HasSubstr("\"" + bias + "\" fits no linear layer"));
}

TEST_F(ExpertParameters, RefusePairsThatAreNone) {
  const std::string stem = "base_model.model.model.layers.1.mlp.experts.";
  const std::map<std::string, Matrix> good = tensors_;
  auto expect_refused = [&](std::vector<int64_t> a, std::vector<int64_t> b) {
    add(stem + "lora_A.weight", a[0], a.size() > 1 ? a[1] : 1);
    add(stem + "lora_B.weight", b[0], b.size() > 1 ? b[1] : 1);
    tensors_[stem + "lora_A.weight"].shape = a;
    tensors_[stem + "lora_B.weight"].shape = b;
    EXPECT_THAT(refusal(), HasSubstr("expected ranks of 3 experts"));
    tensors_ = good;
  };
  expect_refused({6, 24}, {64, 3});
  expect_refused({6, 24}, {64, 12});
  expect_refused({7, 24}, {64, 7});
  expect_refused({0, 24}, {64, 0});
  expect_refused({144}, {64, 6});
  expect_refused({6, 24}, {384});
}

TEST_F(Adapters, OverlapWithinALayerOnly) {
  add_pair("model.layers.2.self_attn.qkv_proj", 2, 128, 64);
  EXPECT_EQ(refusal(), "") << "q_proj of layer 0 is another one";
}

TEST_F(Adapters, HaveRanksUpToTheLargerSideOfTheLayer) {
  config_["rank_pattern"] = {{"v_proj", 64}};
  add_pair("model.layers.1.self_attn.v_proj", 64, 32, 64);
  EXPECT_EQ(refusal(), "");
  config_["rank_pattern"] = {{"v_proj", 65}};
  add_pair("model.layers.1.self_attn.v_proj", 65, 32, 64);
  EXPECT_THAT(refusal(), HasSubstr("the layer is 32 x 64, and a rank over 64 adds nothing"));
}

TEST_F(Adapters, AreBoundedByTheWeightsOfTheBase) {
  // q, k, v, o, gate, up and down of four layers in f32, and a header.
  const uint64_t layer = 64 * 64 + 32 * 64 + 32 * 64 + 64 * 64 + 3 * 64 * 128;
  EXPECT_EQ(max_adapter_bytes(base_), 4 * layer * 4 + (1 << 20));
  base_.ffn_dim = 0;
  base_.experts = {.count = 3, .per_row = 2, .ffn_dim = 24};
  EXPECT_EQ(max_adapter_bytes(base_), 4 * (layer - 3 * 64 * 128 + 3 * 3 * 64 * 24) * 4 + (1 << 20));
}

TEST_F(Adapters, MayFillTheirBoundAndTheirHeader) {
  write();
  const std::filesystem::path path = folder_.path() / "adapter_model.safetensors";
  const std::vector<FileTensor> tensors = [&] {
    std::vector<FileTensor> copies;
    for (const auto& [name, matrix] : tensors_)
      copies.push_back(
          {name, DType::kF32, matrix.shape, std::as_bytes(std::span<const float>(matrix.values))});
    return copies;
  }();
  auto refusal_of_header = [&](uint64_t size) {
    write_safetensors(path, tensors, {{"note", ""}});
    uint64_t header = 0;
    std::memcpy(&header, read_file(path).data(), sizeof header);
    write_safetensors(path, tensors, {{"note", std::string(size - header, 'x')}});
    return failure_of(
        [&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); });
  };
  const uint64_t most = 256 * (9 * 2 * 4 + 256);  // nine names of linear layers in four layers
  EXPECT_EQ(refusal_of_header(most), "");
  EXPECT_THAT(refusal_of_header(most + 8), HasSubstr("adapter_model.safetensors"));
  write();
  std::filesystem::resize_file(path, max_adapter_bytes(base_));
  EXPECT_THAT(
      failure_of([&] { AdapterFiles(AdapterOpener(folder_.path()), base_, Precision::kFast); }),
      testing::Not(HasSubstr("an adapter of this base has at most")));
}

TEST_F(Adapters, KeepHalvesOnlyWhereAllOfThemSuffice) {
  write();
  std::vector<uint16_t> ones(128, 0x3c00);
  std::vector<uint16_t> large = ones;
  large[5] = 0x7bff;  // 65504, and the scale is 2
  auto format = [&](const std::vector<uint16_t>& up, Precision precision) {
    std::vector<FileTensor> tensors = {
        {kQueryA, DType::kF16, {2, 64}, std::as_bytes(std::span<const uint16_t>(ones))},
        {kQueryB, DType::kF16, {64, 2}, std::as_bytes(std::span<const uint16_t>(up))}};
    write_safetensors(folder_.path() / "adapter_model.safetensors", tensors, {});
    return AdapterFiles(AdapterOpener(folder_.path()), base_, precision)
        .pack(*ops_)
        ->layers[0]
        .qkv.parts[0]
        .up->format();
  };
  EXPECT_EQ(format(ones, Precision::kFast), "f16");
  EXPECT_EQ(format(large, Precision::kFast), "f32");
  EXPECT_EQ(format(ones, Precision::kExact), "f32");
}

TEST_F(Adapters, TakeSoMuchMemoryAsTheirParts) {
  auto adapter = load();
  size_t bytes = 0;
  for (const LoraLinear* linear :
       {&adapter->layers[0].qkv, &adapter->layers[1].qkv, &adapter->layers[1].down})
    bytes += linear->down->bytes() + linear->parts.at(0).up->bytes();
  EXPECT_EQ(adapter->bytes(), bytes);
}

TEST_F(ExpertParameters, TakeSoMuchMemoryAsTheirParts) {
  auto adapter = load();
  size_t bytes = 0;
  for (const ExpertLora& expert : adapter->layers[1].experts) {
    bytes += expert.gate_up.down->bytes() + expert.gate_up.parts.at(0).up->bytes();
    bytes += expert.down.down->bytes() + expert.down.parts.at(0).up->bytes();
  }
  EXPECT_EQ(adapter->bytes(), bytes);
}

// Plan books name adapters by digest: it is that of the experts' own matrices.
TEST_F(ExpertParameters, KeepTheirDigest) {
  EXPECT_EQ(digest().hex(), "6874ce69c3e930e871fffe1efa8675d3cec1068814f05063cf794669635be566");
}

}  // namespace
}  // namespace droidspeak
