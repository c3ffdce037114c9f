#include <algorithm>
#include <optional>

#include "base/check.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/attention_plain.h"
#include "ops/cuda/experts/grouped_experts.h"
#include "ops/cuda/fit/low_rank_fit.h"
#include "ops/cuda/fit/normal_equations.h"
#include "ops/cuda/fp8/quantize_rows.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/products/linear.h"
#include "ops/cuda/products/lora.h"
#include "ops/cuda/products/weight_packer.h"
#include "ops/cuda/quantized/strip_packer.h"
#include "ops/cuda/rows/divergence.h"
#include "ops/cuda/rows/row_sampler.h"
#include "ops/cuda/steps/fast_paths.h"
#include "ops/cuda/steps/layout_cache.h"
#include "ops/cuda/steps/op_joiner.h"
#include "ops/cuda/steps/step_graphs.h"
#include "ops/cuda/steps/upload.h"
#include "ops/low_rank.h"
#include "ops/preconditions.h"

namespace droidspeak {
namespace cuda {
namespace {

// Cached positions translated at a time: bounds the gathered rows.
constexpr int32_t kTranslateRows = 4096;

bool is_activation(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

bool are_all_fp8(std::span<const MatrixPart> parts) {
  return std::ranges::all_of(parts,
                             [](const MatrixPart& part) { return part.dtype == DType::kFp8; });
}

bool has_same_shape(const TensorView& a, const TensorView& b) {
  return a.rows == b.rows && a.columns == b.columns;
}

// Calls what it was given when the scope ends.
template <class Action>
class Finally {
 public:
  explicit Finally(Action action) : action_(std::move(action)) {}

  ~Finally() { action_(); }

  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  Action action_;
};

class CudaOps final : public Ops {
 public:
  CudaOps(CudaDevice& device, Precision precision, const FastPaths& paths)
      : device_(device),
        paths_(paths),
        stream_(device.stream()),
        activation_dtype_(precision == Precision::kExact ? DType::kF32 : DType::kBF16),
        packer_(device),
        linear_(device, paths),
        attention_(device.stream()),
        grouped_experts_(device, linear_),
        layouts_(device),
        graphs_(device),
        tokens_(device),
        sampler_(device) {}

  Device& device() override { return device_; }

  DType activation_dtype() const override { return activation_dtype_; }

  int32_t prefill_rows() const override { return 8192; }

  int32_t max_head_dim() const override { return kLargestHeadDim; }

  bool takes_fp8() const override { return activation_dtype_ == DType::kBF16; }

  std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts,
                                     Precision precision) override {
    check(!parts.empty(), "a matrix has parts");
    if (precision == Precision::kExact) return packer_.pack(parts, DType::kF32);
    const bool keeps_fp8 = are_all_fp8(parts) && can_multiply_fp8(parts);
    if (!keeps_fp8 && stacks_of(parts).empty()) return packer_.pack(parts, DType::kBF16);
    linear_.make_room_for_expanded();
    return keeps_fp8 ? packer_.pack_fp8(parts) : packer_.pack_strips(parts);
  }

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    check(out.rows == std::ssize(tokens) && out.columns == table.columns(), "shape of embeddings");
    if (tokens.empty()) return;
    if (is_tracing_) return trace_.spoil();
    cuda::embed(stream_, as_cuda(table), tokens_.send(tokens), out);
  }

  void expect_product(const WeightMatrix& weights, TensorView in) override {
    if (!is_tracing_ && inputs_ == nullptr) linear_.expect(as_cuda(weights), in);
  }

  void linear(const WeightMatrix& weights,
              TensorView in,
              TensorView out,
              Accumulate accumulate,
              const float* bias) override {
    check(in.dtype == as_cuda(weights).input_dtype(), "rows of the dtype of the weights");
    check(out.dtype == in.dtype || out.dtype == DType::kF32, "products of the rows' dtype or f32");
    check_linear(weights, in, out);
    if (is_tracing_)
      return trace_.add(Operation::kLinear, weights, in, out, accumulate, as_address(bias));
    const Product product{as_cuda(weights), in, out, accumulate, bias};
    if (!joiner_.linear(product)) linear_.run(product);
  }

  void add_lora(std::span<const LoraRows> ranges,
                TensorView in,
                TensorView low,
                TensorView out) override {
    const bool is_fused = paths_.fused_lora && lora_kernels_support(ranges, in, low, out);
    if (!is_fused) return Ops::add_lora(ranges, in, low, out);
    if (is_tracing_) return trace_.add_lora(ranges, in, low, out);
    joiner_.flush();
    if (inputs_ == nullptr) return add_lora_of_few_rows(stream_, ranges, in, low, out);
    add_lora_of_table(stream_, inputs_->corrections.operation(num_corrections_++), in, low, out);
  }

  void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) override {
    check(has_same_shape(in, out) && in.dtype == out.dtype, "shapes of a norm");
    if (is_tracing_) return trace_.add(Operation::kNorm, in, as_address(weight), epsilon, out);
    if (in.rows == 0 || joiner_.rms_norm(in, weight, epsilon, out)) return;
    if (const auto place = place_for_rounded(in, out))
      return norm_and_quantize(stream_, in, weight, epsilon, out, *place);
    cuda::rms_norm(stream_, in, weight, epsilon, out);
  }

  void gated_activation(TensorView in, Activation activation, TensorView out) override {
    check(in.rows == out.rows && in.columns == 2 * out.columns && in.dtype == out.dtype,
          "shapes of a gated activation");
    if (is_tracing_) return trace_.add(Operation::kActivation, in, activation, out);
    if (in.rows == 0 || joiner_.gated_activation(in, activation, out)) return;
    if (const auto place = place_for_rounded(in, out))
      return activate_and_quantize(stream_, in, activation, out, *place);
    cuda::gated_activation(stream_, in, activation, out);
  }

  void scale(TensorView rows, float factor, float soft_cap) override {
    check(is_activation(rows.dtype), "rows that can be scaled");
    if (is_tracing_) return trace_.add(Operation::kScale, rows, factor, soft_cap);
    joiner_.flush();
    if (rows.rows > 0) cuda::scale(stream_, rows, factor, soft_cap);
  }

  void add_scaled(TensorView in, float factor, TensorView out) override {
    check(has_same_shape(in, out) && in.dtype == out.dtype, "shapes of a sum");
    if (is_tracing_) return trace_.add(Operation::kAddScaled, in, factor, out);
    joiner_.flush();
    if (in.rows > 0) cuda::add_scaled(stream_, in, factor, out);
  }

  bool add_experts(const ExpertLayer& layer, TensorView in, TensorView out) override {
    check_expert_layer(layer, in, out);
    if (!paths_.grouped_experts || !grouped_experts_.prepare(layer, in, out)) return false;
    if (is_tracing_) {
      trace_.add(Operation::kExperts, in, out);
      grouped_experts_.add_to(trace_);
      return true;
    }
    const std::optional<NormedRows> norm = joiner_.take_norm(in);
    grouped_experts_.run(stream_, norm.value_or(NormedRows{in, {}}), out);
    return true;
  }

  // Waits, so what chooses experts like this is never repeated from a record.
  void choose_experts(TensorView logits,
                      const ExpertChoice& choice,
                      std::span<int32_t> experts,
                      TensorView weights) override {
    check_expert_choice(logits, choice, experts, weights);
    if (is_tracing_) {
      std::ranges::fill(experts, 0);
      return trace_.spoil();
    }
    if (logits.rows == 0) return;
    TensorView chosen = experts_.reshape(device_, DType::kI32, logits.rows, choice.per_row);
    if (experts_on_host_.bytes() < experts.size_bytes())
      experts_on_host_ = device_.allocate_host(2 * experts.size_bytes());
    cuda::choose_experts(stream_, logits, choice, static_cast<int32_t*>(chosen.data), weights);
    device_.to_host(experts_on_host_.data(), chosen.data, experts.size_bytes());
    std::copy_n(static_cast<const int32_t*>(experts_on_host_.data()), experts.size(),
                experts.data());
  }

  void gather_rows(TensorView in, std::span<const int32_t> rows, TensorView out) override {
    check_gathered_rows(in, rows, out);
    if (is_tracing_) return trace_.spoil();
    if (!rows.empty()) cuda::gather_rows(stream_, in, tokens_.send(rows), out);
  }

  void add_weighted_rows(TensorView in,
                         std::span<const int32_t> places,
                         TensorView weights,
                         TensorView out) override {
    check_weighted_rows(in, places, weights, out);
    if (is_tracing_) return trace_.spoil();
    if (!places.empty()) cuda::add_weighted_rows(stream_, in, tokens_.send(places), weights, out);
  }

  void gate_rows(TensorView gates, TensorView rows) override {
    check_gated_rows(gates, rows);
    if (is_tracing_) return trace_.add(Operation::kGateRows, gates, rows);
    joiner_.flush();
    if (rows.rows > 0) cuda::gate_rows(stream_, gates, rows);
  }

  void rotate_and_store(TensorView qkv,
                        const RopeOptions& options,
                        std::span<const SequenceSlice> slices,
                        const KvLayerView& kv) override {
    check_rotation(qkv, options, slices, kv);
    if (slices.empty()) return;
    if (is_tracing_) {
      trace_.add(Operation::kRotate, qkv, options, kv);
      return trace_.add_slices(slices, qkv.rows);
    }
    joiner_.flush();
    cuda::rotate_and_store(stream_, qkv, options, layout_of(slices), kv);
  }

  void attention(TensorView qkv,
                 const AttentionOptions& options,
                 std::span<const SequenceSlice> slices,
                 const KvLayerView& kv,
                 TensorView out) override {
    check_attention(qkv, options, kv, out);
    check_slices(slices, qkv.rows);
    if (slices.empty()) return;
    if (is_tracing_) {
      trace_.add(Operation::kAttention, qkv, options, kv, out);
      return trace_.add_slices(slices, qkv.rows);
    }
    joiner_.flush();
    attention_.run(qkv, options, layout_of(slices), kv, out);
  }

  void add_attention_mass(TensorView qkv,
                          const AttentionOptions& options,
                          std::span<const SequenceSlice> slices,
                          size_t which,
                          const KvLayerView& kv,
                          TensorView sums) override {
    check_attention_mass(qkv, options, slices[which], kv, sums);
    if (is_tracing_) return trace_.spoil();
    joiner_.flush();
    TensorView scores =
        scores_.reshape(device_, DType::kF32, options.num_heads, 2 + slices[which].length());
    cuda::add_attention_mass(stream_, qkv, options, layout_of(slices), which, kv,
                             static_cast<float*>(scores.data), sums);
  }

  void translate_kv(const LowRankMap& map,
                    const RopeOptions& rope,
                    const SequenceSlice& range,
                    const KvLayerView& kv) override {
    check_heads(rope, kv);
    const int64_t columns = 2 * static_cast<int64_t>(kv.num_kv_heads) * kv.head_dim;
    check(map.down->columns() == columns, "map of K and V rows");
    if (is_tracing_) return trace_.spoil();
    const int32_t last = range.length();
    for (int32_t begin = range.first_position; begin < last; begin += kTranslateRows) {
      const int32_t rows = std::min(kTranslateRows, last - begin);
      const SequenceSlice part{0, rows, begin, range.blocks};
      check_slices({&part, 1}, rows);
      const BatchLayout& layout = layouts_.get({&part, 1});
      TensorView view = translated_.reshape(device_, DType::kF32, rows, columns);
      gather_kv(stream_, rope, layout, kv, view);
      add_map(map, view);
      scatter_kv(stream_, rope, layout, kv, view);
    }
  }

  // A map is f32 whatever the activations are.
  void translate_rows(const LowRankMap& map, TensorView rows) override {
    check(map.up->columns() == map.down->rows() && map.up->rows() == rows.columns,
          "shapes of a low-rank map");
    if (rows.rows == 0) return;
    if (is_tracing_) return trace_.spoil();
    if (rows.dtype == as_cuda(*map.down).input_dtype()) return add_map(map, rows);
    TensorView view = translated_.reshape(device_, DType::kF32, rows.rows, rows.columns);
    convert(stream_, rows, view);
    add_map(map, view);
    convert(stream_, view, rows);
  }

  void copy(TensorView in, TensorView out) override {
    check(has_same_shape(in, out), "shapes of a copy");
    if (in.rows == 0 || in.columns == 0) return;
    if (is_tracing_) return trace_.add(Operation::kCopy, in, out);
    joiner_.flush();
    if (in.dtype != out.dtype) return convert(stream_, in, out);
    check_cuda(cudaMemcpy2DAsync(out.data, bytes_of(out.dtype, out.row_stride), in.data,
                                 bytes_of(in.dtype, in.row_stride), bytes_of(in.dtype, in.columns),
                                 static_cast<size_t>(in.rows), cudaMemcpyDeviceToDevice, stream_),
               "copy rows");
  }

  void divergence(TensorView reference, TensorView logits, RowDivergence* out) override {
    check_divergence(reference, logits);
    if (is_tracing_) return trace_.spoil();
    if (logits.rows > 0) cuda::divergence(stream_, reference, logits, out);
  }

  void read_kv(const RopeOptions& rope,
               const SequenceSlice& range,
               const KvLayerView& kv,
               TensorView out) override {
    check_heads(rope, kv);
    check_kv_rows(range, kv, out);
    if (out.rows == 0) return;
    if (is_tracing_) return trace_.spoil();
    const SequenceSlice rows{0, range.num_rows, range.first_position, range.blocks};
    gather_kv(stream_, rope, layouts_.get({&rows, 1}), kv, out);
  }

  void add_normal_equations(TensorView x, TensorView y, TensorView sums) override {
    check_normal_equations(x, y, sums);
    if (is_tracing_) return trace_.spoil();
    if (!normal_equations_) normal_equations_.emplace(device_, map_math());
    normal_equations_->add(x, y, sums);
  }

  std::vector<Result<LowRankFit>> fit_low_rank(std::span<const LowRankProblem> problems) override {
    check(!is_tracing_, "a fit waits, so it cannot be repeated");
    if (!low_rank_fitter_) low_rank_fitter_.emplace(device_);
    std::vector<Result<LowRankFit>> fits;
    for (const LowRankProblem& problem : problems) {
      check_low_rank_problem(problem);
      fits.push_back(low_rank_fitter_->fit(problem));
    }
    return fits;
  }

  void argmax(TensorView in, std::span<int32_t> out) override {
    check(in.rows == std::ssize(out) && in.columns > 0 && is_activation(in.dtype),
          "shapes of argmax");
    if (out.empty()) return;
    if (is_tracing_) return trace_.spoil();
    TensorView best = best_.reshape(device_, DType::kI32, 1 + kArgmaxParts, 2 * in.rows);
    if (best_on_host_.bytes() < out.size_bytes())
      best_on_host_ = device_.allocate_host(2 * out.size_bytes());
    cuda::argmax(stream_, in, static_cast<int32_t*>(best.data));
    device_.to_host(best_on_host_.data(), best.data, out.size_bytes());
    std::copy_n(static_cast<const int32_t*>(best_on_host_.data()), out.size(), out.data());
  }

  void sample(TensorView logits,
              std::span<const RowSampling> rows,
              std::span<SampledToken> out) override {
    check_sampling(logits, rows, out);
    check(!is_tracing_, "sampling waits, so it cannot be repeated");
    const bool is_argmax = std::ranges::all_of(rows, &RowSampling::is_plain_greedy);
    if (is_argmax || !RowSampler::supports(logits, rows)) return Ops::sample(logits, rows, out);
    sampler_.run(logits, rows, out);
  }

  int64_t repeated_rows(int64_t rows) const override {
    return paths_.graphs ? rows_of_step(rows) : rows;
  }

  void repeat(const std::function<void()>& queue) override {
    if (!paths_.graphs || is_tracing_ || inputs_ != nullptr) return queue();
    trace_.clear();
    is_tracing_ = true;
    const Finally end([this] { is_tracing_ = false; });
    queue();
    is_tracing_ = false;
    if (!trace_.is_repeatable()) return queue();
    trace_.add(attention_.scratch());
    graphs_.run(trace_, [&](cudaStream_t stream, const StepGraphs::Inputs& inputs) {
      launch_on(stream, &inputs);
      const Finally back([this] {
        joiner_.forget();
        launch_on(device_.stream(), nullptr);
      });
      if (paths_.joined) joiner_.begin(stream);
      queue();
      joiner_.flush();
    });
  }

 private:
  static const void* as_address(const float* values) { return values; }

  // With any number of rows: one row means the same alone and among many.
  bool can_multiply_fp8(std::span<const MatrixPart> parts) const {
    int64_t rows = 0;
    for (const MatrixPart& part : parts) rows += part.rows;
    return linear_.multiplies_fp8(rows, parts.front().columns);
  }

  std::optional<RoundedPlace> place_for_rounded(TensorView in, TensorView out) {
    if (!can_round_while_writing(in, out)) return std::nullopt;
    return linear_.place_for_rounded(out);
  }

  // Operations use this stream, and if there are some these inputs, from now on.
  void launch_on(cudaStream_t stream, const StepGraphs::Inputs* inputs) {
    stream_ = stream;
    inputs_ = inputs;
    num_corrections_ = 0;
    linear_.launch_on(stream);
    attention_.launch_on(stream);
  }

  const BatchLayout& layout_of(std::span<const SequenceSlice> slices) {
    return inputs_ != nullptr ? inputs_->layout : layouts_.get(slices);
  }

  Math map_math() const {
    return activation_dtype_ == DType::kF32 ? Math::kFull : Math::kTensorFloat;
  }

  void add_map(const LowRankMap& map, TensorView rows) {
    const Math math = map_math();
    TensorView hidden = hidden_.reshape(device_, rows.dtype, rows.rows, map.down->rows());
    linear_.run({.weights = as_cuda(*map.down), .in = rows, .out = hidden, .math = math});
    linear_.run({.weights = as_cuda(*map.up),
                 .in = hidden,
                 .out = rows,
                 .accumulate = Accumulate::kAdd,
                 .bias = map.bias,
                 .math = math});
  }

  CudaDevice& device_;
  const FastPaths paths_;
  cudaStream_t stream_;  // the device's, but while a step is recorded
  const DType activation_dtype_;
  WeightPacker packer_;
  Linear linear_;
  OpJoiner joiner_{linear_};
  Attention attention_;
  GroupedExperts grouped_experts_;
  LayoutCache layouts_;
  StepGraphs graphs_;
  OpTrace trace_;
  bool is_tracing_ = false;                     // operations are noted, not queued
  const StepGraphs::Inputs* inputs_ = nullptr;  // of a step that is queued as a whole
  size_t num_corrections_ = 0;                  // of it, queued so far
  UploadRing tokens_;
  RowSampler sampler_;
  Tensor scores_;      // of add_attention_mass()
  Tensor translated_;  // rows of a map's input
  Tensor hidden_;      // rows after the first half of a low-rank map
  std::optional<NormalEquations> normal_equations_;
  std::optional<LowRankFitter> low_rank_fitter_;
  Tensor experts_;  // of choose_experts()
  Buffer experts_on_host_;
  Tensor best_;  // of argmax
  Buffer best_on_host_;
};

}  // namespace

std::unique_ptr<Ops> make_ops(CudaDevice& device, Precision precision, const FastPaths& paths) {
  return std::make_unique<CudaOps>(device, precision, paths);
}

}  // namespace cuda

std::unique_ptr<Ops> make_cuda_ops(Device& device, Precision precision) {
  check(device.kind() == DeviceKind::kCuda, "CUDA operations work on a CUDA device");
  return cuda::make_ops(static_cast<cuda::CudaDevice&>(device), precision, {});
}

}  // namespace droidspeak
