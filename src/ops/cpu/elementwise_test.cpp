#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ops/cpu/reference.h"
#include "tensor/half.h"

namespace droidspeak::cpu {
namespace {

class ElementwiseTest : public testing::Test {
 protected:
  std::mt19937 random_{3};
  std::unique_ptr<Device> device_ = make_cpu_device();
};

Floats normed(const Floats& in, const Floats& weight, int64_t columns, double epsilon) {
  Floats out(in.size());
  for (size_t row = 0; row < in.size(); row += static_cast<size_t>(columns)) {
    double squares = 0;
    for (size_t i = 0; i < weight.size(); ++i)
      squares += std::pow(static_cast<double>(in[row + i]), 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(columns) + epsilon);
    for (size_t i = 0; i < weight.size(); ++i) {
      out[row + i] = static_cast<float>(static_cast<double>(in[row + i]) * factor *
                                        static_cast<double>(weight[i]));
    }
  }
  return out;
}

TEST_F(ElementwiseTest, NormsRowsAlsoInPlace) {
  for (const NamedOps& named : all_ops(*device_, 3)) {
    SCOPED_TRACE(name_of(named.set));
    for (int64_t columns : {1, 7, 64, 100, 576}) {
      Floats in = random_floats(random_, 50 * columns);
      const Floats weight = random_floats(random_, columns);
      const Floats expected = normed(in, weight, columns, 1e-5);
      Floats out(in.size());
      named.ops->rms_norm(view_of(in, 50, columns), weight.data(), 1e-5f,
                          view_of(out, 50, columns));
      expect_near(out, expected, 1e-6f);
      named.ops->rms_norm(view_of(in, 50, columns), weight.data(), 1e-5f, view_of(in, 50, columns));
      EXPECT_EQ(in, out);
    }
  }
}

TEST_F(ElementwiseTest, ScalesAndCaps) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    for (int64_t columns : {1, 7, 64, 1000}) {
      for (double cap : {0.0, 3.0, 30.0}) {
        SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << columns << " cap " << cap);
        Floats rows = random_floats(random_, 9 * columns, 10);
        rows[0] = 1e6f;
        Floats expected;
        for (float value : rows) {
          const double scaled = 2.5 * static_cast<double>(value);
          expected.push_back(static_cast<float>(cap > 0 ? cap * std::tanh(scaled / cap) : scaled));
        }
        named.ops->scale(view_of(rows, 9, columns), 2.5f, static_cast<float>(cap));
        for (size_t i = 0; i < rows.size(); ++i)
          ASSERT_NEAR(rows[i], expected[i],
                      1e-6 * (cap + std::abs(static_cast<double>(expected[i]))));
      }
    }
  }
}

TEST_F(ElementwiseTest, AddsScaledRows) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    for (int64_t columns : {1, 7, 64, 1000}) {
      SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << columns);
      Floats in = random_floats(random_, 9 * columns);
      Floats out = random_floats(random_, 9 * columns);
      Floats expected;
      for (size_t i = 0; i < in.size(); ++i) expected.push_back(out[i] + 0.22f * in[i]);
      named.ops->add_scaled(view_of(in, 9, columns), 0.22f, view_of(out, 9, columns));
      expect_near(out, expected, 1e-6f);
    }
  }
}

TEST_F(ElementwiseTest, GatesWithEveryActivation) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    for (Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kClampedSwish}) {
      for (int64_t columns : {3, 16, 37, 1536}) {
        SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << columns);
        Floats in = random_floats(random_, 9 * 2 * columns, 4);
        in[0] = 1000;
        in[1] = -1000;
        in[static_cast<size_t>(columns)] = -30;
        in[static_cast<size_t>(columns) + 2] = 30;
        Floats expected;
        for (int64_t i = 0; i < 9; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            const auto x = static_cast<double>(in[static_cast<size_t>(i * 2 * columns + j)]);
            const auto up = static_cast<double>(in[static_cast<size_t>((i * 2 + 1) * columns + j)]);
            expected.push_back(static_cast<float>(gated(activation, x, up)));
          }
        }
        Floats out(expected.size());
        named.ops->gated_activation(view_of(in, 9, 2 * columns), activation,
                                    view_of(out, 9, columns));
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], expected[i], 1e-6 * (1 + std::abs(static_cast<double>(expected[i]))))
              << i;
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, FindsTheFirstLargestValue) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    for (int64_t columns : {1, 5, 16, 49153}) {
      Floats in = random_floats(random_, 3 * columns);
      const int64_t at = columns / 2;
      in[static_cast<size_t>(at)] = in[static_cast<size_t>(columns - 1)] = 100;
      in[static_cast<size_t>(2 * columns - 1)] = 100;
      in[static_cast<size_t>(2 * columns)] = 100;
      std::vector<int32_t> out(3);
      named.ops->argmax(view_of(in, 3, columns), out);
      EXPECT_EQ(out, (std::vector<int32_t>{static_cast<int32_t>(at),
                                           static_cast<int32_t>(columns - 1), 0}));
    }
  }
}

TEST_F(ElementwiseTest, SaysWhichRowsHaveAValueThatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    for (int64_t columns : {1, 5, 16, 1000}) {
      for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
        for (int64_t at : {int64_t{0}, columns / 2, columns - 1}) {
          Floats in(static_cast<size_t>(2 * columns), 1.0f);
          in[static_cast<size_t>(columns + at)] = bad;
          std::vector<int32_t> out(2);
          named.ops->argmax(view_of(in, 2, columns), out);
          EXPECT_EQ(out, (std::vector<int32_t>{0, -1})) << columns << " " << bad << " " << at;
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, CopiesBetweenDtypesLikeTheScalarConversions) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    for (DType dtype : {DType::kF16, DType::kBF16}) {
      Floats in = random_floats(random_, 11 * 77);
      std::vector<uint16_t> halves(in.size());
      const TensorView half_view{halves.data(), dtype, 11, 77, 77};
      named.ops->copy(view_of(in, 11, 77), half_view);
      Floats back(in.size());
      named.ops->copy(half_view, view_of(back, 11, 77));
      for (size_t i = 0; i < in.size(); ++i) {
        const bool is_f16 = dtype == DType::kF16;
        ASSERT_EQ(halves[i], is_f16 ? f16_from_float(in[i]) : bf16_from_float(in[i]));
        ASSERT_EQ(back[i], is_f16 ? float_from_f16(halves[i]) : float_from_bf16(halves[i]));
      }
    }
  }
}

}  // namespace
}  // namespace droidspeak::cpu
