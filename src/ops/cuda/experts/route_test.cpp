#include "ops/cuda/experts/route.h"

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;
using cpu::view_of;

class RouteTest : public CudaTest {
 protected:
  std::unique_ptr<WeightMatrix> pack(const Floats& values, int64_t rows) {
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = std::ssize(values) / rows,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return fast_->pack({&part, 1}, Precision::kFast);
  }

  // Whether the choice is so clear that the order of sums does not change it.
  static bool is_clear(Floats logits, int64_t per_row) {
    std::ranges::sort(logits, std::greater<>());
    for (size_t i = 1; i < std::min(logits.size(), static_cast<size_t>(per_row) + 1); ++i) {
      if (logits[i - 1] - logits[i] < 1e-2f) return false;
    }
    return true;
  }

  Floats clear_rows(int64_t rows, const Floats& router, int64_t experts, int64_t per_row) {
    const int64_t columns = std::ssize(router) / experts;
    Floats all;
    while (std::ssize(all) < rows * columns) {
      const Floats row = random_values(DType::kBF16, columns);
      if (is_clear(cpu::multiply(row, router, columns), per_row))
        all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  std::vector<int32_t> read(const int32_t* from, size_t count) {
    std::vector<int32_t> values(count, -1);
    device_->to_host(values.data(), from, count * sizeof(int32_t));
    return values;
  }

  void compare(const ExpertRows& counts, int64_t columns) {
    SCOPED_TRACE(testing::Message() << counts.rows << " rows of " << columns << ", "
                                    << counts.per_row << " of " << counts.num_experts);
    const Floats values = random_values(DType::kBF16, counts.num_experts * columns);
    const Floats in = clear_rows(counts.rows, values, counts.num_experts, counts.per_row);
    const auto router = pack(values, counts.num_experts);
    const DeviceFloats input = on_device(DType::kBF16, in, counts.rows);
    ASSERT_TRUE(can_route(as_cuda(*router), input.view()));
    const ExpertChoice choice{static_cast<int32_t>(counts.per_row),
                              ExpertChoice::Weights::kOfChosen};
    const auto places = static_cast<size_t>(counts.places());
    const DeviceFloats weights = on_device(DType::kF32, Floats(places, NAN), counts.rows);
    Tensor memory(*device_, DType::kI32, 2,
                  static_cast<int64_t>(counts.bytes_of_items() / sizeof(int32_t)));
    auto items_at = [&](int64_t row) {
      return counts.items_in(static_cast<std::byte*>(memory.view().row_range(row, row + 1).data));
    };
    cudaStream_t stream = static_cast<CudaDevice&>(*device_).stream();
    route(stream,
          {as_cuda(*router), {input.view(), {}}, choice, counts, items_at(0), weights.view()});

    const DeviceFloats logits =
        on_device(DType::kF32, cpu::multiply(in, values, columns), counts.rows);
    const DeviceFloats expected = on_device(DType::kF32, Floats(places, NAN), counts.rows);
    choose_items(stream, logits.view(), choice, counts, items_at(1), expected.view());
    expect_near(weights.read(), expected.read(), 1e-3f);
    EXPECT_EQ(read(items_at(0).places, places), read(items_at(1).places, places));
    EXPECT_EQ(read(items_at(0).rows, places), read(items_at(1).rows, places));
    const auto count = read(items_at(0).count, 1);
    ASSERT_EQ(count, read(items_at(1).count, 1));
    const auto words = static_cast<size_t>(count[0]) * sizeof(ExpertItem) / sizeof(int32_t);
    EXPECT_EQ(read(&items_at(0).items->expert, words), read(&items_at(1).items->expert, words));
  }
};

TEST_F(RouteTest, EqualsProductAndChoice) {
  for (int64_t rows : {1, 2, 3, 4}) {
    for (int64_t columns : {8, 64, 200, 576, 1536})
      for (auto [experts, per_row] :
           {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {3, 2}, {8, 2}, {16, 4}, {31, 3}, {32, 8}})
        compare({rows, per_row, experts, 8}, columns);
    compare({rows, 2, 8, 4}, 4096);
    compare({rows, 2, 8, 8}, 6144);
    compare({rows, 1, 4, 8}, 8192);
  }
}

TEST_F(RouteTest, KnowsWhatItCannotDo) {
  auto can = [&](int64_t rows, int64_t experts, int64_t columns) {
    const auto router = pack(random_values(DType::kBF16, experts * columns), experts);
    const DeviceFloats in =
        on_device(DType::kBF16, Floats(static_cast<size_t>(rows * columns)), rows);
    return can_route(as_cuda(*router), in.view());
  };
  EXPECT_TRUE(can(4, 8, 4096));
  EXPECT_FALSE(can(5, 8, 4096)) << "rows";
  EXPECT_FALSE(can(1, 33, 64)) << "experts";
  EXPECT_FALSE(can(1, 32, 4096)) << "columns that a warp has";
  EXPECT_FALSE(can(1, 1, 16384)) << "columns";
  EXPECT_FALSE(can(1, 8, 60)) << "no whole number of 16 bytes";
}

}  // namespace
}  // namespace droidspeak::cuda
