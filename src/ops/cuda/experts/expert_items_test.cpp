#include "ops/cuda/experts/expert_items.h"

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::view_of;

class ExpertItemsTest : public CudaTest {
 protected:
  struct Found {
    std::vector<ExpertItem> items;
    std::vector<int32_t> rows;
    std::vector<int32_t> places;
    Floats weights;
  };

  Found find(const Floats& logits, const ExpertRows& rows, ExpertChoice::Weights kind) {
    Tensor memory(*device_, DType::kI32, 1,
                  static_cast<int64_t>(rows.bytes_of_items() / sizeof(int32_t)));
    const ExpertItems items = rows.items_in(static_cast<std::byte*>(memory.view().data));
    const DeviceFloats input = on_device(DType::kF32, logits, rows.rows);
    const DeviceFloats weights =
        on_device(DType::kF32, Floats(static_cast<size_t>(rows.places()), NAN), rows.rows);
    const ExpertChoice choice{static_cast<int32_t>(rows.per_row), kind};
    choose_items(static_cast<CudaDevice&>(*device_).stream(), input.view(), choice, rows, items,
                 weights.view());
    int32_t count = -1;
    device_->to_host(&count, items.count, sizeof count);
    Found found;
    if (count < 0 || count > rows.most_items()) {
      ADD_FAILURE() << count << " items, at most " << rows.most_items();
      return found;
    }
    found.items.resize(static_cast<size_t>(count));
    found.rows.resize(static_cast<size_t>(rows.places()));
    found.places.resize(found.rows.size());
    device_->to_host(found.items.data(), items.items, found.items.size() * sizeof(ExpertItem));
    device_->to_host(found.rows.data(), items.rows, found.rows.size() * sizeof(int32_t));
    device_->to_host(found.places.data(), items.places, found.places.size() * sizeof(int32_t));
    found.weights = weights.read();
    return found;
  }

  // Against what the CPU chooses.
  void compare(Floats logits, const ExpertRows& rows) {
    SCOPED_TRACE(testing::Message() << rows.rows << " rows, " << rows.per_row << " of "
                                    << rows.num_experts << ", items of " << rows.rows_of_item);
    constexpr auto kKind = ExpertChoice::Weights::kOfChosen;
    std::vector<int32_t> chosen(static_cast<size_t>(rows.places()));
    Floats weights(chosen.size());
    cpu_->choose_experts(view_of(logits, rows.rows, rows.num_experts),
                         {static_cast<int32_t>(rows.per_row), kKind}, chosen,
                         view_of(weights, rows.rows, rows.per_row));
    const Found found = find(logits, rows, kKind);
    ASSERT_EQ(found.rows.size(), chosen.size());
    cpu::expect_near(found.weights, weights, 1e-5f);
    for (size_t i = 0; i < chosen.size(); ++i) {
      const auto place = static_cast<size_t>(found.places[i]);
      ASSERT_LT(place, chosen.size());
      EXPECT_EQ(found.rows[place], static_cast<int32_t>(i) / static_cast<int32_t>(rows.per_row));
    }
    expect_items(found, chosen, rows);
  }

  // The items are the places in order, each of one expert and no larger than allowed.
  static void expect_items(const Found& found,
                           std::span<const int32_t> chosen,
                           const ExpertRows& rows) {
    std::vector<int32_t> expert_of(chosen.size(), -1);
    for (size_t i = 0; i < chosen.size(); ++i)
      expert_of[static_cast<size_t>(found.places[i])] = chosen[i];
    EXPECT_TRUE(std::ranges::is_sorted(expert_of));
    int32_t next = 0;
    for (const ExpertItem& item : found.items) {
      EXPECT_EQ(item.first_place, next);
      EXPECT_TRUE(item.num_rows >= 1 && item.num_rows <= rows.rows_of_item) << item.num_rows;
      next += item.num_rows;
      ASSERT_LE(static_cast<size_t>(next), expert_of.size());
      for (int32_t place = item.first_place; place < next; ++place)
        EXPECT_EQ(expert_of[static_cast<size_t>(place)], item.expert);
    }
    EXPECT_EQ(static_cast<size_t>(next), expert_of.size());
  }

  std::unique_ptr<Ops> cpu_ = make_cpu_ops(*host_, 1);
};

TEST_F(ExpertItemsTest, HoldEveryChoiceOnce) {
  for (int64_t rows : {1, 2, 3, 8, 9, 31, 64}) {
    for (auto [experts, per_row] :
         {std::pair<int64_t, int64_t>{1, 1}, {8, 2}, {8, 8}, {60, 4}, {128, 8}, {256, 16}}) {
      for (int64_t rows_of_item : {4, 8, 16})
        compare(random_values(DType::kF32, rows * experts, 3),
                {rows, per_row, experts, rows_of_item});
    }
  }
}

TEST_F(ExpertItemsTest, AllRowsMayGoToOneExpert) {
  for (int64_t rows : {1, 16, 17, 64}) {
    Floats logits(static_cast<size_t>(rows * 8), 0.0f);
    for (int64_t row = 0; row < rows; ++row) logits[static_cast<size_t>(row * 8 + 5)] = 9;
    compare(logits, {rows, 1, 8, 16});
    compare(logits, {rows, 2, 8, 8});
  }
}

TEST_F(ExpertItemsTest, LogitsThatAreNoNumbersChooseExpertsThatExist) {
  const Found found = find(Floats(12, NAN), {3, 2, 4, 8}, ExpertChoice::Weights::kOfAll);
  ASSERT_EQ(found.items.size(), 2u);
  for (const ExpertItem& item : found.items) {
    EXPECT_TRUE(item.expert >= 0 && item.expert < 4);
    EXPECT_EQ(item.num_rows, 3);
  }
}

}  // namespace
}  // namespace droidspeak::cuda
