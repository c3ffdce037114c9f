#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/quantized/expand.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 128;

template <class From, class To>
__global__ void embed_kernel(
    const From* table, const int32_t* tokens, int columns, To* out, int64_t out_stride) {
  const From* from = table + static_cast<int64_t>(tokens[blockIdx.x]) * columns;
  To* to = out + blockIdx.x * out_stride;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads)
    to[i] = from_float<To>(to_float(from[i]));
}

}  // namespace

void embed(cudaStream_t stream, const CudaMatrix& table, const int32_t* tokens, TensorView out) {
  for (const StripStack& stack : table.stacks()) embed_strips(stream, stack, tokens, out);
  if (table.is_strips()) return;
  const TensorView rows = table.view();
  with_activation_type(rows.dtype, [&]<class From>(From) {
    with_activation_type(out.dtype, [&]<class To>(To) {
      embed_kernel<<<static_cast<unsigned>(out.rows), kThreads, 0, stream>>>(
          static_cast<const From*>(rows.data), tokens, static_cast<int>(out.columns),
          static_cast<To*>(out.data), out.row_stride);
    });
  });
  check_launch("look up embeddings");
}

}  // namespace droidspeak::cuda
