#include "ops/cuda/fp8/fp8_product.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "ops/cuda/fp8/quantize_rows.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/products/cublas_lt.h"
#include "ops/cuda/stopwatch.h"

namespace droidspeak::cuda {
namespace {

constexpr int64_t kSizeStep = 16;  // that the library wants of both sides of the matrix
constexpr size_t kAlignment = 256;
// With fewer, norms add up in another order (rows/norm.cu).
constexpr int64_t kLeastPreparedRows = 512;
// Row counts that are worth timing: they come again.
constexpr int64_t kMostTimedDecodeRows = 64;
constexpr int64_t kTimedPrefillStep = 4096;
constexpr int kRepeats = 3;
// Sums stay in the tensor cores, which keep 14 bits of them, and are not brought into f32 now and
// then (docs/decisions/032-8-bit-floats-on-the-gpu.md).
constexpr int8_t kFastSums = 1;

size_t scale_bytes(int64_t rows) {
  return (static_cast<size_t>(rows) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
}

RoundedPlace place_in(const Buffer& room, int64_t rows) {
  return {static_cast<uint8_t*>(room.data()) + scale_bytes(rows), static_cast<float*>(room.data())};
}

// Of a matrix that takes() holds for.
bool can_multiply(const CudaMatrix& weights, const TensorView& in, const Buffer& room) {
  return weights.is_fp8() && weights.fp8().rounds_input &&
         scale_bytes(in.rows) + static_cast<size_t>(in.rows * in.columns) <= room.bytes();
}

}  // namespace

// As Linear::Plan: our rows are cuBLAS's columns.
class Fp8Product::Plan {
 public:
  Plan(cublasLtHandle_t handle, const Shape& s, const Rounded& product)
      : operation_(CUBLAS_COMPUTE_32F),
        weights_(CUDA_R_8F_E4M3, s.columns, s.outputs, s.columns),
        in_(CUDA_R_8F_E4M3, s.columns, s.rows, s.columns),
        out_(cuda_type(s.out_dtype), s.outputs, s.rows, s.out_stride) {
    operation_.set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, kFastSums);
    operation_.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    operation_.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    set_scales(product);
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.out_alignment);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.out_alignment);
    cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), weights_.get(), in_.get(), out_.get(),
                                   out_.get(), preference.get(), kMostProposals, proposals_.data(),
                                   &num_proposals_);
  }

  bool is_possible() const { return num_proposals_ > 0; }

  int num_proposals() const { return num_proposals_; }

  void choose(int proposal) { proposal_ = proposal; }

  void set_impossible() { num_proposals_ = 0; }

  cublasStatus_t multiply(cublasLtHandle_t handle,
                          const Rounded& product,
                          const Buffer& workspace,
                          cudaStream_t stream) const {
    const float one = 1;
    const float keep = product.accumulate == Accumulate::kAdd ? 1.0f : 0.0f;
    set_scales(product);
    const cublasLtMatmulAlgo_t& algorithm = proposals_[static_cast<size_t>(proposal_)].algo;
    return cublasLtMatmul(handle, operation_.get(), &one, product.weights.codes, weights_.get(),
                          product.codes, in_.get(), &keep, product.out.data, out_.get(),
                          product.out.data, out_.get(), &algorithm, workspace.data(),
                          workspace.bytes(), stream);
  }

 private:
  void set_scales(const Rounded& product) const {
    operation_.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.weights.scales);
    operation_.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.scales);
  }

  Description operation_;
  MatrixLayout weights_;
  MatrixLayout in_;
  MatrixLayout out_;
  std::array<cublasLtMatmulHeuristicResult_t, kMostProposals> proposals_{};
  int num_proposals_ = 0;
  int proposal_ = 0;
};

Fp8Product::Fp8Product(CudaDevice& device, void* handle, const Buffer& workspace, bool is_timed)
    : device_(device), handle_(handle), workspace_(workspace), is_timed_(is_timed) {}

Fp8Product::~Fp8Product() = default;

Fp8Product::Shape Fp8Product::shape_of(const Rounded& product) {
  const TensorView& out = product.out;
  return {.rows = out.rows,
          .outputs = product.weights.rows,
          .columns = product.weights.columns,
          .out_stride = out.row_stride,
          .out_dtype = out.dtype,
          .out_alignment = alignment_of(out.data)};
}

bool Fp8Product::takes(int64_t outputs, int64_t columns) const {
  if (outputs % kSizeStep != 0 || columns % kSizeStep != 0) return false;
  const Shape shape{.rows = kMostTimedDecodeRows,
                    .outputs = outputs,
                    .columns = columns,
                    .out_stride = outputs,
                    .out_dtype = DType::kBF16,
                    .out_alignment = kAlignment};
  const auto* any_scales = static_cast<const float*>(workspace_.data());
  const Rounded product{.weights = {.scales = any_scales, .rows = outputs, .columns = columns},
                        .codes = nullptr,
                        .scales = any_scales,
                        .out = {},
                        .accumulate = Accumulate::kOverwrite};
  return Plan(static_cast<cublasLtHandle_t>(handle_), shape, product).is_possible();
}

bool Fp8Product::is_refused(const Rounded& product) const {
  auto found = plans_.find(shape_of(product));
  return found != plans_.end() && !found->second->is_possible();
}

Fp8Product::Plan& Fp8Product::plan_for(cudaStream_t stream, const Rounded& product) {
  const Shape shape = shape_of(product);
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan) return *plan;
  plan = std::make_unique<Plan>(static_cast<cublasLtHandle_t>(handle_), shape, product);
  try {
    choose(stream, *plan, product);
  } catch (const Failure& failure) {
    if (failure.code() != ErrorCode::kExhausted) throw;  // else no room to try: the first one
    plan->choose(0);
  }
  return *plan;
}

// Every proposal runs, with cold caches as in a model; the first one that works where no time is
// taken. Runs that do not count write somewhere else, so that nothing is added twice.
void Fp8Product::choose(cudaStream_t stream, Plan& plan, const Rounded& product) const {
  const int64_t rows = product.out.rows;
  const bool comes_again = rows <= kMostTimedDecodeRows || rows % kTimedPrefillStep == 0;
  const Tensor spare(device_, product.out.dtype, rows, product.out.row_stride);
  Rounded trial = product;
  trial.out.data = spare.view().data;
  StreamStopwatch watch(stream);
  float best_ms = std::numeric_limits<float>::infinity();
  int best = -1;
  for (int i = 0; i < plan.num_proposals(); ++i) {
    plan.choose(i);
    bool works = true;
    const float ms = watch.fastest(
        is_timed_ && comes_again ? kRepeats : 1,
        [&] {
          check_cuda(cudaMemsetAsync(workspace_.data(), 0, workspace_.bytes(), stream),
                     "sweep the cache");
        },
        [&] {
          works &= plan.multiply(static_cast<cublasLtHandle_t>(handle_), trial, workspace_,
                                 stream) == CUBLAS_STATUS_SUCCESS;
        });
    if (!works || ms >= best_ms) continue;
    best_ms = ms;
    best = i;
    if (!is_timed_ || !comes_again) break;
  }
  if (best < 0) return plan.set_impossible();
  plan.choose(best);
}

std::optional<RoundedPlace> Fp8Product::place_for(TensorView rows, const Buffer& room) {
  const Expected expected = std::exchange(expected_, {});
  is_prepared_ = false;
  if (!has_run_ || expected.weights == nullptr || !is_same(expected.in, rows) ||
      rows.rows < kLeastPreparedRows || !can_multiply(*expected.weights, rows, room))
    return std::nullopt;
  is_prepared_ = true;
  expected_ = expected;
  return place_in(room, rows.rows);
}

bool Fp8Product::run(cudaStream_t stream, const Product& product, const Buffer& room) {
  const auto& [weights, in, out, accumulate, bias, math] = product;
  const bool is_ready = std::exchange(is_prepared_, false) && expected_.weights == &weights &&
                        is_same(expected_.in, in);
  if (!can_multiply(weights, in, room)) return false;
  const RoundedPlace place = place_in(room, in.rows);
  Rounded rounded{weights.fp8(), place.codes, place.scales, out, accumulate};
  if (is_refused(rounded)) return false;
  if (!is_ready) quantize_rows(stream, in, place.codes, place.scales);
  const Plan& plan = plan_for(stream, rounded);
  if (!plan.is_possible()) return false;
  if (bias != nullptr) {
    spread_bias(stream, bias, accumulate, out);
    rounded.accumulate = Accumulate::kAdd;
  }
  check_cublas(plan.multiply(static_cast<cublasLtHandle_t>(handle_), rounded, workspace_, stream),
               "multiply matrices of 8-bit floats");
  has_run_ = true;
  return true;
}

}  // namespace droidspeak::cuda
