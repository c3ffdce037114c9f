#include "codec/decoding_device.h"
#include "codec/host_piece_kernel.h"

namespace droidspeak {

DecodingDevice make_decoding_device() {
  return {make_cpu_device(), std::make_unique<HostPieceKernel>()};
}

}  // namespace droidspeak
