#include <cmath>

#include <gtest/gtest.h>

#include "ops/cpu/kv_fixture.h"

namespace droidspeak::cpu {
namespace {

struct RopeCase {
  DType dtype;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;
  bool has_norms;
  float attention_factor = 1;
};

class RopeTest : public testing::TestWithParam<RopeCase> {
 protected:
  std::mt19937 random_{9};
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_P(RopeTest, RotatesQueriesAndStoresKeysAndValues) {
  const RopeCase c = GetParam();
  const int32_t heads = c.num_heads + 2 * c.num_kv_heads;
  const int64_t columns = static_cast<int64_t>(heads) * c.head_dim;
  const Floats table = rope_table(300, c.rotary_dim, c.attention_factor);
  const Floats q_norm = random_floats(random_, c.head_dim);
  const Floats k_norm = random_floats(random_, c.head_dim);
  const std::vector<int32_t> gathered = positions_from(1, 9, 21);
  for (const NamedOps& named : all_ops(*device_, 3)) {
    SCOPED_TRACE(name_of(named.set));
    KvFixture kv(*device_, c.dtype, c.num_kv_heads, c.head_dim, 12);
    const auto blocks_a = kv.take_blocks(300);
    const auto blocks_b = kv.take_blocks(60);
    const SequenceSlice slices[] = {{0, 130, 170, blocks_a},
                                    {130, 1, 0, blocks_b},
                                    {131, 20, 40, blocks_b},
                                    {151, 9, 0, blocks_a, gathered}};
    Floats qkv = random_floats(random_, 160 * columns);
    const Floats expected = rotated(qkv,
                                    {.num_heads = c.num_heads,
                                     .num_kv_heads = c.num_kv_heads,
                                     .head_dim = c.head_dim,
                                     .rotary_dim = c.rotary_dim,
                                     .table = table,
                                     .q_norm = c.has_norms ? q_norm : Floats(),
                                     .k_norm = c.has_norms ? k_norm : Floats()},
                                    slices);
    named.ops->rotate_and_store(view_of(qkv, 160, columns),
                                {.num_heads = c.num_heads,
                                 .num_kv_heads = c.num_kv_heads,
                                 .head_dim = c.head_dim,
                                 .rotary_dim = c.rotary_dim,
                                 .table = table.data(),
                                 .attention_factor = c.attention_factor,
                                 .q_norm = c.has_norms ? q_norm.data() : nullptr,
                                 .k_norm = c.has_norms ? k_norm.data() : nullptr},
                                slices, kv.view());
    const int64_t q_columns = static_cast<int64_t>(c.num_heads) * c.head_dim;
    const int64_t kv_columns = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
    const float tolerance = c.dtype == DType::kF32 ? 1e-6f : c.dtype == DType::kF16 ? 5e-4f : 5e-3f;
    for (const SequenceSlice& slice : slices) {
      const Floats k = kv.k_rows(slice.blocks, slice.length());
      const Floats v = kv.v_rows(slice.blocks, slice.length());
      for (int32_t i = 0; i < slice.num_rows; ++i) {
        const auto row = (slice.first_row + i) * columns;
        const auto at = slice.position(i) * kv_columns;
        const auto span = [](const Floats& from, int64_t first, int64_t size) {
          return std::span(from).subspan(static_cast<size_t>(first), static_cast<size_t>(size));
        };
        expect_near(span(qkv, row, q_columns), span(expected, row, q_columns), 1e-6f);
        expect_near(span(k, at, kv_columns), span(expected, row + q_columns, kv_columns),
                    tolerance);
        expect_near(span(v, at, kv_columns),
                    span(expected, row + q_columns + kv_columns, kv_columns), tolerance);
      }
    }
  }
}

// Where rotated keys are read back, neither the rotation nor the attention factor is left.
TEST_P(RopeTest, KeysReadBackAsTheyWereBeforeTheRotation) {
  const RopeCase c = GetParam();
  const int64_t kv_columns = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  const int64_t q_columns = static_cast<int64_t>(c.num_heads) * c.head_dim;
  const int64_t columns = q_columns + 2 * kv_columns;
  const Floats table = rope_table(200, c.rotary_dim, c.attention_factor);
  const RopeOptions options{.num_heads = c.num_heads,
                            .num_kv_heads = c.num_kv_heads,
                            .head_dim = c.head_dim,
                            .rotary_dim = c.rotary_dim,
                            .table = table.data(),
                            .attention_factor = c.attention_factor};
  const float tolerance = c.dtype == DType::kF32 ? 2e-6f : c.dtype == DType::kF16 ? 1e-3f : 2e-2f;
  for (const NamedOps& named : all_ops(*device_, 3)) {
    SCOPED_TRACE(name_of(named.set));
    KvFixture kv(*device_, c.dtype, c.num_kv_heads, c.head_dim, 12);
    const auto blocks = kv.take_blocks(200);
    const SequenceSlice all{0, 200, 0, blocks};
    const Floats raw = random_floats(random_, 200 * columns);
    Floats qkv = raw;
    named.ops->rotate_and_store(view_of(qkv, 200, columns), options, {&all, 1}, kv.view());
    Floats rows(static_cast<size_t>(200 * 2 * kv_columns));
    named.ops->read_kv(options, all, kv.view(), view_of(rows, 200, 2 * kv_columns));
    for (int64_t i = 0; i < 200; ++i) {
      expect_near(std::span(rows).subspan(static_cast<size_t>(i * 2 * kv_columns),
                                          static_cast<size_t>(2 * kv_columns)),
                  std::span(raw).subspan(static_cast<size_t>(i * columns + q_columns),
                                         static_cast<size_t>(2 * kv_columns)),
                  tolerance);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         RopeTest,
                         testing::Values(RopeCase{DType::kF32, 9, 3, 64, 64, false},
                                         RopeCase{DType::kF16, 4, 2, 128, 128, true},
                                         RopeCase{DType::kBF16, 2, 2, 80, 32, false},
                                         RopeCase{DType::kI8, 4, 1, 96, 96, true},
                                         RopeCase{DType::kF16, 2, 1, 8, 8, false},
                                         RopeCase{DType::kI8, 2, 1, 24, 12, false},
                                         RopeCase{DType::kF32, 4, 2, 96, 96, false, 1.19f},
                                         RopeCase{DType::kF32, 2, 2, 80, 20, true, 0.8f}));

}  // namespace
}  // namespace droidspeak::cpu
