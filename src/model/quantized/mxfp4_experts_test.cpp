#include "model/quantized/mxfp4_experts.h"

#include <gtest/gtest.h>

#include "model/quantized/quantized_fixture.h"

namespace droidspeak {
namespace {

// Two experts of one row and 64 columns.
class Mxfp4Experts : public testing::Test {
 protected:
  Mxfp4Experts() : codes_(2 * 2 * 16, 0), scales_{127, 128, 126, 127} {}

  std::vector<FileTensor> experts() const {
    return mxfp4_experts(
        "folder", "m.gate_up_proj",
        {"m.gate_up_proj_blocks", codes_dtype_, codes_shape_, std::as_bytes(std::span(codes_))},
        {"m.gate_up_proj_scales", "U8", scales_shape_, std::as_bytes(std::span(scales_))});
  }

  std::vector<uint8_t> codes_;
  std::vector<uint8_t> scales_;
  std::string codes_dtype_ = "U8";
  std::vector<int64_t> codes_shape_ = {2, 1, 2, 16};
  std::vector<int64_t> scales_shape_ = {2, 1, 2};
};

TEST_F(Mxfp4Experts, HaveCodesSideBySideTimesAPowerOfTwo) {
  codes_[0] = 0x72;   // 1, then 6, of the first block, times 1
  codes_[31] = 0x9f;  // -6, then -0.5, last of the second one, times 2
  codes_[32] = 0x05;  // 3 of the second expert, times a half
  const auto made = experts();
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[1].name, "m.gate_up_proj[1]");
  EXPECT_EQ(made[1].shape, (std::vector<int64_t>{1, 64}));
  const std::vector<float> first = made[0].read_floats();
  EXPECT_EQ(first[0], 1.0f);
  EXPECT_EQ(first[1], 6.0f);
  EXPECT_EQ(first[62], -12.0f);
  EXPECT_EQ(first[63], -1.0f);
  EXPECT_EQ(made[1].read_floats()[0], 1.5f);
}

TEST_F(Mxfp4Experts, OfOtherShapesOrTypesAreRefused) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {}, {64}, {2, 1, 2}, {2, 1, 4, 8}, {0, 1, 2, 16}, {2, -1, -2, 16}, {2, 1, 2, 16, 1}}) {
    codes_shape_ = shape;
    expect_refusal([&] { experts(); }, "_blocks' is U8");
  }
  codes_shape_ = {1 << 20, 1, 1, 16};
  expect_refusal([&] { experts(); }, "_blocks");
  codes_shape_ = {2, 1, 2, 16};
  scales_shape_ = {2, 2, 1};
  expect_refusal([&] { experts(); }, "_scales' is U8 [2, 2, 1]: expected U8 [2, 1, 2]");
  scales_shape_ = {2, 1, 2};
  codes_dtype_ = "I8";
  expect_refusal([&] { experts(); }, "is I8");
}

TEST_F(Mxfp4Experts, WithAScaleThatIsNoNumberAreRefusedWhenRead) {
  scales_[1] = 255;
  const auto made = experts();
  expect_refusal([&] { made[0].read(); }, "a scale is not a number");
  EXPECT_EQ(made[1].read().size(), 34u);
}

}  // namespace
}  // namespace droidspeak
