// Every architecture against Hugging Face transformers: tests/data/models holds tiny checkpoints
// and the logits transformers computed for them (tools/make_tiny_models.py).
#include <cmath>
#include <fstream>

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

class ArchitectureParity : public testing::TestWithParam<const char*> {};

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
  std::filesystem::path folder = models() / GetParam();
  Golden golden = read_golden(folder / "golden.json");
  SingleModel model(folder, {}, Precision::kExact, DType::kF32);
  for (int32_t chunk : {512, 64, 7}) expect_golden(model, golden, chunk, 2e-3f);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ArchitectureParity,
    testing::Values(
        "llama2", "llama3", "smollm2", "mistral", "qwen2", "qwen3", "phi3", "phi3-long"));

TEST(AdapterParity, LogitsEqualPeft) {
  std::filesystem::path folder = models() / "smollm2";
  SingleModel model(folder, folder / "adapter", Precision::kExact, DType::kF32);
  expect_golden(model, read_golden(folder / "golden_adapter.json"), 512, 2e-3f);
}

TEST(KvTypeParity, HalfAndInt8CachesStayClose) {
  std::filesystem::path folder = models() / "smollm2";
  Golden golden = read_golden(folder / "golden.json");
  SingleModel half(folder, {}, Precision::kExact, DType::kF16);
  expect_golden(half, golden, 64, 0.05f);
  SingleModel byte(folder, {}, Precision::kExact, DType::kI8);
  expect_golden(byte, golden, 64, 0.6f);
}

}  // namespace
}  // namespace droidspeak
