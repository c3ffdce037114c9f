// Hugging Face folders with quantised weights against transformers on what their codes stand for
// (tools/make_quantized_models.py).
#include <algorithm>

#include "parity/golden.h"

namespace droidspeak {
namespace {

class QuantizedParity : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    if (!has_device(device())) GTEST_SKIP() << "no CUDA device";
  }

  static DeviceKind device() { return std::get<1>(GetParam()); }

  static std::filesystem::path folder() {
    return golden_models() / "quantized" / std::get<0>(GetParam());
  }
};

TEST_P(QuantizedParity, LogitsEqualTransformers) {
  const Golden golden = read_golden(folder() / "golden.json");
  SingleModel model(folder(), {}, {.device = device()});
  for (int32_t chunk : {512, 7}) expect_golden(model, golden, chunk, 1e-3f);
}

// As served: packed weights, activations of 8 bits on the CPU, of bf16 with CUDA, or of 8-bit
// floats where the file asks for them.
TEST_P(QuantizedParity, FastLogitsStayClose) {
  const Golden golden = read_golden(folder() / "golden.json");
  const bool is_cpu = device() == DeviceKind::kCpu;
  const bool may_round = folder().filename() == "fbgemm" || folder().filename() == "fp8-channel";
  SingleModel model(folder(), {},
                    {.device = device(),
                     .precision = Precision::kFast,
                     .kv_dtype = is_cpu ? DType::kF16 : DType::kBF16});
  const float share = is_cpu ? 0.03f : may_round ? 0.2f : 0.1f;
  expect_golden(model, golden, 512, share * largest_logit(golden));
}

INSTANTIATE_TEST_SUITE_P(All,
                         QuantizedParity,
                         testing::Combine(testing::Values("gptq-4",
                                                          "gptq-4-ordered",
                                                          "gptq-4-zeros",
                                                          "gptq-8",
                                                          "auto-round",
                                                          "awq",
                                                          "awq-experts",
                                                          "packed-4",
                                                          "packed-4-ordered",
                                                          "packed-8",
                                                          "int8",
                                                          "int8-zeros",
                                                          "fp8-tensor",
                                                          "fp8-scalar",
                                                          "fp8-channel",
                                                          "fp8-block",
                                                          "fbgemm",
                                                          "mxfp4"),
                                          testing::Values(DeviceKind::kCpu, DeviceKind::kCuda)),
                         name_of_case);

}  // namespace
}  // namespace droidspeak
