#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/size.h"
#include "device/cuda/probe.h"

namespace droidspeak {
namespace cuda {
namespace {

class CudaEvent final : public Event {
 public:
  Marker marker;
};

bool is_pinned(const void* host_data) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, host_data), "look at a host address");
  return attributes.type == cudaMemoryTypeHost;
}

// Copies of pinned memory are sent many at a time: one call for each would take longer than the
// copies of small pieces (24 KiB each: 8 GB/s against 47).
class CudaCopyLane final : public CopyLane {
 public:
  explicit CudaCopyLane(cudaStream_t compute) : compute_(compute) {}

  // Copies read and write memory of the caller: none is under way when the lane is gone.
  ~CudaCopyLane() override { cudaStreamSynchronize(stream_.get()); }

  void to_device(void* device_data, const void* host_data, size_t bytes) override {
    if (is_pinned(host_data)) return add(device_data, host_data, bytes);
    check_cuda(
        cudaMemcpyAsync(device_data, host_data, bytes, cudaMemcpyHostToDevice, stream_.get()),
        "copy to the device on a lane");
  }

  void to_host(void* host_data, const void* device_data, size_t bytes) override {
    if (is_pinned(host_data)) return add(host_data, device_data, bytes);
    check_cuda(
        cudaMemcpyAsync(host_data, device_data, bytes, cudaMemcpyDeviceToHost, stream_.get()),
        "copy to the host on a lane");
  }

  std::unique_ptr<Event> record() override {
    send();
    auto event = std::make_unique<CudaEvent>();
    event->marker.record(stream_.get());
    return event;
  }

  void wait_for_compute() override {
    send();
    end_.record(compute_);
    end_.hold(stream_.get());
  }

  void synchronize() override {
    send();
    end_.record(stream_.get());
    end_.wait();
  }

 private:
  static constexpr size_t kBatch = 64;

  void add(void* to, const void* from, size_t bytes) {
    if (bytes == 0) return;
    to_.push_back(to);
    from_.push_back(from);
    bytes_.push_back(bytes);
    if (bytes_.size() == kBatch) send();
  }

  void send() {
    if (bytes_.empty()) return;
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    size_t first = 0;  // the attributes hold from the first copy on
    check_cuda(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), bytes_.size(),
                                    &attributes, &first, 1, stream_.get()),
               "copy on a lane");
    to_.clear();
    from_.clear();
    bytes_.clear();
  }

  cudaStream_t compute_;
  Stream stream_;
  Marker end_;
  // Copies that wait to be sent together.
  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<size_t> bytes_;
};

std::string describe_device() {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("device \"cuda\": there is none ({}); use --device cpu",
                              status == cudaSuccess ? "no device" : cudaGetErrorString(status)));
  }
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, 0), "read the device's properties");
  if (!has_kernels_for_device()) {
    throw Failure(ErrorCode::kUnavailable,
                  fmt::format("device \"cuda\": this build has no kernels for {} (compute "
                              "capability {}.{}); set CMAKE_CUDA_ARCHITECTURES and build again, or "
                              "use --device cpu",
                              properties.name, properties.major, properties.minor));
  }
  return fmt::format("cuda ({})", properties.name);
}

}  // namespace

void throw_cuda_failure(cudaError_t status, std::string_view what) {
  cudaGetLastError();  // errors that do not stick are forgotten here
  ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kExhausted : ErrorCode::kUnavailable;
  throw Failure(code, fmt::format("CUDA could not {}: {} ({})", what, cudaGetErrorString(status),
                                  cudaGetErrorName(status)));
}

CudaDevice::CudaDevice() : name_(describe_device()) {}

Buffer CudaDevice::allocate(size_t bytes) {
  void* data = nullptr;
  cudaError_t status = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("cannot allocate {} of GPU memory: {} are free", format_size(bytes),
                              format_size(free_bytes())));
  }
  check_cuda(status, "allocate memory");
  Buffer buffer(data, bytes, [](void* memory, size_t) { cudaFree(memory); });
  check_cuda(cudaMemsetAsync(data, 0, bytes, stream()), "clear new memory");
  Marker cleared;  // before a copy lane may write there
  cleared.record(stream());
  cleared.wait();
  return buffer;
}

Buffer CudaDevice::allocate_host(size_t bytes) {
  void* data = nullptr;
  cudaError_t status = cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("cannot allocate {} of pinned host memory", format_size(bytes)));
  }
  check_cuda(status, "allocate pinned host memory");
  std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0});
  return {data, bytes, [](void* memory, size_t) { cudaFreeHost(memory); }};
}

size_t CudaDevice::free_bytes() const {
  size_t free = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "ask for free memory");
  return free;
}

void CudaDevice::to_device(void* device_data, const void* host_data, size_t bytes) {
  check_cuda(cudaMemcpyAsync(device_data, host_data, bytes, cudaMemcpyHostToDevice, stream()),
             "copy to the device");
}

void CudaDevice::to_host(void* host_data, const void* device_data, size_t bytes) {
  check_cuda(cudaMemcpyAsync(host_data, device_data, bytes, cudaMemcpyDeviceToHost, stream()),
             "copy to the host");
  synchronize();
}

void CudaDevice::synchronize() {
  end_.record(stream());
  end_.wait();
}

void CudaDevice::wait(const Event& event) {
  static_cast<const CudaEvent&>(event).marker.hold(stream());
}

std::unique_ptr<CopyLane> CudaDevice::make_copy_lane() {
  return std::make_unique<CudaCopyLane>(stream());
}

}  // namespace cuda

std::unique_ptr<Device> make_cuda_device() {
  return std::make_unique<cuda::CudaDevice>();
}

bool cuda_is_available() {
  int count = 0;
  bool has_device = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return has_device && cuda::has_kernels_for_device();
}

}  // namespace droidspeak
