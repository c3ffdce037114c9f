#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "device/cuda/cuda_handles.h"
#include "device/device.h"
#include "ops/cpu/reference.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/attention_plain.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak::cuda {
namespace {

using cpu::AttentionCase;
using cpu::Floats;

// A copy of host values in device memory.
class OnDevice {
 public:
  OnDevice(Device& device, const void* values, size_t bytes)
      : buffer_(device.allocate(bytes + 64)) {
    device.to_device(buffer_.data(), values, bytes);
    device.synchronize();
  }

  template <class T>
  OnDevice(Device& device, const std::vector<T>& values)
      : OnDevice(device, values.data(), values.size() * sizeof(T)) {}

  template <class T>
  T* as() const {
    return static_cast<T*>(buffer_.data());
  }

 private:
  Buffer buffer_;
};

std::vector<std::byte> stored(DType dtype, const Floats& values) {
  std::vector<std::byte> bytes(bytes_of(dtype, std::ssize(values)));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half =
        dtype == DType::kBF16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
    if (dtype == DType::kF32) std::memcpy(bytes.data() + 4 * i, &values[i], 4);
    if (dtype == DType::kF16 || dtype == DType::kBF16) std::memcpy(bytes.data() + 2 * i, &half, 2);
    if (dtype == DType::kI8) bytes[i] = static_cast<std::byte>(static_cast<int8_t>(values[i]));
  }
  return bytes;
}

Floats rounded(DType dtype, const Floats& values) {
  return cpu::dequantized(dtype, stored(dtype, values), std::ssize(values));
}

struct Sequence {
  int32_t first_position;
  int32_t num_rows;
  int32_t step = 1;  // between the positions of two rows

  std::vector<int32_t> positions() const {
    return cpu::positions_from(first_position, num_rows, step);
  }

  int32_t length() const { return positions().back() + 1; }
};

// Sequences with random K and V in shuffled blocks. A row between two slices belongs to nobody.
struct Batch {
  Batch(const AttentionCase& shape, DType activation, DType kv_dtype, std::vector<Sequence> list)
      : c(shape), row_dtype(activation), dtype(kv_dtype), sequences(std::move(list)) {
    columns = static_cast<int64_t>(c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
    for (const Sequence& s : sequences) {
      first_rows.push_back(num_rows);
      num_rows += s.num_rows + 1;
      num_blocks += (s.length() + kBlockTokens - 1) / kBlockTokens;
      positions.push_back(s.positions());
    }
    std::vector<int32_t> free(static_cast<size_t>(num_blocks));
    for (size_t i = 0; i < free.size(); ++i) free[i] = static_cast<int32_t>(i);
    std::shuffle(free.begin(), free.end(), random);
    for (const Sequence& s : sequences) {
      const int32_t count = (s.length() + kBlockTokens - 1) / kBlockTokens;
      blocks.emplace_back(free.end() - count, free.end());
      free.resize(free.size() - static_cast<size_t>(count));
    }
    qkv = rounded(row_dtype, cpu::random_floats(random, num_rows * columns));
    k = cached();
    v = cached();
    k_scale = scales();
    v_scale = scales();
  }

  // [num_blocks, num_kv_heads, kBlockTokens, head_dim]
  Floats cached() {
    Floats values = cpu::random_floats(
        random, int64_t{num_blocks} * c.num_kv_heads * kBlockTokens * c.head_dim);
    if (dtype == DType::kI8) {
      for (float& value : values) value = std::nearbyint(std::clamp(30 * value, -127.0f, 127.0f));
    }
    return rounded(dtype, values);
  }

  Floats scales() {
    if (dtype != DType::kI8) return {};
    Floats values(static_cast<size_t>(num_blocks * c.num_kv_heads * kBlockTokens));
    std::uniform_real_distribution<float> scale(0.01f, 0.04f);
    for (float& value : values) value = scale(random);
    return values;
  }

  Floats rows_of(const Floats& cache, const Floats& scale, size_t sequence) const {
    Floats out;
    const Sequence& s = sequences[sequence];
    for (int32_t p = 0; p < s.length(); ++p) {
      for (int32_t head = 0; head < c.num_kv_heads; ++head) {
        const int32_t block = blocks[sequence][static_cast<size_t>(p / kBlockTokens)];
        const int64_t row =
            (int64_t{block} * c.num_kv_heads + head) * kBlockTokens + p % kBlockTokens;
        for (int32_t e = 0; e < c.head_dim; ++e) {
          const float value = cache[static_cast<size_t>(row * c.head_dim + e)];
          out.push_back(scale.empty() ? value : value * scale[static_cast<size_t>(row)]);
        }
      }
    }
    return out;
  }

  // kPoison in the rows of nobody.
  Floats expected() const {
    const int64_t width = int64_t{c.num_heads} * c.head_dim;
    Floats out(static_cast<size_t>(num_rows * width), kPoison);
    for (size_t i = 0; i < sequences.size(); ++i) {
      const Floats keys = rows_of(k, k_scale, i);
      const Floats values = rows_of(v, v_scale, i);
      const auto num_threads =
          static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
      std::vector<std::jthread> threads;
      for (int32_t t = 0; t < std::min(num_threads, sequences[i].num_rows); ++t) {
        threads.emplace_back([&, t] {
          for (int32_t r = t; r < sequences[i].num_rows; r += num_threads) {
            const auto first = qkv.begin() + (first_rows[i] + r) * columns;
            const Floats row = cpu::attention(c, Floats(first, first + width), keys, values,
                                              {&positions[i][static_cast<size_t>(r)], 1});
            std::ranges::copy(row, out.begin() + (first_rows[i] + r) * width);
          }
        });
      }
    }
    return out;
  }

  // Not a number in the last block of every sequence behind its end.
  void spoil_behind_the_end() {
    for (size_t i = 0; i < sequences.size(); ++i) {
      const int32_t used = (sequences[i].length() - 1) % kBlockTokens + 1;
      for (int32_t head = 0; head < c.num_kv_heads; ++head) {
        const int64_t first = (int64_t{blocks[i].back()} * c.num_kv_heads + head) * kBlockTokens;
        for (Floats* cache : {&k, &v})
          std::fill(cache->begin() + (first + used) * c.head_dim,
                    cache->begin() + (first + kBlockTokens) * c.head_dim, NAN);
      }
    }
  }

  using Attend = std::function<void(
      TensorView, const AttentionOptions&, const BatchLayout&, const KvLayerView&, TensorView)>;

  // The sequences named in `some`, in that order.
  Floats run(Device& device, const Attend& attend, const std::vector<size_t>& some) const;

  Floats run(Device& device, Attention& attention, const std::vector<size_t>& some) const {
    return run(
        device, [&](auto&&... arguments) { attention.run(arguments...); }, some);
  }

  Floats run(Device& device, Attention& attention) const {
    std::vector<size_t> all(sequences.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    return run(device, attention, all);
  }

  static constexpr float kPoison = 0.5f;

  std::mt19937 random{13};
  AttentionCase c;
  DType row_dtype;
  DType dtype;
  std::vector<Sequence> sequences;
  int64_t columns = 0;
  int64_t num_rows = 0;
  int32_t num_blocks = 0;
  std::vector<int64_t> first_rows;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<std::vector<int32_t>> positions;
  Floats qkv;
  Floats k;
  Floats v;
  Floats k_scale;
  Floats v_scale;
};

Floats Batch::run(Device& device, const Attend& attend, const std::vector<size_t>& some) const {
  std::vector<SequenceSlice> slices;
  std::vector<int32_t> row;
  std::vector<int32_t> rows;
  std::vector<int32_t> length;
  std::vector<int32_t> row_position(static_cast<size_t>(num_rows));
  BatchLayout layout;
  for (size_t i : some) {
    const Sequence& s = sequences[i];
    slices.push_back({first_rows[i], s.num_rows, s.first_position, blocks[i]});
    if (s.step > 1) slices.back().positions = positions[i];
    std::ranges::copy(positions[i], row_position.begin() + first_rows[i]);
    row.push_back(static_cast<int32_t>(first_rows[i]));
    rows.push_back(s.num_rows);
    length.push_back(s.length());
    layout.max_blocks = std::max(layout.max_blocks, static_cast<int32_t>(blocks[i].size()));
    layout.max_rows = std::max(layout.max_rows, s.num_rows);
    layout.max_length = std::max(layout.max_length, length.back());
  }
  std::vector<int32_t> table(slices.size() * static_cast<size_t>(layout.max_blocks));
  for (size_t i = 0; i < slices.size(); ++i) {
    std::copy(slices[i].blocks.begin(), slices[i].blocks.end(),
              table.begin() + static_cast<int64_t>(i) * layout.max_blocks);
  }
  const OnDevice row_memory(device, row);
  const OnDevice rows_memory(device, rows);
  const OnDevice length_memory(device, length);
  const OnDevice position_memory(device, row_position);
  const OnDevice table_memory(device, table);
  layout.num_rows = static_cast<int32_t>(num_rows);
  layout.num_slices = static_cast<int32_t>(slices.size());
  layout.slice_row = row_memory.as<int32_t>();
  layout.slice_rows = rows_memory.as<int32_t>();
  layout.slice_length = length_memory.as<int32_t>();
  layout.row_position = position_memory.as<int32_t>();
  layout.blocks = table_memory.as<int32_t>();
  layout.on_host = slices;

  const int64_t width = int64_t{c.num_heads} * c.head_dim;
  Floats out(static_cast<size_t>(num_rows * width), kPoison);
  const OnDevice qkv_memory(device, stored(row_dtype, qkv));
  const OnDevice out_memory(device, stored(row_dtype, out));
  const OnDevice k_memory(device, stored(dtype, k));
  const OnDevice v_memory(device, stored(dtype, v));
  const OnDevice k_scale_memory(device, k_scale);
  const OnDevice v_scale_memory(device, v_scale);
  const bool is_int8 = dtype == DType::kI8;
  const KvLayerView kv{k_memory.as<void>(),
                       v_memory.as<void>(),
                       is_int8 ? k_scale_memory.as<float>() : nullptr,
                       is_int8 ? v_scale_memory.as<float>() : nullptr,
                       dtype,
                       c.num_kv_heads,
                       c.head_dim};
  const OnDevice sinks(device, c.sinks);
  AttentionOptions options = c.options();
  if (!c.sinks.empty()) options.sinks = sinks.as<float>();
  attend({qkv_memory.as<void>(), row_dtype, num_rows, columns, columns}, options, layout, kv,
         {out_memory.as<void>(), row_dtype, num_rows, width, width});
  device.synchronize();
  std::vector<std::byte> bytes(bytes_of(row_dtype, num_rows * width));
  check_cuda(cudaDeviceSynchronize(), "attention");
  device.to_host(bytes.data(), out_memory.as<void>(), bytes.size());
  return cpu::dequantized(row_dtype, bytes, num_rows * width);
}

class CudaAttentionTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_is_available()) GTEST_SKIP() << "no CUDA device";
    device_ = make_cuda_device();
    stream_ = std::make_unique<Stream>();
    attention_ = std::make_unique<Attention>(stream_->get());
  }

  void expect_reference(const Batch& batch, float tolerance) {
    SCOPED_TRACE(testing::Message()
                 << name_of(batch.row_dtype) << " rows, " << name_of(batch.dtype)
                 << " cache, heads " << batch.c.num_heads << "/" << batch.c.num_kv_heads << " dim "
                 << batch.c.head_dim << " window " << batch.c.sliding_window);
    cpu::expect_near(batch.run(*device_, *attention_), batch.expected(), tolerance);
  }

  // These sequences give alone the bits that they give among the others.
  void expect_rows_alone(const Batch& batch, const std::vector<size_t>& some) {
    const Floats together = batch.run(*device_, *attention_);
    const int64_t width = int64_t{batch.c.num_heads} * batch.c.head_dim;
    for (size_t i : some) {
      const Floats alone = batch.run(*device_, *attention_, {i});
      const auto begin = static_cast<std::ptrdiff_t>(batch.first_rows[i] * width);
      const auto end = begin + batch.sequences[i].num_rows * width;
      EXPECT_TRUE(std::equal(alone.begin() + begin, alone.begin() + end, together.begin() + begin))
          << "sequence " << i << ", " << name_of(batch.dtype) << ", window "
          << batch.c.sliding_window;
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Attention> attention_;
};

constexpr float kBf16Tolerance = 1.5e-2f;
constexpr float kF32Tolerance = 1e-5f;

const std::vector<Sequence> kMixed = {{0, 150}, {299, 1}, {0, 1},   {100, 37}, {128, 1},
                                      {63, 2},  {127, 1}, {30, 70}, {200, 5},  {0, 64}};

AttentionCase shaped(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  return {heads, kv_heads, head_dim, 1 / std::sqrt(static_cast<float>(head_dim))};
}

TEST_F(CudaAttentionTest, EqualsReferenceForEveryHeadShapeAndDtype) {
  for (const AttentionCase& c : {shaped(8, 2, 128), shaped(9, 3, 64), shaped(4, 4, 128),
                                 shaped(4, 2, 32), shaped(5, 1, 96), shaped(20, 1, 64)}) {
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kI8, DType::kF32})
      expect_reference(Batch(c, DType::kBF16, dtype, kMixed), kBf16Tolerance);
  }
}

TEST_F(CudaAttentionTest, KnowsOddHeadSizes) {
  for (const AttentionCase& c : {shaped(2, 1, 8), shaped(6, 2, 16), shaped(7, 7, 24),
                                 shaped(12, 2, 40), shaped(8, 1, 80), shaped(3, 1, 112)}) {
    for (DType dtype : {DType::kBF16, DType::kI8})
      expect_reference(Batch(c, DType::kBF16, dtype, kMixed), kBf16Tolerance);
  }
}

TEST_F(CudaAttentionTest, IsExactInF32) {
  for (const AttentionCase& c : {shaped(9, 3, 64), shaped(4, 2, 128), shaped(7, 7, 24)}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8})
      expect_reference(Batch(c, DType::kF32, dtype, kMixed), kF32Tolerance);
  }
}

TEST_F(CudaAttentionTest, SeesOnlyTheSlidingWindow) {
  const std::vector<Sequence> list = {{0, 290}, {299, 1}, {3, 1}, {150, 80}, {1000, 1}, {900, 20}};
  for (int32_t window : {1, 5, 64, 100, 200, 1500}) {
    expect_reference(Batch({4, 2, 64, 0.2f, window}, DType::kBF16, DType::kBF16, list),
                     kBf16Tolerance);
    expect_reference(Batch({4, 2, 32, 0.2f, window}, DType::kF32, DType::kF32, list),
                     kF32Tolerance);
  }
}

TEST_F(CudaAttentionTest, SplitsLongContexts) {
  for (DType dtype : {DType::kBF16, DType::kI8}) {
    expect_reference(
        Batch(shaped(8, 2, 128), DType::kBF16, dtype,
              {{4095, 1}, {5000, 4}, {255, 1}, {256, 1}, {1500, 40}, {0, 3}, {511, 8}}),
        kBf16Tolerance);
  }
}

TEST_F(CudaAttentionTest, ReadsManyRowsOverAnEarlierContext) {
  expect_reference(Batch(shaped(4, 1, 128), DType::kBF16, DType::kBF16,
                         {{0, 600}, {700, 300}, {64, 129}, {1, 65}, {0, 512}}),
                   kBf16Tolerance);
}

TEST_F(CudaAttentionTest, ReadsWholeChunks) {
  expect_reference(Batch(shaped(2, 1, 64), DType::kBF16, DType::kBF16, {{0, 4096}, {0, 70}}),
                   kBf16Tolerance);
}

TEST_F(CudaAttentionTest, GatheredRowsAttendUpToTheirOwnPositions) {
  const std::vector<Sequence> list = {{3, 50, 11}, {0, 600},     {70, 2, 200},
                                      {5, 400, 9}, {2, 70, 2},   {0, 1},
                                      {1, 5, 300}, {10, 65, 60}, {7, 1100, 3}};
  for (int32_t window : {0, 100}) {
    AttentionCase c = shaped(8, 2, 128);
    c.sliding_window = window;
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kI8})
      expect_reference(Batch(c, DType::kBF16, dtype, list), kBf16Tolerance);
    expect_reference(Batch(c, DType::kF32, DType::kF32, list), kF32Tolerance);
  }
}

TEST_F(CudaAttentionTest, GatheredRowsDoNotSeeWhatLiesBehindTheEnd) {
  for (int32_t heads : {2, 8, 14, 16}) {
    Batch batch(shaped(heads, 2, 128), DType::kBF16, DType::kBF16,
                {{0, 66, 2}, {7, 70, 3}, {60, 80, 13}, {1, 200, 2}, {0, 65, 2}});
    batch.spoil_behind_the_end();
    expect_reference(batch, kBf16Tolerance);
  }
}

// Of each row by itself: what many keys give is small beside what a few give.
void expect_rows_near(const Floats& actual, const Floats& expected, int64_t width, double most) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t first = 0; first < expected.size(); first += static_cast<size_t>(width)) {
    double difference = 0;
    double size = 0;
    for (size_t i = first; i < first + static_cast<size_t>(width); ++i) {
      difference += std::pow(double{actual[i]} - double{expected[i]}, 2);
      size += std::pow(double{expected[i]}, 2);
    }
    ASSERT_LE(std::sqrt(difference), most * std::sqrt(size))
        << "row " << first / static_cast<size_t>(width);
  }
}

// Rows and keys enough for every multiprocessor to have a share of several tiles.
TEST_F(CudaAttentionTest, ManyGatheredRowsEqualThePlainKernel) {
  Batch batch(shaped(32, 8, 128), DType::kBF16, DType::kBF16,
              {{3, 442, 18}, {7000, 300, 3}, {0, 2000, 2}});
  batch.spoil_behind_the_end();
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "sequence " << i);
    const Floats plain =
        batch.run(*device_,
                  [&](TensorView qkv, const AttentionOptions& options, const BatchLayout& layout,
                      const KvLayerView& kv, TensorView out) {
                    attend_plainly(qkv, options, layout, kv, out, stream_->get());
                  },
                  {i});
    expect_rows_near(batch.run(*device_, *attention_, {i}), plain, 32 * 128, 1e-2);
  }
}

TEST_F(CudaAttentionTest, KnowsHeadsOf256) {
  for (const AttentionCase& c : {shaped(8, 4, 256), shaped(4, 1, 168)}) {
    for (DType dtype : {DType::kBF16, DType::kI8})
      expect_reference(Batch(c, DType::kBF16, dtype, kMixed), kBf16Tolerance);
    expect_reference(Batch(c, DType::kF32, DType::kF32, kMixed), kF32Tolerance);
  }
}

TEST_F(CudaAttentionTest, CapsScores) {
  for (float cap : {0.5f, 4.0f, 50.0f}) {
    for (int32_t head_dim : {64, 128, 256}) {
      const AttentionCase c{6, 2, head_dim, 0.3f, 100, cap};
      for (DType dtype : {DType::kBF16, DType::kF16, DType::kI8})
        expect_reference(Batch(c, DType::kBF16, dtype, kMixed), kBf16Tolerance);
      expect_reference(Batch(c, DType::kF32, DType::kF32, kMixed), kF32Tolerance);
    }
  }
}

// On every path: f32, heads of other sizes, splits, long and gathered rows.
TEST_F(CudaAttentionTest, LooksAtSinksToo) {
  std::vector<Sequence> list = kMixed;
  list.insert(list.end(), {{1500, 1}, {2000, 3}, {700, 100}, {3, 90, 11}});
  for (int32_t window : {0, 100}) {
    for (int32_t head_dim : {64, 128, 24}) {
      const AttentionCase c{6, 2, head_dim, 0.3f, window, 0, {-200, 0.5f, 3, -1, 60, 1000}};
      for (DType dtype : {DType::kBF16, DType::kI8})
        expect_reference(Batch(c, DType::kBF16, dtype, list), kBf16Tolerance);
      expect_reference(Batch(c, DType::kF32, DType::kF32, list), kF32Tolerance);
    }
  }
}

TEST_F(CudaAttentionTest, SurvivesLargeScores) {
  expect_reference(Batch({3, 1, 64, 40.0f, 0}, DType::kBF16, DType::kBF16, {{0, 140}, {700, 1}}),
                   kBf16Tolerance);
}

TEST_F(CudaAttentionTest, RowDoesNotDependOnTheBatch) {
  const Batch batch(shaped(8, 2, 128), DType::kBF16, DType::kBF16,
                    {{0, 150}, {3000, 1}, {30, 1}, {2000, 2}, {1800, 33}, {100, 90}, {700, 1}});
  expect_rows_alone(batch, {0, 1, 2, 3, 4, 5, 6});
}

// So many that a block goes through several splits of a sequence, which alone has one for each.
TEST_F(CudaAttentionTest, ManySequencesGoThroughTheirSplits) {
  std::vector<Sequence> list = {{127, 1}, {128, 1}, {255, 1}, {256, 2}, {1100, 1}};
  for (int32_t i = 0; i < 60; ++i) list.push_back({37 * i % 300, 1 + i % 2});
  for (const auto& [dtype, window] :
       {std::pair{DType::kBF16, 0}, std::pair{DType::kF16, 200}, std::pair{DType::kI8, 0}}) {
    AttentionCase c = shaped(16, 8, 32);
    c.sliding_window = window;
    const Batch batch(c, DType::kBF16, dtype, list);
    expect_reference(batch, kBf16Tolerance);
    expect_rows_alone(batch, {0, 1, 2, 3, 4, 40});
  }
}

// Sequences enough for attention to go through all of them as one stream, some of which share
// blocks, and not a number behind every end.
Batch many_sequences(const AttentionCase& c, DType dtype) {
  const int32_t most_rows = std::min(3, 16 * c.num_kv_heads / c.num_heads);
  std::vector<Sequence> list = {{0, 1},    {63, 1},   {64, 1},   {127, 1},  {128, 1},
                                {129, 1},  {255, 1},  {256, 1},  {1100, 1}, {4095, 1},
                                {4096, 1}, {5000, 1}, {700, 100}};
  for (int32_t i = 0; i < 36; ++i) list.push_back({137 * i % 600, 1 + i % most_rows});
  Batch batch(c, DType::kBF16, dtype, list);
  for (size_t i = 1; i < list.size(); ++i) {
    const size_t shared = std::min(batch.blocks[i - 1].size(), batch.blocks[i].size()) - 1;
    std::copy_n(batch.blocks[i - 1].begin(), shared, batch.blocks[i].begin());
  }
  batch.spoil_behind_the_end();
  return batch;
}

TEST_F(CudaAttentionTest, AStreamOfManySequencesEqualsThePlainKernel) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (AttentionCase c : {shaped(8, 2, 128), shaped(16, 1, 128), shaped(8, 8, 64),
                            AttentionCase{6, 2, 64, 0.3f, 200, 4.0f, {-200, 0.5f, 3, -1, 60, 1000}},
                            AttentionCase{8, 2, 128, 0.1f, 1000}}) {
      SCOPED_TRACE(testing::Message()
                   << name_of(dtype) << " heads " << c.num_heads << "/" << c.num_kv_heads << " dim "
                   << c.head_dim << " window " << c.sliding_window);
      const Batch batch = many_sequences(c, dtype);
      std::vector<size_t> all(batch.sequences.size());
      for (size_t i = 0; i < all.size(); ++i) all[i] = i;
      const Floats plain = batch.run(
          *device_,
          [&](TensorView qkv, const AttentionOptions& options, const BatchLayout& layout,
              const KvLayerView& kv,
              TensorView out) { attend_plainly(qkv, options, layout, kv, out, stream_->get()); },
          all);
      const Floats first = batch.run(*device_, *attention_);
      expect_rows_near(first, plain, int64_t{c.num_heads} * c.head_dim, 1e-2);
      EXPECT_EQ(batch.run(*device_, *attention_), first) << "again, with what the first run left";
      expect_rows_alone(batch, {0, 3, 5, 9, 11, 13, 40});
    }
  }
}

TEST_F(CudaAttentionTest, AStreamOfManySequencesEqualsTheReference) {
  Batch batch(shaped(4, 2, 128), DType::kBF16, DType::kBF16, [] {
    std::vector<Sequence> list;
    for (int32_t i = 0; i < 80; ++i) list.push_back({61 * i % 1000, 1 + i % 3});
    return list;
  }());
  batch.spoil_behind_the_end();
  expect_reference(batch, kBf16Tolerance);
}

}  // namespace
}  // namespace droidspeak::cuda
