// Every architecture against Hugging Face transformers: tests/data/models holds tiny checkpoints
// and the logits transformers computed for them (tools/make_tiny_models.py).
#include <algorithm>

#include "base/error.h"
#include "model/weights.h"
#include "parity/golden.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

class ArchitectureParity : public testing::TestWithParam<GoldenCase> {};

class DeviceParity : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam())) GTEST_SKIP() << "no CUDA device";
  }

  SingleModel smollm2(DType kv_dtype) const {
    return {golden_models() / "smollm2", {}, {.device = GetParam(), .kv_dtype = kv_dtype}};
  }
};

std::string name_of_device(const testing::TestParamInfo<DeviceKind>& info) {
  return device_name(info.param);
}

TEST_P(ArchitectureParity, LogitsEqualTransformers) {
  auto [name, device] = GetParam();
  if (!has_device(device)) GTEST_SKIP() << "no CUDA device";
  std::filesystem::path folder = golden_models() / name;
  Golden golden = read_golden(folder / "golden.json");
  SingleModel model(folder, {}, {.device = device});
  for (int32_t chunk : {512, 64, 7}) expect_golden(model, golden, chunk, 1e-3f);
  if (!golden.greedy.empty()) expect_greedy(model, golden);
}

INSTANTIATE_TEST_SUITE_P(All,
                         ArchitectureParity,
                         testing::Combine(testing::Values("llama2",
                                                          "llama3",
                                                          "smollm2",
                                                          "mistral",
                                                          "qwen2",
                                                          "qwen2-windows",
                                                          "qwen3",
                                                          "phi3",
                                                          "phi3-long",
                                                          "phi4-mini",
                                                          "gemma2",
                                                          "gemma3",
                                                          "granite",
                                                          "granite-bias",
                                                          "olmo2",
                                                          "olmo3",
                                                          "mixtral",
                                                          "qwen2-moe",
                                                          "qwen3-moe",
                                                          "smollm3",
                                                          "gpt-oss"),
                                          testing::Values(DeviceKind::kCpu, DeviceKind::kCuda)),
                         name_of_case);

// Sizes that are no multiples of 8.
INSTANTIATE_TEST_SUITE_P(Odd,
                         ArchitectureParity,
                         testing::Combine(testing::Values("llama-odd"),
                                          testing::Values(DeviceKind::kCpu)),
                         name_of_case);

TEST_P(DeviceParity, AdapterLogitsEqualPeft) {
  for (const char* name : {"smollm2", "gemma2", "granite", "mixtral", "qwen3-moe", "gpt-oss"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path folder = golden_models() / name;
    SingleModel model(folder, folder / "adapter", {.device = GetParam()});
    expect_golden(model, read_golden(folder / "golden_adapter.json"), 512, 1e-3f);
  }
}

// The same adapters, written as llama.cpp's converter does it (tools/make_gguf_adapters.py).
TEST_P(DeviceParity, AdaptersInGgufLogitsEqualPeft) {
  for (const char* name : {"granite", "mixtral"}) {
    SCOPED_TRACE(name);
    const std::filesystem::path folder = golden_models() / name;
    SingleModel model(folder, folder / "adapter.gguf", {.device = GetParam()});
    expect_golden(model, read_golden(folder / "golden_adapter.json"), 512, 1e-3f);
  }
}

TEST_P(DeviceParity, HalfAndInt8CachesStayClose) {
  Golden golden = read_golden(golden_models() / "smollm2/golden.json");
  SingleModel half = smollm2(DType::kF16);
  EXPECT_LT(rms_difference(half, golden, 64), 3.5e-3);  // 1.75e-3 on the CPU
  SingleModel byte = smollm2(DType::kI8);
  EXPECT_LT(rms_difference(byte, golden, 64), 6e-2);  // 3.0e-2 on the CPU
}

// Weights of this model are floats at any precision on the CPU; its attention is not.
TEST(CpuParity, FastAttentionStaysAsCloseOverHalfAndInt8Caches) {
  Golden golden = read_golden(golden_models() / "smollm2/golden.json");
  auto difference = [&](DType kv_dtype) {
    SingleModel model(golden_models() / "smollm2", {},
                      {.precision = Precision::kFast, .kv_dtype = kv_dtype});
    return rms_difference(model, golden, 64);
  };
  EXPECT_LT(difference(DType::kF16), 3.5e-3);
  EXPECT_LT(difference(DType::kI8), 6e-2);
}

INSTANTIATE_TEST_SUITE_P(All,
                         DeviceParity,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         name_of_device);

// 16-bit weights, activations and caches, as served.
TEST(CudaParity, FastLogitsStayClose) {
  if (!has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no CUDA device";
  for (const char* name :
       {"llama3", "smollm2", "qwen2", "qwen3", "phi3", "gemma2", "gemma3", "granite",
        "granite-bias", "olmo2", "mixtral", "qwen2-moe", "qwen3-moe", "smollm3", "gpt-oss"}) {
    SCOPED_TRACE(name);
    Golden golden = read_golden(golden_models() / name / "golden.json");
    SingleModel model(
        golden_models() / name, {},
        {.device = DeviceKind::kCuda, .precision = Precision::kFast, .kv_dtype = DType::kBF16});
    for (int32_t chunk : {512, 64, 1})
      expect_golden(model, golden, chunk, 0.1f * largest_logit(golden));
  }
}

// Sizes that no kernel takes are refused while loading, not at the first token.
TEST(CudaParity, SizesAreRefusedAtLoad) {
  if (!has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no CUDA device";
  TemporaryFolder folder;
  write_tiny_checkpoint(folder.path(), {.head_dim = 512});
  EXPECT_NO_THROW(SingleModel(folder.path(), {}, {.device = DeviceKind::kCpu}));
  EXPECT_THROW(SingleModel(folder.path(), {}, {.device = DeviceKind::kCuda}), Failure);
  EXPECT_THROW(SingleModel(golden_models() / "llama-odd", {}, {.device = DeviceKind::kCuda}),
               Failure);
}

}  // namespace
}  // namespace droidspeak
