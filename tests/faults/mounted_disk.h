// A small file system in memory, mounted for a test.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>

#include <gtest/gtest.h>
#include <sys/mount.h>

namespace droidspeak {

class MountedDisk {
 public:
  // `size` as mount(8) takes it.
  MountedDisk(std::filesystem::path folder, const std::string& size) : folder_(std::move(folder)) {
    std::string options = "mode=0700,size=" + size;
    if (::mount("tmpfs", folder_.c_str(), "tmpfs", 0, options.c_str()) != 0) error_ = errno;
  }

  ~MountedDisk() {
    if (is_mounted()) ::umount2(folder_.c_str(), MNT_DETACH);
  }

  MountedDisk(const MountedDisk&) = delete;
  MountedDisk& operator=(const MountedDisk&) = delete;

  bool is_mounted() const { return error_ == 0; }

  std::string why_not() const {
    return std::string("cannot mount a tmpfs here (needs CAP_SYS_ADMIN): ") + std::strerror(error_);
  }

  bool make_read_only() {
    return ::mount(nullptr, folder_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  std::filesystem::path folder_;
  int error_ = 0;
};

}  // namespace droidspeak
