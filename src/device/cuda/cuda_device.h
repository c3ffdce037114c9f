// The first CUDA device: one compute stream, pinned host memory, and copy lanes with streams of
// their own. Waits are waits for events; nothing synchronises the whole device.
#pragma once

#include "device/cuda/cuda_handles.h"
#include "device/device.h"

namespace droidspeak::cuda {

class CudaDevice final : public Device {
 public:
  CudaDevice();

  DeviceKind kind() const override { return DeviceKind::kCuda; }

  std::string name() const override { return name_; }

  Buffer allocate(size_t bytes) override;
  Buffer allocate_host(size_t bytes) override;
  size_t free_bytes() const override;
  void to_device(void* device_data, const void* host_data, size_t bytes) override;
  void to_host(void* host_data, const void* device_data, size_t bytes) override;
  void synchronize() override;
  void wait(const Event& event) override;
  std::unique_ptr<CopyLane> make_copy_lane() override;

  cudaStream_t stream() const { return compute_.get(); }

 private:
  std::string name_;
  Stream compute_;
  Marker end_;  // of the compute stream, for synchronize()
};

}  // namespace droidspeak::cuda
