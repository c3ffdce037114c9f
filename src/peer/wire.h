// A TCP connection over which two nodes meet, and which then stays: its end is the other's. Sends
// and reads what it can without waiting, and never more than is wanted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/file_descriptor.h"
#include "peer/peer_address.h"
#include "peer/socket_watch.h"

namespace droidspeak {

class Wire {
 public:
  // Is watched under this name as long as it lasts. `watch` outlives it.
  Wire(FileDescriptor socket, SocketWatch& watch, uint64_t name);
  // Begins to connect.
  static Result<Wire> connect(const PeerAddress& address, SocketWatch& watch, uint64_t name);

  void send(std::span<const std::byte> bytes);
  // Moves what can be moved until `wanted` bytes have come. False when the connection has ended.
  bool progress(size_t wanted);

  // What has come and was not taken.
  std::span<const std::byte> received() const { return received_; }

  void take_all() { received_.clear(); }

 private:
  bool send_some();
  bool receive_some(size_t wanted);

  FileDescriptor socket_;
  SocketWatch* watch_;
  uint64_t name_;
  bool is_watched_for_writing_ = true;
  std::vector<std::byte> to_send_;
  std::vector<std::byte> received_;
};

// One that listens, without waiting in accept(). Throws Failure.
FileDescriptor listen_on(const PeerAddress& address);
// Where it really listens (port 0: any free one).
PeerAddress address_of(const FileDescriptor& listener);

}  // namespace droidspeak
