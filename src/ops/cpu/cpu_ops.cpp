#include "ops/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "device/thread_pool.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/attention_mass.h"
#include "ops/cpu/divergence.h"
#include "ops/cpu/experts.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/linear.h"
#include "ops/cpu/low_rank_fit.h"
#include "ops/cpu/normal_equations.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/weight_arena.h"
#include "ops/low_rank.h"
#include "ops/preconditions.h"

namespace droidspeak::cpu {
namespace {

// Elements per chunk of row-wise work: about ten microseconds.
constexpr int64_t kChunkElements = 16384;
// Cached positions translated at a time, so that the gathered rows stay small.
constexpr int32_t kTranslateRows = 512;

const PackedMatrix& packed(const WeightMatrix& matrix) {
  return static_cast<const PackedMatrix&>(matrix);
}

class CpuOps final : public Ops {
 public:
  CpuOps(Device& device, const CpuOptions& options)
      : device_(device),
        pool_(options.num_threads),
        kernels_(options.instruction_set),
        scratch_(device, pool_.num_threads()),
        arena_(device) {}

  Device& device() override { return device_; }

  DType activation_dtype() const override { return DType::kF32; }

  int32_t prefill_rows() const override { return 512; }

  std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts,
                                     Precision precision) override {
    return std::make_unique<PackedMatrix>(arena_, pool_, parts, precision);
  }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    check(out.rows == std::ssize(tokens) && out.columns == table.columns(), "shape of embeddings");
    for_rows(out.rows, 4 * out.columns, [&](int64_t i) {
      packed(table).read_row(tokens[static_cast<size_t>(i)], out.f32_row(i));
    });
  }

  void linear(const WeightMatrix& weights,
              TensorView in,
              TensorView out,
              Accumulate accumulate,
              const float* bias) override {
    check(in.dtype == DType::kF32 && out.dtype == DType::kF32, "linear works on f32 rows");
    check_linear(weights, in, out);
    multiply({kernels_, pool_, scratch_}, packed(weights), in,
             {.data = out.f32(), .stride = out.row_stride, .accumulate = accumulate, .bias = bias});
  }

  void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) override {
    check(in.rows == out.rows && in.columns == out.columns, "shapes of a norm");
    for_rows(in.rows, in.columns, [&](int64_t i) {
      kernels_.rms_norm(in.f32_row(i), weight, epsilon, in.columns, out.f32_row(i));
    });
  }

  void gated_activation(TensorView in, Activation activation, TensorView out) override {
    check(in.rows == out.rows && in.columns == 2 * out.columns, "shapes of a gated activation");
    for_rows(in.rows, 4 * out.columns, [&](int64_t i) {
      kernels_.gated_activation(in.f32_row(i), activation, out.columns, out.f32_row(i));
    });
  }

  void scale(TensorView rows, float factor, float soft_cap) override {
    for_rows(rows.rows, (soft_cap == 0 ? 1 : 4) * rows.columns,
             [&](int64_t i) { kernels_.scale(rows.f32_row(i), rows.columns, factor, soft_cap); });
  }

  void add_scaled(TensorView in, float factor, TensorView out) override {
    check(in.rows == out.rows && in.columns == out.columns, "shapes of a sum");
    for_rows(in.rows, in.columns, [&](int64_t i) {
      kernels_.add_scaled(in.f32_row(i), factor, in.columns, out.f32_row(i));
    });
  }

  void choose_experts(TensorView logits,
                      const ExpertChoice& choice,
                      std::span<int32_t> experts,
                      TensorView weights) override {
    check_expert_choice(logits, choice, experts, weights);
    const auto chosen = static_cast<size_t>(choice.per_row);
    for_rows(logits.rows, 16 * logits.columns, [&](int64_t i) {
      cpu::choose_experts({logits.f32_row(i), static_cast<size_t>(logits.columns)}, choice,
                          experts.subspan(static_cast<size_t>(i) * chosen, chosen),
                          {weights.f32_row(i), chosen});
    });
  }

  void gather_rows(TensorView in, std::span<const int32_t> rows, TensorView out) override {
    check_gathered_rows(in, rows, out);
    for_rows(out.rows, out.columns, [&](int64_t i) {
      std::copy_n(in.f32_row(rows[static_cast<size_t>(i)]), out.columns, out.f32_row(i));
    });
  }

  void add_weighted_rows(TensorView in,
                         std::span<const int32_t> places,
                         TensorView weights,
                         TensorView out) override {
    check_weighted_rows(in, places, weights, out);
    for_rows(out.rows, weights.columns * out.columns, [&](int64_t i) {
      for (int64_t j = 0; j < weights.columns; ++j) {
        const int32_t place = places[static_cast<size_t>(i * weights.columns + j)];
        kernels_.add_scaled(in.f32_row(place), weights.f32_row(i)[j], out.columns, out.f32_row(i));
      }
    });
  }

  void gate_rows(TensorView gates, TensorView rows) override {
    check_gated_rows(gates, rows);
    for_rows(rows.rows, rows.columns, [&](int64_t i) {
      const float factor = 1.0f / (1.0f + std::exp(-*gates.f32_row(i)));
      kernels_.scale(rows.f32_row(i), rows.columns, factor, 0);
    });
  }

  void rotate_and_store(TensorView qkv,
                        const RopeOptions& options,
                        std::span<const SequenceSlice> slices,
                        const KvLayerView& kv) override {
    check_rotation(qkv, options, slices, kv);
    for (const SequenceSlice& slice : slices) {
      for_ranges(slice.num_rows, qkv.columns, [&](int64_t begin, int64_t end) {
        kernels_.rotate_and_store({.qkv = qkv,
                                   .options = &options,
                                   .slice = &slice,
                                   .kv = &kv,
                                   .begin = static_cast<int32_t>(begin),
                                   .end = static_cast<int32_t>(end)});
      });
    }
  }

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    check_attention(qkv, options, kv, out);
    check_slices(slices, qkv.rows);
    attend({.kernels = kernels_, .pool = pool_, .scratch = scratch_}, {qkv, out, options, kv},
           slices);
  }

  void add_attention_mass(TensorView qkv,
                          const AttentionOptions& options,
                          std::span<const SequenceSlice> slices,
                          size_t which,
                          const KvLayerView& kv,
                          TensorView sums) override {
    const SequenceSlice& slice = slices[which];
    check_attention_mass(qkv, options, slice, kv, sums);
    const SequenceSlice last = slice.last_rows(1, slice.first_row + slice.num_rows - 1);
    cpu::add_attention_mass({kernels_, pool_, scratch_}, {qkv, {}, options, kv}, last, sums.f32(),
                            sums.columns);
  }

  void translate_kv(const LowRankMap& map,
                    const RopeOptions& rope,
                    const SequenceSlice& range,
                    const KvLayerView& kv) override {
    check_heads(rope, kv);
    const int32_t last = range.length();
    const int64_t columns = 2 * static_cast<int64_t>(kv.num_kv_heads) * kv.head_dim;
    check(map.down->columns() == columns, "map of K and V rows");
    for (int32_t begin = range.first_position; begin < last; begin += kTranslateRows) {
      const int32_t rows = std::min(kTranslateRows, last - begin);
      TensorView view = translated_.reshape(device_, DType::kF32, rows, columns);
      auto move = [&](auto kernel) {
        for_ranges(rows, columns, [&](int64_t from, int64_t to) {
          kernel({.options = &rope,
                  .blocks = range.blocks,
                  .kv = &kv,
                  .begin = begin + static_cast<int32_t>(from),
                  .end = begin + static_cast<int32_t>(to),
                  .rows = view.f32_row(from)});
        });
      };
      move(kernels_.gather_kv);
      translate_rows(map, view);
      move(kernels_.scatter_kv);
    }
  }

  void translate_rows(const LowRankMap& map, TensorView rows) override {
    check(map.up->columns() == map.down->rows() && map.up->rows() == rows.columns,
          "shapes of a low-rank map");
    TensorView hidden = hidden_.reshape(device_, DType::kF32, rows.rows, map.down->rows());
    linear(*map.down, rows, hidden, Accumulate::kOverwrite, nullptr);
    linear(*map.up, hidden, rows, Accumulate::kAdd, map.bias);
  }

  void copy(TensorView in, TensorView out) override {
    check(in.rows == out.rows && in.columns == out.columns, "shapes of a copy");
    for_rows(in.rows, in.columns, [&](int64_t i) {
      const TensorView from = in.row_range(i, i + 1);
      const TensorView to = out.row_range(i, i + 1);
      if (from.dtype == to.dtype) {
        std::memcpy(to.data, from.data, bytes_of(from.dtype, from.columns));
      } else if (to.dtype == DType::kF32) {
        kernels_.to_float(from.dtype, from.data, from.columns, to.f32());
      } else if (from.dtype == DType::kF32) {
        kernels_.from_float(to.dtype, from.f32(), from.columns, to.data);
      } else {
        panic("copy converts from or to f32");
      }
    });
  }

  void divergence(TensorView reference, TensorView logits, RowDivergence* out) override {
    check_divergence(reference, logits);
    const auto columns = static_cast<size_t>(logits.columns);
    for_rows(logits.rows, 16 * logits.columns, [&](int64_t i) {
      out[i] = compare_logits({reference.f32_row(i % reference.rows), columns},
                              {logits.f32_row(i), columns});
    });
  }

  void read_kv(const RopeOptions& rope,
               const SequenceSlice& range,
               const KvLayerView& kv,
               TensorView out) override {
    check_heads(rope, kv);
    check_kv_rows(range, kv, out);
    for_ranges(range.num_rows, out.columns, [&](int64_t from, int64_t to) {
      kernels_.gather_kv({.options = &rope,
                          .blocks = range.blocks,
                          .kv = &kv,
                          .begin = range.first_position + static_cast<int32_t>(from),
                          .end = range.first_position + static_cast<int32_t>(to),
                          .rows = out.f32_row(from)});
    });
  }

  void add_normal_equations(TensorView x, TensorView y, TensorView sums) override {
    check_normal_equations(x, y, sums);
    const FitRows rows = transpose_fit_rows(pool_, x, y, sums);
    const int64_t n = x.columns;
    const MatrixPart parts[2] = {
        {DType::kF32, n, x.rows, std::as_bytes(std::span(rows.x)), {}},
        {DType::kF32, n, x.rows, std::as_bytes(std::span(rows.difference)), {}}};
    TensorView left = translated_.reshape(device_, DType::kF32, n, x.rows);
    std::ranges::copy(rows.x, left.f32());
    linear(PackedMatrix(arena_, pool_, parts, Precision::kExact), left, sums.row_range(0, n),
           Accumulate::kAdd, nullptr);
  }

  // One problem per thread: only those under way have their sums in double.
  std::vector<Result<LowRankFit>> fit_low_rank(std::span<const LowRankProblem> problems) override {
    for (const LowRankProblem& problem : problems) check_low_rank_problem(problem);
    std::vector<Result<LowRankFit>> fits(problems.size(), LowRankFit{});
    pool_.for_each(std::ssize(problems), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        fits[i] = cpu::fit_low_rank(problems[i]);
    });
    return fits;
  }

  void argmax(TensorView in, std::span<int32_t> out) override {
    check(in.rows == std::ssize(out) && in.columns > 0, "shapes of argmax");
    for_rows(in.rows, in.columns, [&](int64_t i) {
      out[static_cast<size_t>(i)] =
          static_cast<int32_t>(kernels_.argmax(in.f32_row(i), in.columns));
    });
  }

 private:
  // body(begin, end) over [0, rows), in parallel when the rows hold enough elements.
  template <class Body>
  void for_ranges(int64_t rows, int64_t columns, const Body& body) {
    const int64_t grain = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, columns));
    pool_.for_each(rows, grain, [&](int64_t begin, int64_t end, int) { body(begin, end); });
  }

  template <class Body>
  void for_rows(int64_t rows, int64_t columns, const Body& body) {
    for_ranges(rows, columns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) body(i);
    });
  }

  Device& device_;
  ThreadPool pool_;
  const Kernels kernels_;
  Scratch scratch_;
  WeightArena arena_;
  Tensor translated_;  // gathered rows [K | V]
  Tensor hidden_;      // rows after the first half of a low-rank map
};

}  // namespace

std::unique_ptr<Ops> make_ops(Device& device, const CpuOptions& options) {
  check(device.kind() == DeviceKind::kCpu, "CPU operations work on the CPU device");
  return std::make_unique<CpuOps>(device, options);
}

}  // namespace droidspeak::cpu

namespace droidspeak {

std::unique_ptr<Ops> make_cpu_ops(Device& device, int num_threads) {
  return cpu::make_ops(device, {.num_threads = num_threads});
}

}  // namespace droidspeak
