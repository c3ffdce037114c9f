// A file that lives in memory, for readers that take paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"

namespace droidspeak {

class MemoryFile {
 public:
  MemoryFile(const uint8_t* data, size_t size) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    check(fd_ >= 0, "memfd_create works");
    check(::write(fd_, data, size) == static_cast<ssize_t>(size), "the input is written");
  }

  ~MemoryFile() { ::close(fd_); }

  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace droidspeak
