// Which of many sockets have something to do. For one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/file_descriptor.h"

namespace droidspeak {

class SocketWatch {
 public:
  enum class For { kReading, kReadingAndWriting };

  SocketWatch();  // throws Failure: no descriptors are left

  // Can be read when some socket is ready: to wait for that and other things.
  int descriptor() const { return epoll_.get(); }

  // `name` is what ready() says. A socket that is closed is watched no more. False when the system
  // lets no more be watched: nothing will be said of it.
  bool add(int socket, uint64_t name, For what);
  void change(int socket, uint64_t name, For what);
  void remove(int socket);

  // Does not wait.
  std::vector<uint64_t> ready();

 private:
  bool control(int operation, int socket, uint64_t name, For what);

  FileDescriptor epoll_;
};

}  // namespace droidspeak
