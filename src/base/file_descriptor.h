// An open file of the system, closed when its owner goes.
#pragma once

#include <utility>

#include <unistd.h>

namespace droidspeak {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}

  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }  // negative: none

 private:
  int fd_;
};

}  // namespace droidspeak
