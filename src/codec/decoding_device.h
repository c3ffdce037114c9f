// The device that tests of DeviceDecoder run on: each test binary has its own.
#pragma once

#include <memory>

#include "device/device.h"
#include "ops/piece_kernel.h"

namespace droidspeak {

struct DecodingDevice {
  std::unique_ptr<Device> device;  // null: there is none here
  std::unique_ptr<PieceKernel> kernel;
};

DecodingDevice make_decoding_device();

}  // namespace droidspeak
