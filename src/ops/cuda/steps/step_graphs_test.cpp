#include "ops/cuda/steps/step_graphs.h"

#include <limits>
#include <set>

#include "base/error.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {
namespace {

class StepGraphsTest : public CudaTest {
 protected:
  CudaDevice& cuda() { return static_cast<CudaDevice&>(*device_); }

  static OpTrace trace_of(uint64_t number) {
    OpTrace trace;
    trace.add(number);
    return trace;
  }
};

TEST_F(StepGraphsTest, QueuesRecordsThenRuns) {
  StepGraphs graphs(cuda());
  Tensor counter(*device_, DType::kF32, 1, 4);
  int num_queued = 0;
  auto queue = [&](cudaStream_t stream, const StepGraphs::Inputs&) {
    ++num_queued;
    check_cuda(cudaMemsetAsync(counter.view().data, num_queued, 4, stream), "set");
  };
  auto value = [&] {
    int32_t bits = 0;
    device_->to_host(&bits, counter.view().data, sizeof bits);
    return bits & 0xff;
  };
  graphs.run(trace_of(1), queue);
  EXPECT_EQ(num_queued, 1);
  EXPECT_EQ(value(), 1);
  graphs.run(trace_of(1), queue);
  EXPECT_EQ(num_queued, 2);
  EXPECT_EQ(value(), 2);
  graphs.run(trace_of(2), queue);
  EXPECT_EQ(value(), 3);
  for (int i = 0; i < 3; ++i) graphs.run(trace_of(1), queue);
  EXPECT_EQ(num_queued, 3);
  EXPECT_EQ(value(), 2);
  EXPECT_EQ(graphs.num_recorded(), 1u);
}

TEST_F(StepGraphsTest, RunsWithoutAGraphWhatCannotBeRecorded) {
  StepGraphs graphs(cuda());
  Tensor counter(*device_, DType::kF32, 1, 4);
  int num_done = 0;
  auto queue = [&](cudaStream_t stream, const StepGraphs::Inputs&) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &status), "ask for recordings");
    if (status != cudaStreamCaptureStatusNone)
      throw Failure(ErrorCode::kUnavailable, "this cannot be recorded");
    check_cuda(cudaMemsetAsync(counter.view().data, 1, 4, stream), "set");
    ++num_done;
  };
  for (int i = 0; i < 4; ++i) graphs.run(trace_of(1), queue);
  EXPECT_EQ(num_done, 4);
  EXPECT_EQ(graphs.num_recorded(), 0u);
  device_->synchronize();
}

TEST_F(StepGraphsTest, KeepsABoundedNumber) {
  StepGraphs graphs(cuda());
  Tensor counter(*device_, DType::kF32, 1, 4);
  auto queue = [&](cudaStream_t stream, const StepGraphs::Inputs&) {
    check_cuda(cudaMemsetAsync(counter.view().data, 1, 4, stream), "set");
  };
  for (uint64_t i = 0; i < 100; ++i) {
    for (int times = 0; times < 3; ++times) graphs.run(trace_of(i), queue);
  }
  EXPECT_LE(graphs.num_recorded(), 64u);
  EXPECT_GE(graphs.num_recorded(), 16u);
}

TEST(StepRows, AreFewNumbersThatHoldEveryBatch) {
  std::set<int64_t> numbers;
  for (int64_t rows = 1; rows <= 256; ++rows) {
    const int64_t padded = rows_of_step(rows);
    EXPECT_GE(padded, rows);
    EXPECT_LE(padded, rows + std::max<int64_t>(3, rows / 2)) << rows;
    EXPECT_EQ(rows_of_step(padded), padded);
    numbers.insert(padded);
  }
  EXPECT_LE(numbers.size(), 24u);
}

TEST(OpTrace, IsTheSameForOtherSlicesOfAsManyRows) {
  const std::vector<int32_t> blocks(16);
  auto trace = [&](int32_t num_slices, int32_t position, int64_t rows) {
    std::vector<SequenceSlice> slices;
    for (int32_t i = 0; i < num_slices; ++i) slices.push_back({i, 1, position + i, blocks});
    OpTrace made;
    made.add_slices(slices, rows);
    EXPECT_TRUE(made.is_repeatable());
    return made;
  };
  EXPECT_EQ(trace(5, 10, 8), trace(7, 200, 8));
  EXPECT_FALSE(trace(8, 10, 8) == trace(8, 10, 12));
  EXPECT_FALSE(trace(8, 10, 8) == trace(8, 400, 8));
}

// A small model: one layer of everything a decode step has, run several times over.
class DecodeStepTest : public StepGraphsTest {
 protected:
  static constexpr int32_t kHeads = 4;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kHeadDim = 64;
  static constexpr int64_t kDim = 192;
  static constexpr int64_t kFfn = 320;
  static constexpr int32_t kMaxPositions = 2048;

  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    FastPaths paths;
    paths.timed_choice = false;  // all choose the same algorithms
    joined_ = make_ops(cuda(), Precision::kFast, paths);
    paths.joined = false;
    with_ = make_ops(cuda(), Precision::kFast, paths);
    paths.graphs = false;
    without_ = make_ops(cuda(), Precision::kFast, paths);
    qkv_ = matrix((kHeads + 2 * kKvHeads) * kHeadDim, kDim);
    output_ = matrix(kDim, kHeads * kHeadDim);
    gate_up_ = matrix(2 * kFfn, kDim);
    down_ = matrix(kDim, kFfn);
    norm_ = std::make_unique<DeviceFloats>(f32(random_values(DType::kF32, kDim)));
    rope_ = std::make_unique<DeviceFloats>(
        f32(random_values(DType::kF32, int64_t{kMaxPositions} * kHeadDim)));
    bias_ = std::make_unique<DeviceFloats>(
        f32(random_values(DType::kF32, (kHeads + 2 * kKvHeads) * kHeadDim)));
  }

  std::unique_ptr<WeightMatrix> matrix(int64_t rows, int64_t columns) {
    const Floats values = random_values(DType::kBF16, rows * columns, 0.1f);
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = columns,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return fast_->pack({&part, 1}, Precision::kFast);
  }

  // Parts of these formats and numbers of rows.
  std::unique_ptr<WeightMatrix> quantized(std::vector<std::pair<DType, int64_t>> parts,
                                          int64_t columns) {
    std::vector<std::vector<std::byte>> bytes;
    for (const auto& [dtype, rows] : parts)
      bytes.push_back(cpu::random_matrix(random_, dtype, rows, columns));
    std::vector<MatrixPart> in_memory;
    for (size_t i = 0; i < parts.size(); ++i)
      in_memory.push_back({parts[i].first, parts[i].second, columns, bytes[i], {}});
    return fast_->pack(in_memory, Precision::kFast);
  }

  LoraLinear lora(int64_t in, int64_t out) {
    LoraLinear result;
    result.down = matrix(8, in);
    result.parts.push_back({.up = matrix(out, 8), .first_rank = 0, .rank = 8, .first_column = 0});
    return result;
  }

  // State of one of the two ways to run.
  struct Run {
    Run(Device& device, int64_t rows)
        : hidden(device, DType::kBF16, rows, kDim),
          normed(device, DType::kBF16, rows, kDim),
          qkv(device, DType::kBF16, rows, (kHeads + 2 * kKvHeads) * kHeadDim),
          attended(device, DType::kBF16, rows, kHeads * kHeadDim),
          gate_up(device, DType::kBF16, rows, 2 * kFfn),
          activated(device, DType::kBF16, rows, kFfn),
          low(device, DType::kBF16, rows, 8),
          kv(device,
             {.num_layers = 2,
              .num_kv_heads = kKvHeads,
              .head_dim = kHeadDim,
              .dtype = DType::kBF16},
             size_t{8} << 20) {}

    Tensor hidden, normed, qkv, attended, gate_up, activated, low;
    KvCache kv;
  };

  struct Step {
    std::vector<SequenceSlice> slices;
    std::vector<LoraRows> down_lora;  // of the FFN's second product
  };

  Floats run(Ops& ops, Run& r, const Step& step, const Floats& hidden) {
    std::vector<uint16_t> halves;
    for (float value : hidden) halves.push_back(bf16_from_float(value));
    device_->to_device(r.hidden.view().data, halves.data(), halves.size() * sizeof(uint16_t));
    ops.repeat([&] {
      for (int32_t layer = 0; layer < 2; ++layer) queue_layer(ops, r, step, layer);
    });
    std::vector<std::byte> raw(halves.size() * sizeof(uint16_t));
    device_->to_host(raw.data(), r.hidden.view().data, raw.size());
    return cpu::dequantized(DType::kBF16, raw, std::ssize(halves));
  }

  // K and V of all blocks, whether anybody has them or not.
  std::vector<std::byte> cached(Run& r, int32_t layer) {
    const KvLayerView view = r.kv.layer(layer);
    const auto half = static_cast<size_t>(r.kv.pool().num_blocks()) * kKvHeads * kBlockTokens *
                      kHeadDim * sizeof(uint16_t);
    std::vector<std::byte> bytes(2 * half);
    device_->to_host(bytes.data(), view.k, half);
    device_->to_host(bytes.data() + half, view.v, half);
    return bytes;
  }

  void queue_layer(Ops& ops, Run& r, const Step& step, int32_t layer) {
    const RopeOptions rope{.num_heads = kHeads,
                           .num_kv_heads = kKvHeads,
                           .head_dim = kHeadDim,
                           .rotary_dim = kHeadDim,
                           .table = rope_->f32(),
                           .q_norm = nullptr,
                           .k_norm = nullptr,
                           .norm_epsilon = 1e-6f};
    ops.rms_norm(r.hidden.view(), norm_->f32(), 1e-5f, r.normed.view());
    ops.linear(*qkv_, r.normed.view(), r.qkv.view(), Accumulate::kOverwrite, bias_->f32());
    ops.announce(*gate_up_);
    ops.rotate_and_store(r.qkv.view(), rope, step.slices, r.kv.layer(layer));
    ops.attention(r.qkv.view(), {.num_heads = kHeads, .scale = 0.125f, .sliding_window = 0},
                  step.slices, r.kv.layer(layer), r.attended.view());
    ops.linear(*output_, r.attended.view(), r.hidden.view(), Accumulate::kAdd);
    ops.rms_norm(r.hidden.view(), norm_->f32(), 1e-5f, r.normed.view());
    ops.linear(*gate_up_, r.normed.view(), r.gate_up.view());
    ops.gated_activation(r.gate_up.view(), Activation::kSilu, r.activated.view());
    ops.linear(*down_, r.activated.view(), r.hidden.view(), Accumulate::kAdd);
    if (!step.down_lora.empty())
      ops.add_lora(step.down_lora, r.activated.view(), r.low.view(), r.hidden.view());
  }

  std::unique_ptr<Ops> joined_, with_, without_;
  std::unique_ptr<WeightMatrix> qkv_, output_, gate_up_, down_;
  std::unique_ptr<DeviceFloats> norm_, rope_, bias_;
};

TEST_F(DecodeStepTest, EqualsPlainLaunchesWhileSequencesGrow) {
  Run graph(*device_, 3);
  Run plain(*device_, 3);
  std::vector<std::vector<int32_t>> blocks(3);
  for (int32_t i = 0; i < 48; ++i) blocks[static_cast<size_t>(i % 3)].push_back(47 - i);
  // Across blocks, across the room of a graph (256 positions), and with splits that come and go.
  const int32_t starts[] = {0, 120, 250};
  for (int32_t step = 0; step < 20; ++step) {
    SCOPED_TRACE(step);
    Step work;
    for (int64_t i = 0; i < 3; ++i)
      work.slices.push_back({i, 1, starts[i] + step, blocks[static_cast<size_t>(i)]});
    const Floats hidden = random_values(DType::kBF16, 3 * kDim);
    ASSERT_EQ(run(*with_, graph, work, hidden), run(*without_, plain, work, hidden));
  }
}

TEST_F(DecodeStepTest, FollowsTheBatchAndItsAdapters) {
  Run graph(*device_, 4);
  Run plain(*device_, 4);
  std::vector<std::vector<int32_t>> blocks(4);
  for (int32_t i = 0; i < 48; ++i) blocks[static_cast<size_t>(i % 4)].push_back(i);
  auto first = std::make_unique<LoraLinear>(lora(kFfn, kDim));
  auto second = std::make_unique<LoraLinear>(lora(kFfn, kDim));
  for (int32_t step = 0; step < 24; ++step) {
    SCOPED_TRACE(step);
    Step work;
    for (int64_t i = 0; i < 4; ++i)
      work.slices.push_back({i, 1, 60 + step, blocks[static_cast<size_t>(i)]});
    if (step % 8 >= 4) {
      work.down_lora = {{0, 2, first.get()}, {3, 4, second.get()}};
    } else {
      work.down_lora = {{1, 3, second.get()}};
    }
    // An adapter goes, another takes its place, often at the same address.
    if (step == 15) second = nullptr;
    if (step == 15) {
      second = std::make_unique<LoraLinear>(lora(kFfn, kDim));
      work.down_lora.back().lora = second.get();
    }
    const Floats hidden = random_values(DType::kBF16, 4 * kDim);
    ASSERT_EQ(run(*with_, graph, work, hidden), run(*without_, plain, work, hidden));
  }
}

// Rows behind the batch's: of any content, corrected by nobody, stored nowhere.
TEST_F(DecodeStepTest, RowsOfNoSliceChangeNothing) {
  constexpr int64_t kRows = 8;
  Run graph(*device_, kRows);
  Run plain(*device_, kRows);
  std::vector<std::vector<int32_t>> blocks(kRows);
  for (int32_t i = 0; i < 64; ++i) blocks[static_cast<size_t>(i % kRows)].push_back(i);
  const LoraLinear first = lora(kFfn, kDim);
  const LoraLinear second = lora(kFfn, kDim);
  for (int32_t step = 0; step < 40; ++step) {
    SCOPED_TRACE(step);
    const int64_t rows = 5 + (step * 3) % 4;  // another batch every time
    Step work;
    for (int64_t i = 0; i < rows; ++i) {
      const auto which = static_cast<size_t>((i + step) % kRows);
      work.slices.push_back({i, 1, 100 + step, blocks[which]});
    }
    const int64_t border = step % 5;
    if (step % 3 > 0) work.down_lora = {{0, border, &first}, {border, rows - 1, &second}};
    Floats hidden = random_values(DType::kBF16, kRows * kDim);
    Floats poisoned = hidden;
    for (auto i = static_cast<size_t>(rows * kDim); i < poisoned.size(); ++i)
      poisoned[i] = i % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : 3e38f;
    Floats expected = run(*without_, plain, work, hidden);
    Floats got = run(*with_, graph, work, poisoned);
    expected.resize(static_cast<size_t>(rows * kDim));
    got.resize(expected.size());
    ASSERT_EQ(got, expected);
    for (int32_t layer = 0; layer < 2; ++layer)
      ASSERT_TRUE(cached(graph, layer) == cached(plain, layer)) << "layer " << layer;
  }
}

TEST_F(DecodeStepTest, OutlivesScratchThatGrows) {
  Run graph(*device_, 2);
  Run plain(*device_, 2);
  std::vector<std::vector<int32_t>> blocks(2);
  for (int32_t i = 0; i < 48; ++i) blocks[static_cast<size_t>(i % 2)].push_back(i);
  for (int32_t step = 0; step < 12; ++step) {
    SCOPED_TRACE(step);
    // A long context needs more room for partial sums than the steps before.
    const int32_t position = step == 6 ? 1500 : 200 + step;
    Step work;
    for (int64_t i = 0; i < 2; ++i)
      work.slices.push_back({i, 1, position, blocks[static_cast<size_t>(i)]});
    const Floats hidden = random_values(DType::kBF16, 2 * kDim);
    ASSERT_EQ(run(*with_, graph, work, hidden), run(*without_, plain, work, hidden));
  }
}

TEST_F(DecodeStepTest, JoinedOperationsGiveTheSame) {
  for (int64_t rows : {1, 2, 4, 5}) {
    SCOPED_TRACE(rows);
    Run joined(*device_, rows);
    Run plain(*device_, rows);
    const LoraLinear correction = lora(kFfn, kDim);
    std::vector<std::vector<int32_t>> blocks(static_cast<size_t>(rows));
    for (int32_t i = 0; i < 48; ++i) blocks[static_cast<size_t>(i % rows)].push_back(i);
    for (int32_t step = 0; step < 6; ++step) {
      SCOPED_TRACE(step);
      Step work;
      for (int64_t i = 0; i < rows; ++i)
        work.slices.push_back({i, 1, 30 + step, blocks[static_cast<size_t>(i)]});
      if (step % 2 == 1) work.down_lora = {{0, 1, &correction}};
      const Floats hidden = random_values(DType::kBF16, rows * kDim);
      cpu::expect_near(run(*joined_, joined, work, hidden), run(*without_, plain, work, hidden),
                       3 * tolerance_of(DType::kBF16));
    }
  }
}

// The formats of a file are seldom all the same.
TEST_F(DecodeStepTest, QuantisedWeightsGiveTheSameEitherWay) {
  const int64_t q = kHeads * kHeadDim;
  const int64_t kv = kKvHeads * kHeadDim;
  qkv_ = quantized({{DType::kQ4_0, q}, {DType::kQ4_0, kv}, {DType::kQ8_0, kv}}, kDim);
  output_ = quantized({{DType::kQ5_0, kDim}}, q);
  for (DType of_up : {DType::kQ4_1, DType::kQ5_1}) {
    gate_up_ = quantized({{DType::kQ4_1, kFfn}, {of_up, kFfn}}, kDim);
    down_ = quantized({{DType::kQ8_0, kDim}}, kFfn);
    for (int64_t rows : {1, 4, 5, 20}) {
      SCOPED_TRACE(testing::Message() << name_of(of_up) << " " << rows);
      Run joined(*device_, rows);
      Run graph(*device_, rows);
      Run plain(*device_, rows);
      const LoraLinear correction = lora(kFfn, kDim);
      std::vector<std::vector<int32_t>> blocks(static_cast<size_t>(rows));
      for (int32_t i = 0; i < 60; ++i) blocks[static_cast<size_t>(i % rows)].push_back(i);
      for (int32_t step = 0; step < 6; ++step) {
        SCOPED_TRACE(step);
        Step work;
        for (int64_t i = 0; i < rows; ++i)
          work.slices.push_back({i, 1, 30 + step, blocks[static_cast<size_t>(i)]});
        if (step % 2 == 1) work.down_lora = {{0, 1, &correction}};
        const Floats hidden = random_values(DType::kBF16, rows * kDim);
        const Floats expected = run(*without_, plain, work, hidden);
        cpu::expect_near(run(*with_, graph, work, hidden), expected, tolerance_of(DType::kBF16));
        cpu::expect_near(run(*joined_, joined, work, hidden), expected,
                         3 * tolerance_of(DType::kBF16));
      }
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
