#include <gtest/gtest.h>

#include "ops/cpu/divergence_reference.h"
#include "ops/cpu/kv_fixture.h"

namespace droidspeak::cpu {
namespace {

class DivergenceTest : public testing::Test {
 protected:
  std::mt19937 random_{23};
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(DivergenceTest, EqualsTheSumOverTheVocabulary) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(*device_, 2);
  for (int64_t columns : {1, 7, 256, 5003}) {
    Floats reference = random_floats(random_, 3 * columns, 4);
    Floats logits = random_floats(random_, 6 * columns, 4);
    std::vector<RowDivergence> out(6);
    ops->divergence(view_of(reference, 3, columns), view_of(logits, 6, columns), out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      const auto width = static_cast<size_t>(columns);
      const auto expected = std::span(reference).subspan(i % 3 * width, width);
      const auto row = std::span(logits).subspan(i * width, width);
      const double kl = kl_of(expected, row);
      EXPECT_NEAR(out[i].kl, kl, 1e-5 * kl + 1e-6);
      EXPECT_EQ(out[i].reference_choice, largest_of(expected));
      EXPECT_EQ(out[i].choice, largest_of(row));
    }
  }
}

TEST_F(DivergenceTest, EqualRowsDivergeByNothingAndTinyChangesBySomething) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(*device_, 1);
  Floats reference = random_floats(random_, 4096, 5);
  Floats same = reference;
  RowDivergence out;
  ops->divergence(view_of(reference, 1, 4096), view_of(same, 1, 4096), &out);
  EXPECT_EQ(out.kl, 0);
  EXPECT_EQ(out.choice, out.reference_choice);
  for (float& value : same) value += random_floats(random_, 1, 1e-2f).front();
  ops->divergence(view_of(reference, 1, 4096), view_of(same, 1, 4096), &out);
  EXPECT_NEAR(out.kl, kl_of(reference, same), 2e-7);
  EXPECT_GT(out.kl, 1e-6);
}

TEST_F(DivergenceTest, FirstOfEqualChoicesCounts) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(*device_, 1);
  Floats reference = {0, 3, 3, 1};
  Floats logits = {2, 0, 2, 2};
  RowDivergence out;
  ops->divergence(view_of(reference, 1, 4), view_of(logits, 1, 4), &out);
  EXPECT_EQ(out.reference_choice, 1);
  EXPECT_EQ(out.choice, 0);
}

TEST_F(DivergenceTest, NormalEquationsAddUpOverCalls) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    for (int64_t n : {5, 64, 70}) {
      SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << n);
      Floats x = random_floats(random_, 40 * n);
      Floats y = random_floats(random_, 40 * n);
      Floats sums(static_cast<size_t>((n + 1) * 2 * n));
      for (int64_t begin : {0, 13}) {
        const int64_t end = begin == 0 ? 13 : 40;
        named.ops->add_normal_equations(view_of(x, 40, n).row_range(begin, end),
                                        view_of(y, 40, n).row_range(begin, end),
                                        view_of(sums, n + 1, 2 * n));
      }
      expect_near(sums, normal_equations(x, y, n), 2e-6f);
    }
  }
}

TEST_F(DivergenceTest, ReadsKeysBeforeRopeAndValues) {
  const int32_t tokens = 150;
  const Floats table = rope_table(tokens, 32);
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    KvFixture kv(*device_, DType::kF32, 2, 32, 4);
    const auto blocks = kv.take_blocks(tokens);
    Floats rows = random_floats(random_, tokens * 6 * 32);
    const Floats raw = rows;
    const RopeOptions rope{.num_heads = 2,
                           .num_kv_heads = 2,
                           .head_dim = 32,
                           .rotary_dim = 32,
                           .table = table.data(),
                           .q_norm = nullptr,
                           .k_norm = nullptr};
    const SequenceSlice all{0, tokens, 0, blocks};
    named.ops->rotate_and_store(view_of(rows, tokens, 6 * 32), rope, {&all, 1}, kv.view());
    Floats read(100 * 4 * 32);
    named.ops->read_kv(rope, {0, 100, 50, blocks}, kv.view(), view_of(read, 100, 4 * 32));
    Floats expected;
    for (int64_t t = 50; t < tokens; ++t)
      expected.insert(expected.end(), raw.begin() + t * 192 + 64, raw.begin() + (t + 1) * 192);
    expect_near(read, expected, 2e-6f);
  }
}

}  // namespace
}  // namespace droidspeak::cpu
