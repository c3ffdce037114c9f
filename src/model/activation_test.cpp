#include "model/activation.h"

#include <random>

#include <gtest/gtest.h>

#include "model/batch_slice.h"

namespace droidspeak {
namespace {

int32_t activation(std::vector<int32_t> invocation, const std::vector<int32_t>& prompt) {
  Adapter adapter;
  adapter.invocation = std::move(invocation);
  return activation_in(&adapter, prompt);
}

TEST(Activation, IsAtTheBeginningOfTheLastInvocation) {
  EXPECT_EQ(activation({7, 8}, {7, 8, 1, 7, 8, 2}), 3);
  EXPECT_EQ(activation({7, 8}, {7, 8}), 0);
  EXPECT_EQ(activation({7, 8}, {1, 7, 8}), 1);
  EXPECT_EQ(activation({5}, {5, 5, 5}), 2);
  EXPECT_EQ(activation({5, 9, 5}, {5, 9, 5, 9, 5}), 2);  // they may overlap
}

TEST(Activation, NeverComesWithoutAllOfTheInvocation) {
  EXPECT_EQ(activation({7, 8}, {1, 2, 3}), kNeverActive);
  EXPECT_EQ(activation({7, 8}, {8, 7, 7}), kNeverActive);
  EXPECT_EQ(activation({7, 8}, {7}), kNeverActive);
  EXPECT_EQ(activation({7, 8}, {}), kNeverActive);
}

TEST(Activation, OfPlainAdaptersIsTheBeginning) {
  EXPECT_EQ(activation({}, {1, 2}), 0);
  EXPECT_EQ(activation_in(nullptr, std::vector<int32_t>{1, 2}), 0);
}

TEST(Activation, OfAPromptWithoutItLeavesTheBase) {
  auto adapter = std::make_shared<Adapter>();
  adapter->invocation = {7, 8};
  auto variant = std::make_shared<Variant>();
  variant->name = "judge";
  variant->model_digest.bytes[0] = 1;
  variant->adapter_digest.bytes[0] = 2;
  variant->adapter = adapter;
  EXPECT_EQ(answering(variant, std::vector<int32_t>{1, 7, 8}), variant);
  auto base = answering(variant, std::vector<int32_t>{1, 8, 7});
  EXPECT_EQ(base->adapter, nullptr);
  EXPECT_EQ(base->adapter_digest, Digest{});
  EXPECT_EQ(base->model_digest, variant->model_digest);
  EXPECT_TRUE(is_activated(*variant));
  EXPECT_FALSE(is_activated(*base));
}

// Against asking every row for itself.
TEST(Activation, SplitsSlicesOfAllKinds) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> positions;
    BatchSlice slice;
    slice.sequence.first_position = static_cast<int32_t>(random() % 20);
    slice.sequence.num_rows = static_cast<int32_t>(1 + random() % 20);
    if (round % 2 == 1) {
      int32_t position = 0;
      for (int32_t i = 0; i < slice.sequence.num_rows; ++i)
        positions.push_back(position += static_cast<int32_t>(1 + random() % 3));
      slice.sequence.positions = positions;
    }
    const auto from = round % 100 == 0 ? kNeverActive : static_cast<int32_t>(random() % 50);
    slice.activate_from(from);
    int32_t before = 0;
    for (int32_t row = 0; row < slice.sequence.num_rows; ++row)
      before += slice.sequence.position(row) < from ? 1 : 0;
    ASSERT_EQ(slice.base_rows, before);
    const auto count =
        static_cast<int32_t>(random() % static_cast<uint32_t>(slice.sequence.num_rows + 1));
    int32_t before_of_last = 0;
    for (int32_t row = slice.sequence.num_rows - count; row < slice.sequence.num_rows; ++row)
      before_of_last += slice.sequence.position(row) < from ? 1 : 0;
    ASSERT_EQ(slice.base_rows_of_last(count), before_of_last);
  }
}

}  // namespace
}  // namespace droidspeak
