#include "ops/cuda/fp8/fp8_product.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/products/cublas_lt.h"

namespace droidspeak::cuda {
namespace {

constexpr int64_t kSizeStep = 16;  // that the library wants of both sides of the matrix
constexpr size_t kAlignment = 256;
constexpr int64_t kAnyRows = 64;  // that a matrix is asked for
// Row counts come and go; a plan anew takes microseconds.
constexpr size_t kMostPlans = 512;
// Sums stay in the tensor cores, which keep 14 bits of them, and are not brought into f32 now and
// then (docs/decisions/032-8-bit-floats-on-the-gpu.md).
constexpr int8_t kFastSums = 1;

size_t scale_bytes(int64_t rows) {
  return (static_cast<size_t>(rows) * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment;
}

RoundedPlace place_in(const Buffer& room, int64_t rows) {
  return {static_cast<uint8_t*>(room.data()) + scale_bytes(rows), static_cast<float*>(room.data())};
}

// Rows whose rounded form fits.
int64_t rows_in(const Buffer& room, int64_t columns) {
  const size_t row_bytes = static_cast<size_t>(columns) + sizeof(float);
  return room.bytes() < kAlignment ? 0
                                   : static_cast<int64_t>((room.bytes() - kAlignment) / row_bytes);
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

  // The first proposal that works is kept.
  void multiply(cublasLtHandle_t handle,
                const Rounded& product,
                const Buffer& workspace,
                cudaStream_t stream) {
    const float one = 1;
    const float keep = product.accumulate == Accumulate::kAdd ? 1.0f : 0.0f;
    set_scales(product);
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (; proposal_ < num_proposals_; ++proposal_) {
      const cublasLtMatmulAlgo_t& algorithm = proposals_[static_cast<size_t>(proposal_)].algo;
      status = cublasLtMatmul(handle, operation_.get(), &one, product.weights.codes, weights_.get(),
                              product.in.codes, in_.get(), &keep, product.out.data, out_.get(),
                              product.out.data, out_.get(), &algorithm, workspace.data(),
                              workspace.bytes(), stream);
      if (status == CUBLAS_STATUS_SUCCESS) return;
    }
    check_cublas(status, fmt::format("multiply {} rows with {} x {} 8-bit floats", product.out.rows,
                                     product.weights.rows, product.weights.columns));
  }

 private:
  void set_scales(const Rounded& product) const {
    operation_.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.weights.scales);
    operation_.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.in.scales);
  }

  Description operation_;
  MatrixLayout weights_;
  MatrixLayout in_;
  MatrixLayout out_;
  std::array<cublasLtMatmulHeuristicResult_t, kMostProposals> proposals_{};
  int num_proposals_ = 0;
  int proposal_ = 0;
};

Fp8Product::Fp8Product(void* handle, const Buffer& workspace)
    : handle_(handle), workspace_(workspace) {}

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
  if (outputs == 0 || columns == 0 || outputs % kSizeStep != 0 || columns % kSizeStep != 0)
    return false;
  const Shape shape{.rows = kAnyRows,
                    .outputs = outputs,
                    .columns = columns,
                    .out_stride = outputs,
                    .out_dtype = DType::kBF16,
                    .out_alignment = kAlignment};
  auto* any_scales = static_cast<float*>(workspace_.data());
  const Rounded product{.weights = {.scales = any_scales, .rows = outputs, .columns = columns},
                        .in = {.codes = nullptr, .scales = any_scales},
                        .out = {},
                        .accumulate = Accumulate::kOverwrite};
  return Plan(static_cast<cublasLtHandle_t>(handle_), shape, product).is_possible();
}

Fp8Product::Plan& Fp8Product::plan_for(const Rounded& product) {
  const Shape shape = shape_of(product);
  if (plans_.size() >= kMostPlans && !plans_.contains(shape)) plans_.clear();
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (!plan) plan = std::make_unique<Plan>(static_cast<cublasLtHandle_t>(handle_), shape, product);
  return *plan;
}

std::optional<RoundedPlace> Fp8Product::place_for(TensorView rows, const Buffer& room) {
  prepared_.reset();
  const std::optional<Expected> expected = std::exchange(expected_, std::nullopt);
  if (!expected || !expected->weights->is_fp8() || !is_same(expected->in, rows) ||
      rows.rows < kManyNormRows || rows.rows > rows_in(room, rows.columns))
    return std::nullopt;
  prepared_ = expected;
  return place_in(room, rows.rows);
}

void Fp8Product::run(cudaStream_t stream, const Product& product, const Buffer& room) {
  const auto& [weights, in, out, accumulate, bias, math] = product;
  const std::optional<Expected> prepared = std::exchange(prepared_, std::nullopt);
  const bool is_prepared = prepared && prepared->weights == &weights && is_same(prepared->in, in);
  const int64_t most = rows_in(room, in.columns);
  check(most > 0, "room for a rounded row");
  for (int64_t begin = 0; begin < in.rows; begin += most) {
    const int64_t end = std::min(begin + most, in.rows);
    const RoundedPlace place = place_in(room, end - begin);
    if (!is_prepared) quantize_rows(stream, in.row_range(begin, end), place);
    multiply(stream, {weights.fp8(), place, out.row_range(begin, end), accumulate}, bias);
  }
}

void Fp8Product::multiply(cudaStream_t stream, const Rounded& product, const float* bias) {
  Rounded whole = product;
  if (bias != nullptr) {
    spread_bias(stream, bias, product.accumulate, product.out);
    whole.accumulate = Accumulate::kAdd;
  }
  plan_for(whole).multiply(static_cast<cublasLtHandle_t>(handle_), whole, workspace_, stream);
}

}  // namespace droidspeak::cuda
