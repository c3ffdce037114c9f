// Stands in for the CUDA operations in builds without CUDA.
#include "base/error.h"
#include "ops/ops.h"
#include "ops/piece_kernel.h"

namespace droidspeak {

std::unique_ptr<Ops> make_cuda_ops(Device&, Precision) {
  throw Failure(
      ErrorCode::kUnavailable,
      "device \"cuda\": this build has no CUDA backend; use --device cpu or build with the "
      "cuda preset");
}

std::unique_ptr<PieceKernel> make_piece_kernel(const Device&, int32_t) {
  return nullptr;
}

}  // namespace droidspeak
