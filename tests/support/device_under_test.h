// Runs a test on every kind of device; those that this build or machine does not have are skipped.
#pragma once

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "device/device.h"
#include "ops/ops.h"

namespace droidspeak {

inline bool has_device(DeviceKind kind) {
  return kind == DeviceKind::kCpu || cuda_is_available();
}

inline std::unique_ptr<Device> make_test_device(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? make_cpu_device() : make_cuda_device();
}

inline std::unique_ptr<Ops> make_test_ops(Device& device, Precision precision) {
  return device.kind() == DeviceKind::kCpu ? make_cpu_ops(device, 2)
                                           : make_cuda_ops(device, precision);
}

inline std::string device_name(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "cpu" : "cuda";
}

// f32 rows of a tensor in device memory.
inline std::vector<std::vector<float>> read_rows(Device& device, TensorView view) {
  std::vector<std::vector<float>> rows;
  for (int64_t i = 0; i < view.rows; ++i) {
    rows.emplace_back(static_cast<size_t>(view.columns));
    device.to_host(rows.back().data(), view.f32_row(i), rows.back().size() * sizeof(float));
  }
  return rows;
}

}  // namespace droidspeak
