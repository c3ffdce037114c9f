#include <gtest/gtest.h>

#include "ops/cuda/steps/layout_cache.h"

namespace droidspeak::cuda {
namespace {

class LayoutTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_is_available()) GTEST_SKIP() << "no CUDA device";
    device_ = std::make_unique<CudaDevice>();
    layouts_ = std::make_unique<LayoutCache>(*device_);
  }

  std::vector<int32_t> read(const int32_t* data, int32_t count) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    device_->to_host(values.data(), data, values.size() * sizeof(int32_t));
    return values;
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<LayoutCache> layouts_;
};

TEST_F(LayoutTest, DescribesRowsAndSlices) {
  const std::vector<int32_t> first{7, 3, 9};
  const std::vector<int32_t> second{4};
  const SequenceSlice slices[] = {{0, 2, 100, first}, {3, 1, 5, second}};
  const BatchLayout layout = layouts_->get(slices);
  EXPECT_EQ(layout.num_rows, 4);
  EXPECT_EQ(layout.num_slices, 2);
  EXPECT_EQ(layout.max_rows, 2);
  EXPECT_EQ(layout.max_length, 102);
  EXPECT_EQ(layout.max_blocks, 2);
  EXPECT_EQ(read(layout.row_slice, 4), (std::vector<int32_t>{0, 0, -1, 1}));
  EXPECT_EQ(read(layout.row_position, 4), (std::vector<int32_t>{100, 101, 0, 5}));
  EXPECT_EQ(read(layout.slice_row, 2), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(read(layout.slice_rows, 2), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(read(layout.slice_length, 2), (std::vector<int32_t>{102, 6}));
  EXPECT_EQ(read(layout.blocks, 4), (std::vector<int32_t>{7, 3, 4, 0}));
  EXPECT_EQ(layout.on_host.size(), 2u);
}

TEST_F(LayoutTest, FindsAnEqualLayoutAgainAndOutlivesTheCallersBlocks) {
  std::vector<int32_t> blocks{1, 2, 3};
  const SequenceSlice slice{0, 1, 130, blocks};
  const BatchLayout before = layouts_->get({&slice, 1});
  std::vector<int32_t> copy = blocks;
  const SequenceSlice same{0, 1, 130, copy};
  EXPECT_EQ(layouts_->get({&same, 1}).row_slice, before.row_slice);
  copy[2] = 8;
  const BatchLayout other = layouts_->get({&same, 1});
  EXPECT_NE(other.row_slice, before.row_slice);
  EXPECT_EQ(read(other.blocks, 3), (std::vector<int32_t>{1, 2, 8}));
  EXPECT_EQ(read(before.blocks, 3), blocks);
}

TEST_F(LayoutTest, ManyLayoutsInFlightStayApart) {
  std::vector<int32_t> blocks(64, 0);
  for (int32_t round = 0; round < 100; ++round) {
    const SequenceSlice slice{0, 1 + round % 40, round, blocks};
    const BatchLayout& layout = layouts_->get({&slice, 1});
    EXPECT_EQ(read(layout.row_position, 1).front(), round);
    EXPECT_EQ(read(layout.slice_rows, 1).front(), 1 + round % 40);
  }
}

}  // namespace
}  // namespace droidspeak::cuda
