#include <cmath>

#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

struct RopeCase {
  DType activations;
  DType stored;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;
  bool has_norms;
  float attention_factor = 1;
};

class RopeTest : public CudaTest, public testing::WithParamInterface<RopeCase> {
 protected:
  static float stored_tolerance(const RopeCase& c) {
    if (c.stored == DType::kF32) return 3e-6f;
    return c.stored == DType::kF16 ? 5e-4f : 5e-3f;
  }
};

TEST_P(RopeTest, RotatesQueriesAndStoresKeysAndValues) {
  const RopeCase c = GetParam();
  const int32_t heads = c.num_heads + 2 * c.num_kv_heads;
  const int64_t columns = static_cast<int64_t>(heads) * c.head_dim;
  const Floats table = cpu::rope_table(300, c.rotary_dim, c.attention_factor);
  const Floats q_norm = random_values(DType::kF32, c.head_dim);
  const Floats k_norm = random_values(DType::kF32, c.head_dim);
  const DeviceFloats table_on_device = f32(table);
  const DeviceFloats q_norm_on_device = f32(q_norm);
  const DeviceFloats k_norm_on_device = f32(k_norm);
  DeviceKv kv(
      *host_, *device_,
      {.num_layers = 1, .num_kv_heads = c.num_kv_heads, .head_dim = c.head_dim, .dtype = c.stored},
      12);
  const auto blocks_a = kv.take_blocks(300);
  const auto blocks_b = kv.take_blocks(60);
  const SequenceSlice slices[] = {
      {0, 130, 170, blocks_a}, {130, 1, 0, blocks_b}, {131, 20, 40, blocks_b}};
  const Floats in = random_values(c.activations, 151 * columns);
  const Floats expected = cpu::rotated(in,
                                       {.num_heads = c.num_heads,
                                        .num_kv_heads = c.num_kv_heads,
                                        .head_dim = c.head_dim,
                                        .rotary_dim = c.rotary_dim,
                                        .table = table,
                                        .q_norm = c.has_norms ? q_norm : Floats(),
                                        .k_norm = c.has_norms ? k_norm : Floats()},
                                       slices);
  DeviceFloats qkv = on_device(c.activations, in, 151);
  ops(c.activations)
      .rotate_and_store(qkv.view(),
                        {.num_heads = c.num_heads,
                         .num_kv_heads = c.num_kv_heads,
                         .head_dim = c.head_dim,
                         .rotary_dim = c.rotary_dim,
                         .table = table_on_device.f32(),
                         .attention_factor = c.attention_factor,
                         .q_norm = c.has_norms ? q_norm_on_device.f32() : nullptr,
                         .k_norm = c.has_norms ? k_norm_on_device.f32() : nullptr},
                        slices, kv.view());
  const Floats actual = qkv.read();
  const int64_t q_columns = static_cast<int64_t>(c.num_heads) * c.head_dim;
  const int64_t kv_columns = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  const auto span = [](const Floats& from, int64_t first, int64_t size) {
    return std::span(from).subspan(static_cast<size_t>(first), static_cast<size_t>(size));
  };
  for (const SequenceSlice& slice : slices) {
    const Floats k = kv.k_rows(slice.blocks, slice.first_position + slice.num_rows);
    const Floats v = kv.v_rows(slice.blocks, slice.first_position + slice.num_rows);
    for (int32_t i = 0; i < slice.num_rows; ++i) {
      const auto row = (slice.first_row + i) * columns;
      const auto at = (slice.first_position + i) * kv_columns;
      expect_near(span(actual, row, q_columns), span(expected, row, q_columns),
                  tolerance_of(c.activations));
      expect_near(span(k, at, kv_columns), span(expected, row + q_columns, kv_columns),
                  stored_tolerance(c));
      expect_near(span(v, at, kv_columns), span(expected, row + q_columns + kv_columns, kv_columns),
                  stored_tolerance(c));
    }
  }
}

// Where rotated keys are read back, neither the rotation nor the attention factor is left.
TEST_F(CudaTest, KeysReadBackAsTheyWereBeforeTheRotation) {
  constexpr int32_t kTokens = 100;
  for (float factor : {1.0f, 1.19f, 0.8f}) {
    SCOPED_TRACE(factor);
    const DeviceFloats table = f32(cpu::rope_table(kTokens, 32, factor));
    const RopeOptions options{.num_heads = 1,
                              .num_kv_heads = 1,
                              .head_dim = 64,
                              .rotary_dim = 32,
                              .table = table.f32(),
                              .attention_factor = factor};
    DeviceKv kv(*host_, *device_,
                {.num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kF32}, 4);
    const auto blocks = kv.take_blocks(kTokens);
    const SequenceSlice all{0, kTokens, 0, blocks};
    const Floats raw = random_values(DType::kF32, kTokens * 192);
    exact_->rotate_and_store(on_device(DType::kF32, raw, kTokens).view(), options, {&all, 1},
                             kv.view());
    DeviceFloats rows = on_device(DType::kF32, Floats(kTokens * 128), kTokens);
    exact_->read_kv(options, all, kv.view(), rows.view());
    const Floats read = rows.read();
    for (size_t i = 0; i < kTokens; ++i)
      expect_near(std::span(read).subspan(i * 128, 128), std::span(raw).subspan(i * 192 + 64, 128),
                  3e-6f);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    RopeTest,
    testing::Values(RopeCase{DType::kF32, DType::kF32, 9, 3, 64, 64, false},
                    RopeCase{DType::kF32, DType::kF16, 4, 2, 128, 128, true},
                    RopeCase{DType::kF32, DType::kBF16, 2, 2, 80, 32, false},
                    RopeCase{DType::kF32, DType::kI8, 4, 1, 96, 96, true},
                    RopeCase{DType::kBF16, DType::kBF16, 32, 8, 128, 128, false},
                    RopeCase{DType::kBF16, DType::kBF16, 4, 2, 128, 128, true},
                    RopeCase{DType::kBF16, DType::kF16, 2, 1, 8, 8, false},
                    RopeCase{DType::kBF16, DType::kF32, 3, 3, 256, 128, false},
                    RopeCase{DType::kBF16, DType::kI8, 2, 1, 24, 12, false},
                    RopeCase{DType::kF32, DType::kF32, 4, 2, 96, 96, false, 1.19f},
                    RopeCase{DType::kBF16, DType::kBF16, 8, 2, 128, 128, false, 1.19f}));

}  // namespace
}  // namespace droidspeak::cuda
