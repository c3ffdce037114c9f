#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

class TranslateTest : public CudaTest {
 protected:
  struct Map {
    Floats down;
    Floats up;
    Floats bias;
    std::unique_ptr<WeightMatrix> down_matrix;
    std::unique_ptr<WeightMatrix> up_matrix;
    std::unique_ptr<DeviceFloats> bias_on_device;

    LowRankMap view() const { return {down_matrix.get(), up_matrix.get(), bias_on_device->f32()}; }

    // x + (x down^T) up^T + bias
    Floats apply(const Floats& x) const {
      const int64_t columns = std::ssize(bias);
      Floats out = cpu::multiply(cpu::multiply(x, down, columns), up, std::ssize(down) / columns);
      for (size_t i = 0; i < out.size(); ++i) out[i] += x[i] + bias[i % bias.size()];
      return out;
    }
  };

  Map make_map(int64_t columns, int64_t rank) {
    Map map{.down = random_values(DType::kF32, rank * columns, 0.1f),
            .up = random_values(DType::kF32, columns * rank, 0.1f),
            .bias = random_values(DType::kF32, columns),
            .down_matrix = {},
            .up_matrix = {},
            .bias_on_device = {}};
    map.down_matrix = pack(map.down, rank);
    map.up_matrix = pack(map.up, columns);
    map.bias_on_device = std::make_unique<DeviceFloats>(*device_, DType::kF32, map.bias, 1);
    return map;
  }

  std::unique_ptr<WeightMatrix> pack(const Floats& values, int64_t rows) {
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = std::ssize(values) / rows,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return fast_->pack({&part, 1}, Precision::kExact);
  }
};

TEST_F(TranslateTest, AddsALowRankMapToRows) {
  for (DType dtype : kActivationDtypes) {
    for (int64_t rows : {1, 33, 300}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows);
      const Map map = make_map(60, 5);
      const Floats in = random_values(dtype, rows * 60);
      DeviceFloats values = on_device(dtype, in, rows);
      ops(dtype).translate_rows(map.view(), values.view());
      expect_near(values.read(), map.apply(in), tolerance_of(dtype));
    }
  }
}

// With a RoPE table whose numbers carry an attention factor, too.
class TranslateScaledTest : public TranslateTest, public testing::WithParamInterface<float> {};

TEST_P(TranslateScaledTest, MapsUnrotatedKeysAndValuesOfARangeOnly) {
  const int32_t tokens = 700;
  const DeviceFloats table = f32(cpu::rope_table(tokens, 32, GetParam()));
  const RopeOptions rope{.num_heads = 2,
                         .num_kv_heads = 2,
                         .head_dim = 32,
                         .rotary_dim = 32,
                         .table = table.f32(),
                         .attention_factor = GetParam()};
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    SCOPED_TRACE(name_of(dtype));
    const KvLayout layout{.num_layers = 1, .num_kv_heads = 2, .head_dim = 32, .dtype = dtype};
    DeviceKv kv(*host_, *device_, layout, 12);
    const auto blocks = kv.take_blocks(tokens);
    const Floats raw = random_values(DType::kF32, tokens * 6 * 32);
    const SequenceSlice all{0, tokens, 0, blocks};
    exact_->rotate_and_store(on_device(DType::kF32, raw, tokens).view(), rope, {&all, 1},
                             kv.view());
    const Floats k_before = kv.k_rows(blocks, tokens);
    const Map map = make_map(128, 7);
    const SequenceSlice range{0, 600, 40, blocks};
    exact_->translate_kv(map.view(), rope, range, kv.view());

    Floats x;
    for (int32_t p = 40; p < 640; ++p)
      x.insert(x.end(), raw.begin() + p * 192 + 64, raw.begin() + p * 192 + 192);
    const Floats y = map.apply(x);
    // The mapped rows, rotated and stored afresh, are what the cache should hold.
    Floats fresh = raw;
    for (int32_t p = 40; p < 640; ++p)
      std::copy_n(y.begin() + (p - 40) * 128, 128, fresh.begin() + p * 192 + 64);
    DeviceKv expected(*host_, *device_, layout, 12);
    const auto other = expected.take_blocks(tokens);
    const SequenceSlice whole{0, tokens, 0, other};
    exact_->rotate_and_store(on_device(DType::kF32, fresh, tokens).view(), rope, {&whole, 1},
                             expected.view());
    const float tolerance = dtype == DType::kF32   ? 3e-6f
                            : dtype == DType::kF16 ? 2e-3f
                            : dtype == DType::kI8  ? 3e-2f
                                                   : 1e-2f;
    const auto part = [](const Floats& from) { return std::span(from).subspan(40 * 64, 600 * 64); };
    const Floats k_after = kv.k_rows(blocks, tokens);
    expect_near(part(k_after), part(expected.k_rows(other, tokens)), tolerance);
    expect_near(part(kv.v_rows(blocks, tokens)), part(expected.v_rows(other, tokens)), tolerance);
    EXPECT_TRUE(std::equal(k_before.begin(), k_before.begin() + 40 * 64, k_after.begin()));
    EXPECT_TRUE(
        std::equal(k_before.begin() + 640 * 64, k_before.end(), k_after.begin() + 640 * 64));
  }
}

TEST_P(TranslateScaledTest, AMapOfNothingLeavesKeysAsTheyAre) {
  const int32_t tokens = 100;
  const DeviceFloats table = f32(cpu::rope_table(tokens, 32, GetParam()));
  const RopeOptions rope{.num_heads = 2,
                         .num_kv_heads = 2,
                         .head_dim = 32,
                         .rotary_dim = 32,
                         .table = table.f32(),
                         .attention_factor = GetParam()};
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF32};
  DeviceKv kv(*host_, *device_, layout, 4);
  const auto blocks = kv.take_blocks(tokens);
  const SequenceSlice all{0, tokens, 0, blocks};
  const Floats raw = random_values(DType::kF32, tokens * 6 * 32);
  exact_->rotate_and_store(on_device(DType::kF32, raw, tokens).view(), rope, {&all, 1}, kv.view());
  const Floats k_before = kv.k_rows(blocks, tokens);
  const Floats v_before = kv.v_rows(blocks, tokens);
  const auto down = pack(random_values(DType::kF32, 3 * 128), 3);
  const auto up = pack(Floats(128 * 3), 128);
  const DeviceFloats bias = f32(Floats(128));
  exact_->translate_kv({down.get(), up.get(), bias.f32()}, rope, all, kv.view());
  expect_near(kv.k_rows(blocks, tokens), k_before, 2e-6f);
  expect_near(kv.v_rows(blocks, tokens), v_before, 2e-6f);
}

INSTANTIATE_TEST_SUITE_P(AttentionFactors, TranslateScaledTest, testing::Values(1.0f, 1.19f, 0.8f));

}  // namespace
}  // namespace droidspeak::cuda
