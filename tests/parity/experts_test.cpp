// The FFN of a layer with experts against plain arithmetic, one row and one expert at a time: few
// rows, which CUDA takes in one product, and many; rows with an adapter on experts among them.
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "model/expert_ffn.h"
#include "support/device_under_test.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

using Floats = std::vector<float>;

constexpr int32_t kDim = 64;
constexpr int32_t kFfn = 96;
constexpr int32_t kExperts = 6;
constexpr int32_t kRank = 4;
// Gate, up, what is between and each expert's answer are rounded to bf16.
constexpr float kFastBound = 3e-2f;
constexpr float kExactBound = 1e-4f;

struct Setting {
  DeviceKind device;
  Precision precision;
};

struct Numbers {
  Floats router;         // [kExperts, kDim]
  Floats gate_up, down;  // of all experts, one below the other
  Floats low, high;      // of an adapter on each expert's down: [kRank, kFfn], [kDim, kRank]
};

class ExpertParity : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam().device)) GTEST_SKIP() << "no CUDA device";
    device_ = make_test_device(GetParam().device);
    ops_ = make_test_ops(*device_, GetParam().precision);
    config_.d_model = kDim;
    config_.experts = {.count = kExperts, .per_row = 2, .ffn_dim = kFfn};
    config_.parts.activation = Activation::kSilu;
    numbers_ = {random(kExperts * kDim, 0.3f), random(kExperts * 2 * kFfn * kDim, 0.2f),
                random(kExperts * kDim * kFfn, 0.2f), random(kExperts * kRank * kFfn, 0.2f),
                random(kExperts * kDim * kRank, 0.2f)};
    weights_.router = pack(numbers_.router, 0, kExperts, kDim);
    adapter_.layers.resize(1);
    for (int32_t e = 0; e < kExperts; ++e) {
      weights_.experts.push_back(
          {pack(numbers_.gate_up, e, 2 * kFfn, kDim), pack(numbers_.down, e, kDim, kFfn), {}, {}});
      ExpertLora& lora = adapter_.layers[0].experts.emplace_back();
      lora.down.down = pack(numbers_.low, e, kRank, kFfn);
      lora.down.parts.push_back({.up = pack(numbers_.high, e, kDim, kRank), .rank = kRank});
    }
  }

  // Values that bf16 holds.
  Floats random(int64_t count, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    Floats values(static_cast<size_t>(count));
    for (float& value : values) value = float_from_bf16(bf16_from_float(normal(random_)));
    return values;
  }

  // Matrix `index` of those that lie in `values`.
  std::unique_ptr<WeightMatrix> pack(const Floats& values,
                                     int64_t index,
                                     int64_t rows,
                                     int64_t columns) {
    const auto size = static_cast<size_t>(rows * columns);
    const auto own = std::span(values).subspan(static_cast<size_t>(index) * size, size);
    const MatrixPart part{DType::kF32, rows, columns, std::as_bytes(own), {}};
    return ops_->pack({&part, 1}, GetParam().precision);
  }

  static Floats multiply(std::span<const float> matrices,
                         int64_t index,
                         std::span<const float> in,
                         int64_t rows) {
    Floats out(static_cast<size_t>(rows));
    const float* row = matrices.data() + index * rows * std::ssize(in);
    for (float& value : out) {
      double sum = 0;
      for (float x : in) sum += static_cast<double>(*row++) * x;
      value = static_cast<float>(sum);
    }
    return out;
  }

  Floats answer(int64_t expert, std::span<const float> row, bool is_adapted) const {
    const Floats both = multiply(numbers_.gate_up, expert, row, 2 * kFfn);
    Floats activated(kFfn);
    for (size_t i = 0; i < kFfn; ++i)
      activated[i] = both[i] / (1 + std::exp(-both[i])) * both[i + kFfn];
    Floats out = multiply(numbers_.down, expert, activated, kDim);
    if (!is_adapted) return out;
    const Floats low = multiply(numbers_.low, expert, activated, kRank);
    const Floats added = multiply(numbers_.high, expert, low, kDim);
    for (size_t i = 0; i < kDim; ++i) out[i] += added[i];
    return out;
  }

  // Rows whose choice is clear, so that rounding does not change it.
  Floats clear_rows(int64_t rows) {
    Floats all;
    while (std::ssize(all) < rows * kDim) {
      const Floats row = random(kDim, 1);
      Floats logits = multiply(numbers_.router, 0, row, kExperts);
      std::ranges::sort(logits, std::greater<>());
      if (logits[1] - logits[2] > 0.1f) all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

  // What the experts add to a row.
  Floats expected(std::span<const float> row, bool is_adapted) const {
    const Floats logits = multiply(numbers_.router, 0, row, kExperts);
    size_t best = 0;
    for (size_t e = 1; e < kExperts; ++e) best = logits[e] > logits[best] ? e : best;
    size_t second = best == 0 ? 1 : 0;
    for (size_t e = 0; e < kExperts; ++e)
      second = e != best && logits[e] > logits[second] ? e : second;
    const float share = 1 / (1 + std::exp(logits[second] - logits[best]));
    const Floats first = answer(static_cast<int64_t>(best), row, is_adapted);
    const Floats other = answer(static_cast<int64_t>(second), row, is_adapted);
    Floats sum(kDim);
    for (size_t i = 0; i < kDim; ++i) sum[i] = share * first[i] + (1 - share) * other[i];
    return sum;
  }

  std::vector<Floats> run(const Floats& in, std::span<const BatchSlice> slices) {
    const int64_t rows = std::ssize(in) / kDim;
    const DType dtype = ops_->activation_dtype();
    Tensor plain(*device_, DType::kF32, rows, kDim);
    Tensor input(*device_, dtype, rows, kDim);
    Tensor hidden(*device_, dtype, rows, kDim);
    const Floats zeros(in.size(), 0.0f);
    device_->to_device(plain.view().data, zeros.data(), zeros.size() * sizeof(float));
    ops_->copy(plain.view(), hidden.view());
    device_->synchronize();
    device_->to_device(plain.view().data, in.data(), in.size() * sizeof(float));
    ops_->copy(plain.view(), input.view());
    ExpertFfn(*ops_).add(config_, weights_, 0, slices, input.view(), hidden.view());
    ops_->copy(hidden.view(), plain.view());
    device_->synchronize();
    return read_rows(*device_, plain.view());
  }

  void compare(int32_t rows, int32_t adapted_from) {
    SCOPED_TRACE(testing::Message() << rows << " rows, adapted from " << adapted_from);
    const Floats in = clear_rows(rows);
    std::vector<BatchSlice> slices(1);
    slices[0].sequence.num_rows = rows;
    slices[0].base_rows = adapted_from;
    slices[0].adapter = adapted_from < rows ? &adapter_ : nullptr;
    const std::vector<Floats> actual = run(in, slices);
    const float bound = ops_->activation_dtype() == DType::kF32 ? kExactBound : kFastBound;
    for (int32_t row = 0; row < rows; ++row) {
      const auto first = static_cast<size_t>(row) * kDim;
      const Floats wanted = expected(std::span(in).subspan(first, kDim), row >= adapted_from);
      float largest = 0;
      for (float value : wanted) largest = std::max(largest, std::abs(value));
      for (size_t i = 0; i < kDim; ++i)
        ASSERT_NEAR(actual[static_cast<size_t>(row)][i], wanted[i], bound * largest)
            << row << " " << i;
    }
  }

  std::mt19937 random_{11};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  ModelConfig config_;
  Numbers numbers_;
  LayerWeights weights_;
  Adapter adapter_;
};

TEST_P(ExpertParity, AnyNumberOfRows) {
  for (int32_t rows : {1, 2, 4, 5, 16, 17, 64, 65, 300, 700}) compare(rows, rows);
}

TEST_P(ExpertParity, RowsWithAnAdapterOnExperts) {
  for (int32_t rows : {1, 3, 20, 90}) {
    compare(rows, 0);
    compare(rows, rows / 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         ExpertParity,
                         testing::Values(Setting{DeviceKind::kCpu, Precision::kExact},
                                         Setting{DeviceKind::kCuda, Precision::kExact},
                                         Setting{DeviceKind::kCuda, Precision::kFast}),
                         [](const auto& setting) {
                           return device_name(setting.param.device) +
                                  (setting.param.precision == Precision::kFast ? "_fast"
                                                                               : "_exact");
                         });

}  // namespace
}  // namespace droidspeak
