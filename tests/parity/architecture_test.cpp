// Every architecture against Hugging Face transformers: tests/data/models holds tiny checkpoints
// and the logits transformers computed for them (tools/make_tiny_models.py).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <tuple>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"
#include "model/weights.h"
#include "parity/single_model.h"

namespace droidspeak {
namespace {

struct Golden {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // of the last positions
};

Golden read_golden(const std::filesystem::path& path) {
  nlohmann::json json = nlohmann::json::parse(read_file(path));
  return {json["tokens"].get<std::vector<int32_t>>(),
          json["logits"].get<std::vector<std::vector<float>>>()};
}

std::filesystem::path models() {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models";
}

using Case = std::tuple<const char*, DeviceKind>;

class ArchitectureParity : public testing::TestWithParam<Case> {};

class DeviceParity : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam())) GTEST_SKIP() << "no CUDA device";
  }

  SingleModel smollm2(const std::filesystem::path& adapter, DType kv_dtype) const {
    return {models() / "smollm2", adapter, {.device = GetParam(), .kv_dtype = kv_dtype}};
  }
};

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  std::string name = std::get<0>(info.param);
  std::ranges::replace(name, '-', '_');
  return name + "_" + device_name(std::get<1>(info.param));
}

std::string name_of_device(const testing::TestParamInfo<DeviceKind>& info) {
  return device_name(info.param);
}

void expect_golden(SingleModel& model, const Golden& golden, int32_t chunk, float tolerance) {
  std::vector<std::vector<float>> logits = model.logits(golden.tokens, chunk);
  size_t first = golden.tokens.size() - golden.logits.size();
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    for (size_t j = 0; j < golden.logits[i].size(); ++j) {
      ASSERT_NEAR(logits[first + i][j], golden.logits[i][j], tolerance)
          << "position " << first + i << " token " << j << " chunk " << chunk;
    }
  }
}

TEST_P(ArchitectureParity, LogitsEqualTransformers) {
  auto [name, device] = GetParam();
  if (!has_device(device)) GTEST_SKIP() << "no CUDA device";
  std::filesystem::path folder = models() / name;
  Golden golden = read_golden(folder / "golden.json");
  SingleModel model(folder, {}, {.device = device});
  for (int32_t chunk : {512, 64, 7}) expect_golden(model, golden, chunk, 2e-3f);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ArchitectureParity,
    testing::Combine(
        testing::Values(
            "llama2", "llama3", "smollm2", "mistral", "qwen2", "qwen3", "phi3", "phi3-long"),
        testing::Values(DeviceKind::kCpu, DeviceKind::kCuda)),
    name_of_case);

TEST_P(DeviceParity, AdapterLogitsEqualPeft) {
  SingleModel model = smollm2(models() / "smollm2/adapter", DType::kF32);
  expect_golden(model, read_golden(models() / "smollm2/golden_adapter.json"), 512, 2e-3f);
}

TEST_P(DeviceParity, HalfAndInt8CachesStayClose) {
  Golden golden = read_golden(models() / "smollm2/golden.json");
  SingleModel half = smollm2({}, DType::kF16);
  expect_golden(half, golden, 64, 0.05f);
  SingleModel byte = smollm2({}, DType::kI8);
  expect_golden(byte, golden, 64, 0.6f);
}

INSTANTIATE_TEST_SUITE_P(All,
                         DeviceParity,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         name_of_device);

// 16-bit weights, activations and caches, as served.
TEST(CudaParity, FastLogitsStayClose) {
  if (!has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no CUDA device";
  for (const char* name : {"llama3", "smollm2", "qwen2", "qwen3", "phi3"}) {
    SCOPED_TRACE(name);
    Golden golden = read_golden(models() / name / "golden.json");
    float largest = 0;
    for (const auto& row : golden.logits) {
      for (float logit : row) largest = std::max(largest, std::abs(logit));
    }
    SingleModel model(
        models() / name, {},
        {.device = DeviceKind::kCuda, .precision = Precision::kFast, .kv_dtype = DType::kBF16});
    for (int32_t chunk : {512, 64, 1}) expect_golden(model, golden, chunk, 0.1f * largest);
  }
}

}  // namespace
}  // namespace droidspeak
