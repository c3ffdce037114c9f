#include <gtest/gtest.h>

#include "ops/cpu/kv_fixture.h"

namespace droidspeak::cpu {
namespace {

class TranslateTest : public testing::Test {
 protected:
  std::unique_ptr<WeightMatrix> pack(Ops& ops, const Floats& values, int64_t rows) {
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = std::ssize(values) / rows,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return ops.pack({&part, 1}, Precision::kFast);
  }

  // x + (x down^T) up^T + bias
  static Floats mapped(const Floats& x, const Floats& down, const Floats& up, const Floats& bias) {
    const int64_t columns = std::ssize(bias);
    const int64_t rank = std::ssize(down) / columns;
    Floats out = multiply(multiply(x, down, columns), up, rank);
    for (size_t i = 0; i < out.size(); ++i) out[i] += x[i] + bias[i % bias.size()];
    return out;
  }

  std::mt19937 random_{17};
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(TranslateTest, AddsALowRankMapToRows) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    const Floats down = random_floats(random_, 5 * 60, 0.1f);
    const Floats up = random_floats(random_, 60 * 5, 0.1f);
    const Floats bias = random_floats(random_, 60);
    Floats rows = random_floats(random_, 33 * 60);
    const Floats expected = mapped(rows, down, up, bias);
    const auto down_matrix = pack(*named.ops, down, 5);
    const auto up_matrix = pack(*named.ops, up, 60);
    named.ops->translate_rows({down_matrix.get(), up_matrix.get(), bias.data()},
                              view_of(rows, 33, 60));
    expect_near(rows, expected, 2e-6f);
  }
}

// With a RoPE table whose numbers carry an attention factor, too.
class TranslateScaledTest : public TranslateTest, public testing::WithParamInterface<float> {};

TEST_P(TranslateScaledTest, MapsUnrotatedKeysAndValuesOfARangeOnly) {
  const int32_t tokens = 700;
  const float factor = GetParam();
  const Floats table = rope_table(tokens, 32, factor);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << name_of(dtype));
      Ops& ops = *named.ops;
      KvFixture kv(*device_, dtype, 2, 32, 12);
      const auto blocks = kv.take_blocks(tokens);
      Floats rows = random_floats(random_, tokens * 6 * 32);
      const Floats raw = rows;
      const RopeOptions rope{.num_heads = 2,
                             .num_kv_heads = 2,
                             .head_dim = 32,
                             .rotary_dim = 32,
                             .table = table.data(),
                             .attention_factor = factor};
      const SequenceSlice all{0, tokens, 0, blocks};
      ops.rotate_and_store(view_of(rows, tokens, 6 * 32), rope, {&all, 1}, kv.view());
      const Floats k_before = kv.k_rows(blocks, tokens);
      const Floats down = random_floats(random_, 7 * 128, 0.1f);
      const Floats up = random_floats(random_, 128 * 7, 0.1f);
      const Floats bias = random_floats(random_, 128);
      const auto down_matrix = pack(ops, down, 7);
      const auto up_matrix = pack(ops, up, 128);
      const SequenceSlice range{0, 600, 40, blocks};
      ops.translate_kv({down_matrix.get(), up_matrix.get(), bias.data()}, rope, range, kv.view());

      Floats x;
      for (int32_t p = 40; p < 640; ++p) {
        x.insert(x.end(), raw.begin() + p * 192 + 64, raw.begin() + p * 192 + 192);
      }
      const Floats y = mapped(x, down, up, bias);
      // The mapped rows, rotated and stored afresh, are what the cache should hold.
      Floats fresh = rows;
      for (int32_t p = 40; p < 640; ++p) {
        std::copy_n(y.begin() + (p - 40) * 128, 128, fresh.begin() + p * 192 + 64);
      }
      KvFixture expected(*device_, dtype, 2, 32, 12);
      const auto other = expected.take_blocks(tokens);
      const SequenceSlice whole{0, tokens, 0, other};
      ops.rotate_and_store(view_of(fresh, tokens, 6 * 32), rope, {&whole, 1}, expected.view());
      const float tolerance = dtype == DType::kF32 ? 3e-6f : dtype == DType::kF16 ? 2e-3f : 3e-2f;
      const auto part = [](const Floats& from) {
        return std::span(from).subspan(40 * 64, 600 * 64);
      };
      expect_near(part(kv.k_rows(blocks, tokens)), part(expected.k_rows(other, tokens)), tolerance);
      expect_near(part(kv.v_rows(blocks, tokens)), part(expected.v_rows(other, tokens)), tolerance);
      const Floats k_after = kv.k_rows(blocks, tokens);
      EXPECT_TRUE(std::equal(k_before.begin(), k_before.begin() + 40 * 64, k_after.begin()));
      EXPECT_TRUE(
          std::equal(k_before.begin() + 640 * 64, k_before.end(), k_after.begin() + 640 * 64));
    }
  }
}

TEST_P(TranslateScaledTest, AMapOfNothingLeavesKeysAsTheyAre) {
  const int32_t tokens = 100;
  const Floats table = rope_table(tokens, 32, GetParam());
  const RopeOptions rope{.num_heads = 2,
                         .num_kv_heads = 2,
                         .head_dim = 32,
                         .rotary_dim = 32,
                         .table = table.data(),
                         .attention_factor = GetParam()};
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    KvFixture kv(*device_, DType::kF32, 2, 32, 4);
    const auto blocks = kv.take_blocks(tokens);
    const SequenceSlice all{0, tokens, 0, blocks};
    Floats rows = random_floats(random_, tokens * 6 * 32);
    named.ops->rotate_and_store(view_of(rows, tokens, 6 * 32), rope, {&all, 1}, kv.view());
    const Floats k_before = kv.k_rows(blocks, tokens);
    const Floats v_before = kv.v_rows(blocks, tokens);
    const auto down = pack(*named.ops, random_floats(random_, 3 * 128), 3);
    const auto up = pack(*named.ops, Floats(128 * 3), 128);
    const Floats bias(128);
    named.ops->translate_kv({down.get(), up.get(), bias.data()}, rope, all, kv.view());
    expect_near(kv.k_rows(blocks, tokens), k_before, 1e-6f);
    expect_near(kv.v_rows(blocks, tokens), v_before, 1e-6f);
  }
}

INSTANTIATE_TEST_SUITE_P(AttentionFactors, TranslateScaledTest, testing::Values(1.0f, 1.19f, 0.8f));

}  // namespace
}  // namespace droidspeak::cpu
