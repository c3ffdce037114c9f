#include "ops/cuda/products/lora.h"

#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

constexpr int64_t kOutColumns = 300;

// A correction and the floats it was made of.
struct Adapted {
  LoraLinear lora;
  Floats down;
  std::vector<Floats> ups;
};

struct PartShape {
  int32_t rank;
  int32_t first_column;
  int32_t columns;
};

class LoraTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    FastPaths without;
    without.fused_lora = false;
    plain_ = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast, without);
  }

  std::unique_ptr<WeightMatrix> make(const Floats& values, int64_t rows) {
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = std::ssize(values) / rows,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return fast_->pack({&part, 1}, Precision::kFast);
  }

  Adapted adapt(int64_t in_columns, const std::vector<PartShape>& parts) {
    Adapted adapted;
    int32_t ranks = 0;
    for (const PartShape& part : parts) {
      adapted.ups.push_back(
          random_values(DType::kBF16, static_cast<int64_t>(part.columns) * part.rank));
      adapted.lora.parts.push_back({.up = make(adapted.ups.back(), part.columns),
                                    .first_rank = ranks,
                                    .rank = part.rank,
                                    .first_column = part.first_column});
      ranks += part.rank;
    }
    adapted.down = random_values(DType::kBF16, ranks * in_columns, 0.05f);
    adapted.lora.down = make(adapted.down, ranks);
    return adapted;
  }

  // out of every row, in double precision but for the rounding of the down products.
  static void correct(const Adapted& adapted, const Floats& in, std::span<float> out) {
    Floats low = cpu::multiply(in, adapted.down, std::ssize(in));
    for (float& value : low) value = float_from_bf16(bf16_from_float(value));
    for (size_t i = 0; i < adapted.ups.size(); ++i) {
      const LoraLinear::Part& part = adapted.lora.parts[i];
      const Floats mine(low.begin() + part.first_rank, low.begin() + part.first_rank + part.rank);
      const Floats product = cpu::multiply(mine, adapted.ups[i], part.rank);
      for (size_t j = 0; j < product.size(); ++j)
        out[static_cast<size_t>(part.first_column) + j] += product[j];
    }
  }

  struct Assignment {
    int64_t begin;
    int64_t end;
    const Adapted* adapted;
  };

  void compare(int64_t rows, int64_t in_columns, const std::vector<Assignment>& assignments) {
    const Floats in = random_values(DType::kBF16, rows * in_columns);
    const Floats before = random_values(DType::kBF16, rows * kOutColumns);
    Floats expected = before;
    std::vector<LoraRows> ranges;
    for (const Assignment& a : assignments) {
      ranges.push_back({a.begin, a.end, &a.adapted->lora});
      for (int64_t row = a.begin; row < a.end; ++row) {
        const Floats one(in.begin() + row * in_columns, in.begin() + (row + 1) * in_columns);
        correct(*a.adapted, one,
                std::span(expected).subspan(static_cast<size_t>(row * kOutColumns), kOutColumns));
      }
    }
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    for (Ops* ops : {fast_.get(), plain_.get()}) {
      SCOPED_TRACE(ops == plain_.get() ? "one product at a time" : "fused");
      Tensor low(*device_, DType::kBF16, rows, 80);
      DeviceFloats out = on_device(DType::kBF16, before, rows);
      ops->add_lora(ranges, input.view(), low.view(), out.view());
      expect_near(out.read(), expected, 2 * tolerance_of(DType::kBF16));
    }
  }

  std::unique_ptr<Ops> plain_;
};

TEST_F(LoraTest, CorrectsRowsOfSeveralAdaptersAndLeavesOthersAlone) {
  for (int64_t columns : {64, 576, 1536, 4096, 14336}) {
    SCOPED_TRACE(columns);
    const Adapted qkv = adapt(columns, {{16, 0, 100}, {16, 100, 80}, {16, 180, 120}});
    const Adapted one = adapt(columns, {{8, 40, 200}});
    const Adapted wide = adapt(columns, {{64, 150, 150}, {16, 0, 100}});
    compare(1, columns, {{0, 1, &qkv}});
    compare(7, columns, {{0, 2, &qkv}, {3, 4, &one}, {4, 6, &wide}});
    compare(32, columns, {{1, 20, &wide}, {20, 31, &qkv}});
  }
}

TEST_F(LoraTest, AnyRankWorks) {
  for (int32_t rank : {1, 3, 4, 12, 24, 40}) {
    SCOPED_TRACE(rank);
    const Adapted adapted = adapt(576, {{rank, 0, 150}, {rank, 150, 150}});
    compare(3, 576, {{0, 3, &adapted}});
  }
}

TEST_F(LoraTest, ManyRowsTakeProductsOfWholeRanges) {
  const Adapted a = adapt(128, {{16, 0, 300}});
  const Adapted b = adapt(128, {{16, 0, 100}, {16, 200, 100}});
  compare(70, 128, {{0, 30, &a}, {40, 70, &b}});
}

TEST_F(LoraTest, EveryRowMayHaveAnAdapterOfItsOwn) {
  std::vector<Adapted> adapters;
  for (int i = 0; i < 32; ++i) adapters.push_back(adapt(64, {{8, 0, 300}}));
  std::vector<Assignment> assignments;
  for (int64_t i = 0; i < 32; ++i)
    assignments.push_back({i, i + 1, &adapters[static_cast<size_t>(i)]});
  compare(32, 64, assignments);
}

}  // namespace
}  // namespace droidspeak::cuda
