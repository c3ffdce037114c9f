// Stands in for the CUDA device in builds without CUDA.
#include "base/error.h"
#include "device/device.h"

namespace droidspeak {

std::unique_ptr<Device> make_cuda_device() {
  throw Failure(ErrorCode::kUnavailable,
                "device \"cuda\": this build has no CUDA backend; use --device cpu or build with "
                "the cuda preset");
}

bool cuda_is_available() {
  return false;
}

}  // namespace droidspeak
