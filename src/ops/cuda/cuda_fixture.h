// What the tests of the CUDA operations share: a device, operations of both precisions, tensors and
// paged caches that are filled from and read back into plain floats.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kv/kv_cache.h"
#include "ops/cpu/kv_fixture.h"
#include "ops/cpu/reference.h"
#include "ops/ops.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak::cuda {

using cpu::Floats;

// Floats in device memory as a tensor of f32, f16 or bf16.
class DeviceFloats {
 public:
  DeviceFloats(Device& device, DType dtype, const Floats& values, int64_t rows)
      : device_(device), tensor_(device, dtype, rows, std::ssize(values) / rows) {
    std::vector<uint16_t> halves;
    for (float value : values)
      halves.push_back(dtype == DType::kF16 ? f16_from_float(value) : bf16_from_float(value));
    const void* data = dtype == DType::kF32 ? static_cast<const void*>(values.data())
                                            : static_cast<const void*>(halves.data());
    device.to_device(tensor_.view().data, data, bytes());
  }

  TensorView view() const { return tensor_.view(); }

  const float* f32() const { return tensor_.view().f32(); }

  Floats read() const {
    std::vector<std::byte> raw(bytes());
    device_.to_host(raw.data(), tensor_.view().data, raw.size());
    return cpu::dequantized(tensor_.view().dtype, raw, tensor_.rows() * tensor_.columns());
  }

 private:
  size_t bytes() const {
    return bytes_of(tensor_.view().dtype, tensor_.rows() * tensor_.columns());
  }

  Device& device_;
  Tensor tensor_;
};

// A paged cache on the device with a mirror on the host for reading it.
class DeviceKv {
 public:
  DeviceKv(Device& host, Device& device, const KvLayout& layout, int32_t num_blocks)
      : device_(device),
        mirror_(host, layout.dtype, layout.num_kv_heads, layout.head_dim, num_blocks),
        cache_(device, layout, static_cast<size_t>(num_blocks) * layout.block_bytes()) {}

  KvLayerView view() const { return cache_.layer(0); }

  std::vector<int32_t> take_blocks(int32_t tokens) { return mirror_.take_blocks(tokens); }

  Floats k_rows(std::span<const int32_t> blocks, int32_t tokens) {
    return rows(view().k, view().k_scale, blocks, tokens);
  }

  Floats v_rows(std::span<const int32_t> blocks, int32_t tokens) {
    return rows(view().v, view().v_scale, blocks, tokens);
  }

 private:
  Floats rows(const void* data,
              const float* scales,
              std::span<const int32_t> blocks,
              int32_t tokens) {
    const auto count = static_cast<size_t>(cache_.pool().num_blocks());
    std::vector<std::byte> values(count * cache_.layout().half_bytes());
    std::vector<float> host_scales(count * cache_.layout().scale_bytes() / sizeof(float));
    device_.to_host(values.data(), data, values.size());
    if (!host_scales.empty())
      device_.to_host(host_scales.data(), scales, host_scales.size() * sizeof(float));
    return mirror_.rows(values.data(), host_scales.empty() ? nullptr : host_scales.data(), blocks,
                        tokens);
  }

  Device& device_;
  cpu::KvFixture mirror_;
  KvCache cache_;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_is_available()) GTEST_SKIP() << "no CUDA device";
    device_ = make_cuda_device();
    fast_ = make_cuda_ops(*device_, Precision::kFast);
    exact_ = make_cuda_ops(*device_, Precision::kExact);
  }

  // Operations whose activations are of this dtype.
  Ops& ops(DType dtype) { return dtype == DType::kF32 ? *exact_ : *fast_; }

  DeviceFloats on_device(DType dtype, const Floats& values, int64_t rows) {
    return {*device_, dtype, values, rows};
  }

  DeviceFloats f32(const Floats& values) { return {*device_, DType::kF32, values, 1}; }

  // Values that bf16 holds exactly, so that only the operation rounds.
  Floats random_values(DType dtype, int64_t count, float deviation = 1) {
    Floats values = cpu::random_floats(random_, count, deviation);
    if (dtype == DType::kBF16) {
      for (float& value : values) value = float_from_bf16(bf16_from_float(value));
    }
    return values;
  }

  std::mt19937 random_{21};
  std::unique_ptr<Device> host_ = make_cpu_device();
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> fast_;
  std::unique_ptr<Ops> exact_;
};

inline constexpr DType kActivationDtypes[] = {DType::kF32, DType::kBF16};

// Relative to the largest magnitude: a few roundings of the dtype.
inline float tolerance_of(DType dtype) {
  return dtype == DType::kF32 ? 3e-6f : 6e-3f;
}

}  // namespace droidspeak::cuda
