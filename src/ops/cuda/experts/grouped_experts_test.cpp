// Experts in one product, against the same experts one by one in plain arithmetic.
#include <algorithm>
#include <cmath>

#include "ops/cuda/quantized/strip_fixture.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;
using cpu::view_of;

struct Sizes {
  int64_t columns;
  int64_t width;  // of an expert
};

// Experts of one layer as a file holds them, as numbers, and packed. The router takes the first
// numbers of a row as they are for its logits.
struct Experts {
  std::vector<Quantized> gate_up, down;
  std::unique_ptr<WeightMatrix> router;
  std::vector<std::unique_ptr<WeightMatrix>> packed;
  std::vector<ExpertMatrices> matrices;

  int64_t columns() const { return gate_up.front().columns; }

  int64_t count() const { return std::ssize(gate_up); }
};

class GroupedExpertsTest : public StripFixture {
 protected:
  static constexpr float kTolerance = 2e-2f;  // gate, up, activation and answer become bf16

  void add_expert(DType gate_up, DType down, Sizes s, Experts& to) {
    const int64_t columns = std::max(whole_blocks(gate_up, s.columns), s.columns);
    const int64_t width = whole_blocks(down, s.width);
    to.gate_up.push_back(quantized(gate_up, 2 * width, columns));
    to.down.push_back(quantized(down, columns, width));
    for (const Quantized* source : {&to.gate_up.back(), &to.down.back()})
      to.packed.push_back(pack({source, 1}));
    to.matrices.push_back({to.packed[to.packed.size() - 2].get(), to.packed.back().get()});
  }

  Experts make(DType dtype, int64_t count, Sizes s) {
    Experts experts;
    for (int64_t i = 0; i < count; ++i) add_expert(dtype, dtype, s, experts);
    add_router(experts);
    return experts;
  }

  void add_router(Experts& to) {
    Floats values(static_cast<size_t>(to.count() * to.columns()), 0.0f);
    for (int64_t e = 0; e < to.count(); ++e) values[static_cast<size_t>(e * to.columns() + e)] = 1;
    const MatrixPart part{
        DType::kF32, to.count(), to.columns(), std::as_bytes(std::span(values)), {}};
    to.router = fast_->pack({&part, 1}, Precision::kFast);
  }

  static ExpertLayer layer_of(const Experts& experts,
                              int32_t per_row,
                              Activation activation = Activation::kSilu) {
    return {experts.router.get(),
            experts.matrices,
            {per_row, ExpertChoice::Weights::kOfChosen},
            activation};
  }

  static float activate(Activation activation, float x) {
    if (activation == Activation::kSilu) return x / (1.0f + std::exp(-x));
    return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }

  // What one expert makes of one row.
  static Floats answer(const Experts& experts,
                       size_t expert,
                       const Floats& row,
                       Activation activation) {
    const Floats both =
        rounded(cpu::multiply(row, experts.gate_up[expert].values, experts.columns()));
    Floats activated(both.size() / 2);
    for (size_t i = 0; i < activated.size(); ++i)
      activated[i] = activate(activation, both[i]) * both[i + activated.size()];
    return rounded(
        cpu::multiply(rounded(activated), experts.down[expert].values, std::ssize(activated)));
  }

  Floats expected(const Experts& experts, const ExpertLayer& layer, const Floats& in, Floats out) {
    const auto columns = static_cast<size_t>(experts.columns());
    const int64_t rows = std::ssize(in) / experts.columns();
    const int32_t per_row = layer.choice.per_row;
    Floats logits;
    for (auto row = in.begin(); row != in.end(); row += experts.columns())
      logits.insert(logits.end(), row, row + experts.count());
    std::vector<int32_t> chosen(static_cast<size_t>(rows * per_row));
    Floats weights(chosen.size());
    cpu_->choose_experts(view_of(logits, rows, experts.count()), layer.choice, chosen,
                         view_of(weights, rows, per_row));
    for (size_t i = 0; i < chosen.size(); ++i) {
      const size_t row = i / static_cast<size_t>(per_row);
      const auto first = in.begin() + static_cast<int64_t>(row * columns);
      const Floats given =
          answer(experts, static_cast<size_t>(chosen[i]),
                 Floats(first, first + static_cast<int64_t>(columns)), layer.activation);
      for (size_t c = 0; c < columns; ++c) out[row * columns + c] += weights[i] * given[c];
    }
    return out;
  }

  Floats run(Ops& ops, const ExpertLayer& layer, const Floats& in, const Floats& out) {
    const int64_t rows = std::ssize(in) / layer.router->columns();
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    DeviceFloats output = on_device(DType::kBF16, out, rows);
    EXPECT_TRUE(ops.add_experts(layer, input.view(), output.view()));
    return output.read();
  }

  void compare(const Experts& experts, const ExpertLayer& layer, const Floats& in) {
    const int64_t rows = std::ssize(in) / experts.columns();
    SCOPED_TRACE(testing::Message()
                 << name_of(experts.gate_up[0].dtype) << ": " << rows << " rows, "
                 << layer.choice.per_row << " of " << experts.count() << ", " << experts.columns()
                 << " x " << experts.down[0].columns);
    const Floats before = random_values(DType::kBF16, rows * experts.columns());
    expect_near(run(*fast_, layer, in, before), expected(experts, layer, in, before), kTolerance);
  }

  Floats random_rows(const Experts& experts, int64_t rows) {
    return random_values(DType::kBF16, rows * experts.columns());
  }

  static std::vector<DType> formats() {
    std::vector<DType> all(std::begin(kStripDtypes), std::end(kStripDtypes));
    all.push_back(DType::kBF16);
    return all;
  }

  static int64_t most_rows(DType dtype) { return dtype == DType::kBF16 ? 16 : 64; }

  std::unique_ptr<Ops> cpu_ = make_cpu_ops(*host_, 1);
};

TEST_F(GroupedExpertsTest, EqualReferenceForAnyNumberOfRows) {
  for (DType dtype : formats()) {
    const Experts experts = make(dtype, 8, {256, 256});
    for (int64_t rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64}) {
      if (rows <= most_rows(dtype))
        compare(experts, layer_of(experts, 2), random_rows(experts, rows));
    }
  }
}

TEST_F(GroupedExpertsTest, EqualReferenceForAnyShape) {
  for (DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ8_0, DType::kBF16}) {
    for (Sizes s : {Sizes{32, 32}, {96, 544}, {576, 160}, {1312, 96}, {64, 2080}}) {
      const Experts experts = make(dtype, 3, s);
      for (int64_t rows : {1, 6, 11})
        compare(experts, layer_of(experts, 2), random_rows(experts, rows));
    }
  }
  for (Sizes s : {Sizes{8, 8}, {40, 24}, {136, 1032}}) {
    const Experts experts = make(DType::kBF16, 3, s);
    compare(experts, layer_of(experts, 1), random_rows(experts, 5));
  }
}

TEST_F(GroupedExpertsTest, EqualReferenceForLongRowsThatSharedMemoryHoldsInParts) {
  for (DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kBF16}) {
    const Experts experts = make(dtype, 2, {256, 14336});
    for (int64_t rows : {1, 3, 8, 12})
      compare(experts, layer_of(experts, 1), random_rows(experts, rows));
  }
}

TEST_F(GroupedExpertsTest, EqualReferenceForManyExperts) {
  for (DType dtype : {DType::kQ4_K, DType::kBF16}) {
    const Experts many = make(dtype, 128, {256, 256});
    for (int64_t rows : {1, 7, 16}) compare(many, layer_of(many, 8), random_rows(many, rows));
    const Experts one = make(dtype, 1, {256, 256});
    compare(one, layer_of(one, 1), random_rows(one, 10));
    const Experts all = make(dtype, 4, {256, 256});
    compare(all, layer_of(all, 4, Activation::kGelu), random_rows(all, 13));
  }
}

TEST_F(GroupedExpertsTest, AllRowsMayGoToTheSameExperts) {
  for (DType dtype : {DType::kQ4_0, DType::kQ6_K, DType::kBF16}) {
    const Experts experts = make(dtype, 8, {256, 256});
    for (int64_t rows : {1, 8, 16, 41}) {
      if (rows > most_rows(dtype)) continue;
      Floats in = random_rows(experts, rows);
      for (int64_t row = 0; row < rows; ++row) {
        in[static_cast<size_t>(row * experts.columns() + 6)] = 8;
        in[static_cast<size_t>(row * experts.columns() + 1)] = 7.5f;
      }
      compare(experts, layer_of(experts, 2), in);
    }
  }
}

TEST_F(GroupedExpertsTest, GateAndDownMayDifferInFormat) {
  Experts experts;
  for (int i = 0; i < 5; ++i) add_expert(DType::kQ4_K, DType::kQ6_K, {256, 512}, experts);
  add_router(experts);
  for (int64_t rows : {1, 20}) compare(experts, layer_of(experts, 2), random_rows(experts, rows));
}

// Up to two rows with quantised weights take a kernel of their own.
TEST_F(GroupedExpertsTest, ARowDependsOnTheOthersOnlyByTheKernelTheyTake) {
  for (DType dtype : {DType::kQ4_0, DType::kQ4_K, DType::kQ8_0, DType::kBF16}) {
    const Experts experts = make(dtype, 8, {1024, 1536});
    const Floats row = random_rows(experts, 1);
    auto last_row = [&](int64_t rows) {
      Floats in = random_rows(experts, rows);
      std::ranges::copy(row, in.end() - experts.columns());
      const Floats all = run(*fast_, layer_of(experts, 2), in, Floats(in.size(), 0.0f));
      return Floats(all.end() - experts.columns(), all.end());
    };
    const Floats alone = last_row(1);
    EXPECT_EQ(last_row(2), alone) << name_of(dtype);
    const Floats among_others = last_row(3);
    for (int64_t rows : {4, 5, 8, 9, 16, 40, 64}) {
      if (rows <= most_rows(dtype)) {
        EXPECT_EQ(last_row(rows), among_others) << name_of(dtype) << " " << rows;
      }
    }
    expect_near(among_others, alone, kTolerance);
  }
}

TEST_F(GroupedExpertsTest, RecordedStepsFollowTheChoices) {
  FastPaths paths;
  paths.graphs = false;
  auto plain = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast, paths);
  for (DType dtype : {DType::kQ4_0, DType::kBF16}) {
    const Experts experts = make(dtype, 8, {256, 512});
    const ExpertLayer layer = layer_of(experts, 2);
    for (int64_t rows : {1, 5}) {
      const Tensor in(*device_, DType::kBF16, rows, experts.columns());
      const Tensor out(*device_, DType::kBF16, rows, experts.columns());
      for (int step = 0; step < 8; ++step) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows << " step " << step);
        const Floats values = random_rows(experts, rows);
        const DeviceFloats input = on_device(DType::kBF16, values, rows);
        DeviceFloats wanted = on_device(DType::kBF16, Floats(values.size(), 0.0f), rows);
        DeviceFloats got = on_device(DType::kBF16, Floats(values.size(), NAN), rows);
        fast_->copy(input.view(), in.view());
        fast_->copy(wanted.view(), out.view());
        fast_->repeat([&] {
          for (int i = 0; i < 3; ++i) EXPECT_TRUE(fast_->add_experts(layer, in.view(), out.view()));
        });
        for (int i = 0; i < 3; ++i)
          EXPECT_TRUE(plain->add_experts(layer, input.view(), wanted.view()));
        fast_->copy(out.view(), got.view());
        ASSERT_EQ(got.read(), wanted.read());
      }
    }
  }
}

// The norm before waits for what comes, and is taken along.
TEST_F(GroupedExpertsTest, RecordedStepsNormTheirRows) {
  const Experts experts = make(DType::kQ4_0, 8, {512, 512});
  const ExpertLayer layer = layer_of(experts, 2);
  const DeviceFloats weight = f32(random_values(DType::kF32, experts.columns()));
  for (int64_t rows : {1, 4, 7}) {
    const DeviceFloats input = on_device(DType::kBF16, random_rows(experts, rows), rows);
    const Tensor normed(*device_, DType::kBF16, rows, experts.columns());
    const Tensor out(*device_, DType::kBF16, rows, experts.columns());
    for (int step = 0; step < 4; ++step) {
      SCOPED_TRACE(testing::Message() << rows << " rows, step " << step);
      DeviceFloats zeros = on_device(DType::kBF16, Floats(input.read().size(), 0.0f), rows);
      fast_->copy(zeros.view(), out.view());
      fast_->repeat([&] {
        fast_->rms_norm(input.view(), weight.f32(), 1e-5f, normed.view());
        EXPECT_TRUE(fast_->add_experts(layer, normed.view(), out.view()));
      });
      DeviceFloats in = on_device(DType::kBF16, Floats(input.read().size(), NAN), rows);
      fast_->copy(normed.view(), in.view());
      fast_->copy(out.view(), zeros.view());
      DeviceFloats by_itself = on_device(DType::kBF16, Floats(input.read().size(), NAN), rows);
      fast_->rms_norm(input.view(), weight.f32(), 1e-5f, by_itself.view());
      expect_near(in.read(), by_itself.read(), tolerance_of(DType::kBF16));
      expect_near(zeros.read(),
                  expected(experts, layer, in.read(), Floats(input.read().size(), 0.0f)),
                  kTolerance);
    }
  }
}

TEST_F(GroupedExpertsTest, RefuseWhatTheyCannotDo) {
  auto is_done = [&](Ops& ops, const Experts& experts, int64_t rows) {
    const auto size = static_cast<size_t>(rows * experts.columns());
    const DeviceFloats in = on_device(DType::kBF16, random_rows(experts, rows), rows);
    const DeviceFloats out = on_device(DType::kBF16, Floats(size, 2.0f), rows);
    const bool result = ops.add_experts(layer_of(experts, 1), in.view(), out.view());
    if (!result) {
      EXPECT_EQ(out.read(), Floats(size, 2.0f));
    }
    return result;
  };
  const Experts strips = make(DType::kQ4_0, 2, {64, 64});
  EXPECT_TRUE(is_done(*fast_, strips, 64));
  EXPECT_FALSE(is_done(*fast_, strips, 65)) << "expanded weights are faster";
  const Experts plain = make(DType::kBF16, 2, {64, 64});
  EXPECT_TRUE(is_done(*fast_, plain, 16));
  EXPECT_FALSE(is_done(*fast_, plain, 17));
  EXPECT_FALSE(is_done(*fast_, make(DType::kBF16, 2, {44, 64}), 1));
  Experts mixed;
  add_expert(DType::kQ4_0, DType::kQ4_0, {64, 64}, mixed);
  add_expert(DType::kQ8_0, DType::kQ4_0, {64, 64}, mixed);
  add_router(mixed);
  EXPECT_FALSE(is_done(*fast_, mixed, 1)) << "experts of two formats";
  FastPaths paths;
  paths.grouped_experts = false;
  auto without = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast, paths);
  EXPECT_FALSE(is_done(*without, strips, 1));
}

}  // namespace
}  // namespace droidspeak::cuda
