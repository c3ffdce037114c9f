#include "codec/decoding_device.h"

namespace droidspeak {

DecodingDevice make_decoding_device() {
  if (!cuda_is_available()) return {};
  auto device = make_cuda_device();
  auto kernel = make_piece_kernel(*device);
  return {std::move(device), std::move(kernel)};
}

}  // namespace droidspeak
