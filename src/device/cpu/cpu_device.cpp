#include <cstdlib>
#include <cstring>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/size.h"
#include "device/device.h"

namespace droidspeak {
namespace {

// Anonymous maps are zero and cost no memory until touched; large ones ask for huge pages.
Buffer allocate_mapped(size_t bytes) {
  size_t rounded = (bytes + 4095) / 4096 * 4096;
  if (rounded == 0) rounded = 4096;
  void* data = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Failure(ErrorCode::kExhausted,
                  fmt::format("cannot allocate {} of host memory", format_size(bytes)));
  }
  if (rounded >= (size_t{4} << 20)) ::madvise(data, rounded, MADV_HUGEPAGE);
  return {data, rounded, [](void* p, size_t size) { ::munmap(p, size); }};
}

class CpuEvent final : public Event {};

class CpuCopyLane final : public CopyLane {
 public:
  void to_device(void* device_data, const void* host_data, size_t bytes) override {
    std::memcpy(device_data, host_data, bytes);
  }

  void to_host(void* host_data, const void* device_data, size_t bytes) override {
    std::memcpy(host_data, device_data, bytes);
  }

  std::unique_ptr<Event> record() override { return std::make_unique<CpuEvent>(); }

  void wait_for_compute() override {}

  void synchronize() override {}
};

class CpuDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }

  std::string name() const override { return "cpu"; }

  Buffer allocate(size_t bytes) override { return allocate_mapped(bytes); }

  Buffer allocate_host(size_t bytes) override { return allocate_mapped(bytes); }

  size_t free_bytes() const override {
    return static_cast<size_t>(::sysconf(_SC_AVPHYS_PAGES)) *
           static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  }

  void to_device(void* device_data, const void* host_data, size_t bytes) override {
    std::memcpy(device_data, host_data, bytes);
  }

  void to_host(void* host_data, const void* device_data, size_t bytes) override {
    std::memcpy(host_data, device_data, bytes);
  }

  void synchronize() override {}

  void wait(const Event&) override {}

  std::unique_ptr<CopyLane> make_copy_lane() override { return std::make_unique<CpuCopyLane>(); }
};

}  // namespace

std::unique_ptr<Device> make_cpu_device() {
  return std::make_unique<CpuDevice>();
}

}  // namespace droidspeak
