#include "ops/cuda/products/linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/products/cublas_lt.h"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/quantized/expand.h"
#include "ops/cuda/stopwatch.h"

namespace droidspeak::cuda {
namespace {

// For quantised weights as bf16: the largest matrix of a layer of the 8B shape has 224 MiB.
constexpr size_t kExpandedBytes = size_t{256} << 20;
constexpr int64_t kExpandedStep = 256;  // matrix rows, unless all of them fit
// Row counts that are worth timing: they come again. Others take what is proposed first.
constexpr int64_t kMostTimedDecodeRows = 64;
constexpr int64_t kTimedPrefillStep = 4096;
// What our own product saves besides its time alone, as measured: it takes norms and activations
// along, and reads its matrix while the kernel before still runs.
constexpr float kJoinedGainMs = 0.002f;

void* make_handle() {
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "start");
  return handle;
}

cublasComputeType_t compute_type(Math math) {
  return math == Math::kFull ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
}

}  // namespace

// Our rows are cuBLAS's columns: out^T [outputs, rows] = weights [outputs, columns] * in^T
// [columns, rows], and the weights as they lie are [columns, outputs] to be transposed.
class Linear::Plan {
 public:
  enum class Way { kPlain, kLibrary, kFewRows };

  Plan(cublasLtHandle_t handle, const Shape& s)
      : operation_(compute_type(s.dtype == DType::kF32 ? s.math : Math::kFull)),
        weights_(cuda_type(s.dtype), s.columns, s.outputs, s.columns),
        in_(cuda_type(s.dtype), s.columns, s.rows, s.in_stride),
        out_(cuda_type(s.out_dtype), s.outputs, s.rows, s.out_stride) {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.in_alignment);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.out_alignment);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.out_alignment);
    cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), weights_.get(), in_.get(), out_.get(),
                                   out_.get(), preference.get(), kMostProposals, proposals_.data(),
                                   &num_proposals_);
    choose(num_proposals_ > 0 ? Way::kLibrary : Way::kPlain);  // plain: cuBLASLt knows no way
  }

  Way way() const { return way_; }

  int num_proposals() const { return num_proposals_; }

  void choose(Way way, int proposal = 0) {
    way_ = way;
    proposal_ = proposal;
  }

  void multiply(cublasLtHandle_t handle,
                const Product& product,
                const Buffer& workspace,
                cudaStream_t stream) const {
    const float one = 1;
    const float keep = product.accumulate == Accumulate::kAdd ? 1.0f : 0.0f;
    const cublasLtMatmulAlgo_t& algorithm = proposals_[static_cast<size_t>(proposal_)].algo;
    check_cublas(cublasLtMatmul(handle, operation_.get(), &one, product.weights.view().data,
                                weights_.get(), product.in.data, in_.get(), &keep, product.out.data,
                                out_.get(), product.out.data, out_.get(), &algorithm,
                                workspace.data(), workspace.bytes(), stream),
                 "multiply matrices");
  }

 private:
  Description operation_;
  MatrixLayout weights_;
  MatrixLayout in_;
  MatrixLayout out_;
  std::array<cublasLtMatmulHeuristicResult_t, kMostProposals> proposals_{};
  int num_proposals_ = 0;
  Way way_ = Way::kPlain;
  int proposal_ = 0;
};

// Chooses what a plan does by running it every possible way, with cold caches as in a model.
class Linear::Tuner {
 public:
  Tuner(Linear& linear, Plan& plan, const Product& product)
      : linear_(linear), plan_(plan), product_(product), watch_(linear.stream_) {
    if (product.accumulate == Accumulate::kOverwrite) return;
    // Runs that do not count write somewhere else.
    spare_ = Tensor(linear.device_, product.out.dtype, product.out.rows, product.out.row_stride);
    product_.out.data = spare_.view().data;
  }

  void choose() {
    const bool is_library_possible = plan_.way() == Plan::Way::kLibrary;
    if (linear_.paths_.few_row_products &&
        few_rows_support(product_.weights, product_.in, product_.out))
      consider(Plan::Way::kFewRows, 0);
    const int proposals = is_library_possible ? plan_.num_proposals() : 0;
    for (int i = 0; i < proposals; ++i) consider(Plan::Way::kLibrary, i);
    plan_.choose(best_, best_proposal_);
  }

 private:
  static constexpr int kRepeats = 3;

  void consider(Plan::Way way, int proposal) {
    plan_.choose(way, proposal);
    try {
      float ms = watch_.fastest(
          kRepeats, [&] { sweep_cache(); }, [&] { linear_.run_plan(plan_, product_); });
      if (way == Plan::Way::kFewRows) ms -= kJoinedGainMs;
      if (ms < best_ms_) {
        best_ms_ = ms;
        best_ = way;
        best_proposal_ = proposal;
      }
    } catch (const Failure& failure) {
      if (failure.code() == ErrorCode::kExhausted) throw;
      check_cuda(cudaGetLastError(), "try an algorithm");  // else it was only not possible
    }
  }

  void sweep_cache() {
    const Buffer& memory = linear_.workspace_;
    check_cuda(cudaMemsetAsync(memory.data(), 0, memory.bytes(), linear_.stream_),
               "sweep the cache");
  }

  Linear& linear_;
  Plan& plan_;
  Product product_;
  StreamStopwatch watch_;
  Tensor spare_;
  float best_ms_ = std::numeric_limits<float>::infinity();
  Plan::Way best_ = Plan::Way::kPlain;
  int best_proposal_ = 0;
};

Linear::Linear(CudaDevice& device, const FastPaths& paths)
    : device_(device),
      paths_(paths),
      stream_(device.stream()),
      handle_(make_handle()),
      workspace_(device.allocate(kWorkspaceBytes)),
      fp8_(handle_, workspace_) {}

Linear::~Linear() {
  cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_));
}

Linear::Plan& Linear::plan_for(const Product& product) {
  const auto& [weights, in, out, accumulate, bias, math] = product;
  const Shape shape{.rows = in.rows,
                    .outputs = weights.rows(),
                    .columns = weights.columns(),
                    .in_stride = in.row_stride,
                    .out_stride = out.row_stride,
                    .dtype = in.dtype,
                    .out_dtype = out.dtype,
                    .math = math,
                    .in_alignment = alignment_of(in.data),
                    .out_alignment = alignment_of(out.data)};
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (plan) return *plan;
  plan = std::make_unique<Plan>(static_cast<cublasLtHandle_t>(handle_), shape);
  choose(*plan, shape, product);
  return *plan;
}

void Linear::choose(Plan& plan, const Shape& shape, const Product& product) {
  const bool comes_again =
      shape.rows <= kMostTimedDecodeRows || shape.rows % kTimedPrefillStep == 0;
  if (paths_.timed_choice && comes_again && shape.dtype == DType::kBF16) {
    try {
      Tuner(*this, plan, product).choose();
    } catch (const Failure& failure) {
      if (failure.code() != ErrorCode::kExhausted) throw;  // else no room to try: the first one
    }
  } else if (paths_.few_row_products &&
             few_rows_support(product.weights, product.in, product.out)) {
    plan.choose(Plan::Way::kFewRows);
  }
}

void Linear::make_room_for_expanded() {
  if (expanded_.bytes() == 0) expanded_ = device_.allocate(kExpandedBytes);
}

bool Linear::takes_few_rows(const Product& product) {
  if (!product.weights.is_plain())
    return paths_.few_row_products && few_rows_support(product.weights, product.in, product.out);
  return paths_.few_row_products && product.in.rows > 0 &&
         few_rows_support(product.weights, product.in, product.out) &&
         plan_for(product).way() == Plan::Way::kFewRows;
}

void Linear::run(const Product& product) {
  if (product.in.rows == 0) return;
  if (product.weights.is_plain()) return run_plan(plan_for(product), product);
  const auto& [weights, in, out, accumulate, bias, math] = product;
  if (takes_few_rows(product))
    return multiply_few_rows(stream_, {weights, in, out, accumulate, bias});
  make_room_for_expanded();
  if (weights.is_fp8()) return fp8_.run(stream_, product, expanded_);
  run_expanded(product);
}

void Linear::run_expanded(const Product& product) {
  const auto& [weights, in, out, accumulate, bias, math] = product;
  const auto fitting =
      static_cast<int64_t>(expanded_.bytes() / bytes_of(DType::kBF16, weights.columns()));
  const int64_t most = std::max(int64_t{kStripRows}, fitting / kExpandedStep * kExpandedStep);
  check(most <= fitting, "room for expanded weights");
  fp8_.forget();
  for (const StripStack& stack : weights.stacks()) {
    const int64_t rows = stack.shape.rows;
    for (int64_t begin = 0; begin < rows; begin += rows <= fitting ? rows : most) {
      const int64_t end = rows <= fitting ? rows : std::min(begin + most, rows);
      const TensorView plain{expanded_.data(), DType::kBF16, end - begin, weights.columns(),
                             weights.columns()};
      expand_strips(stream_, stack, begin, plain);
      const CudaMatrix matrix(plain);
      const int64_t first = stack.first_row + begin;
      const Product part{matrix,
                         in,
                         out.column_range(first, stack.first_row + end),
                         accumulate,
                         bias == nullptr ? nullptr : bias + first,
                         math};
      run_plan(plan_for(part), part);
    }
  }
}

void Linear::run_plan(const Plan& plan, const Product& product) {
  const auto& [weights, in, out, accumulate, bias, math] = product;
  if (plan.way() == Plan::Way::kPlain)
    return multiply_plainly(stream_, weights, in, out, accumulate, bias);
  if (plan.way() == Plan::Way::kFewRows)
    return multiply_few_rows(stream_, {weights, in, out, accumulate, bias});
  Product whole = product;
  if (bias != nullptr) {
    spread_bias(stream_, bias, accumulate, out);
    whole.accumulate = Accumulate::kAdd;
  }
  plan.multiply(static_cast<cublasLtHandle_t>(handle_), whole, workspace_, stream_);
}

}  // namespace droidspeak::cuda
