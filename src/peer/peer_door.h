// The port that a node is known by. Whoever comes is a stranger who may say a few bytes within a
// deadline, and is sent away for any other; who shows the secret becomes a guest, learns how to
// reach this node with UCX, and stays until one of the two ends the connection. UCX itself never
// sees what comes in here. For one thread, which it never holds up.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "peer/frames.h"
#include "peer/wire.h"

namespace droidspeak {

class PeerDoor {
 public:
  using Time = std::chrono::steady_clock::time_point;

  struct Options {
    PeerAddress listen;
    std::string secret;
    std::chrono::milliseconds deadline{5000};
  };

  struct Events {
    // A guest and what it says of itself; what to tell it, or nothing: it may not stay.
    std::function<std::optional<PeerIntroduction>(uint64_t guest, const PeerIntroduction&)> on_come;
    // It has ended the connection, or what is said of it has come to its end.
    std::function<void(uint64_t guest)> on_go;
    std::function<void(std::string_view why)> on_refused;
  };

  // Throws Failure when the address cannot be listened on.
  PeerDoor(const Options& options, Events events);

  PeerAddress address() const { return address_of(listener_); }

  // Can be read when progress() has something to do.
  int descriptor() const { return watch_.descriptor(); }

  // When to call it again at the latest.
  Time progress(Time now);

  // Without on_go.
  void close(uint64_t guest) { visitors_.erase(guest); }

 private:
  struct Visitor {
    Wire wire;
    Time since;
    std::shared_ptr<const PeerSession> session{};  // null: has not greeted
    size_t introduction_bytes = 0;                 // 0: not known
    bool is_guest = false;
  };

  void let_in(Time now);
  void make_room();
  size_t num_strangers() const;
  void attend_to(uint64_t name);
  size_t wanted(const Visitor& visitor) const;
  // False: to be sent away.
  bool take_hello(Visitor& visitor);
  bool take_introduction(uint64_t name, Visitor& visitor);
  bool refuse(std::string_view why);
  Time expire(Time now);

  const Options options_;
  const Events events_;
  SocketWatch watch_;
  FileDescriptor listener_;
  bool is_listening_ = false;  // not while the system has no more descriptors
  Time listen_again_{};
  uint64_t next_name_ = 1;
  std::map<uint64_t, Visitor> visitors_;  // in the order in which they came
};

}  // namespace droidspeak
