#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

class AttentionMassTest : public CudaTest {};

TEST_F(AttentionMassTest, IsTheSumOfTheLastRowsWeights) {
  const cpu::AttentionCase shapes[] = {{9, 3, 64, 0.125f},
                                       {8, 2, 128, 0.1f},
                                       {7, 7, 24, 0.3f},
                                       {9, 3, 64, 0.2f, 70},
                                       {9, 3, 64, 0.5f, 70, 3.0f},
                                       {4, 2, 256, 0.1f},
                                       {4, 2, 64, 0.2f, 0, 0, {-100, 0.5f, 4, 2}}};
  constexpr int32_t kTokens = 300;
  const std::vector<int32_t> gathered = cpu::positions_from(3, 20, 11);
  for (const cpu::AttentionCase& c : shapes) {
    for (DType rows : kActivationDtypes) {
      for (DType stored : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
        DeviceKv kv(*host_, *device_,
                    {.num_layers = 1,
                     .num_kv_heads = c.num_kv_heads,
                     .head_dim = c.head_dim,
                     .dtype = stored},
                    12);
        const auto blocks = kv.take_blocks(kTokens);
        const int64_t columns = int64_t{c.num_heads + 2 * c.num_kv_heads} * c.head_dim;
        const DeviceFloats table = f32(cpu::identity_table(kTokens, 2));
        const Floats values = random_values(rows, kTokens * columns);
        const DeviceFloats qkv = on_device(rows, values, kTokens);
        const SequenceSlice all{0, kTokens, 0, blocks};
        ops(rows).rotate_and_store(qkv.view(),
                                   {.num_heads = c.num_heads,
                                    .num_kv_heads = c.num_kv_heads,
                                    .head_dim = c.head_dim,
                                    .rotary_dim = 2,
                                    .table = table.f32()},
                                   {&all, 1}, kv.view());
        const SequenceSlice slices[] = {{0, 3, 0, blocks},
                                        {3, 60, 100, blocks},
                                        {70, 1, 299, blocks},
                                        {80, 20, 0, blocks, gathered}};
        for (size_t i = 0; i < std::size(slices); ++i) {
          SCOPED_TRACE(testing::Message() << name_of(rows) << " rows, " << name_of(stored)
                                          << " cache, dim " << c.head_dim << " slice " << i);
          const SequenceSlice& slice = slices[i];
          const auto row = values.begin() + (slice.first_row + slice.num_rows - 1) * columns;
          Floats expected =
              cpu::attention_mass(c, Floats(row, row + int64_t{c.num_heads} * c.head_dim),
                                  kv.k_rows(blocks, slice.length()), slice.length() - 1);
          expected.resize(static_cast<size_t>(slice.length() * 2 / 3));
          const DeviceFloats sums = f32(Floats(expected.size(), 0.25f));
          for (float& value : expected) value += 0.25f;
          AttentionOptions options = c.options();
          const DeviceFloats sinks = f32(c.sinks.empty() ? Floats(1) : c.sinks);
          if (!c.sinks.empty()) options.sinks = sinks.f32();
          ops(rows).add_attention_mass(qkv.view(), options, slices, i, kv.view(), sums.view());
          cpu::expect_near(sums.read(), expected, 1e-5f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
