// For tests: workers that meet as nodes do, without a client or a server around them.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/test_wait.h"
#include "peer/peer_door.h"
#include "peer/peer_knock.h"
#include "peer/test_nodes.h"
#include "peer/ucx_worker.h"

namespace droidspeak {

// Lets in whoever has the secret.
class OpenDoor {
 public:
  OpenDoor(UcxWorker& worker, const std::string& secret)
      : worker_(worker),
        door_({.listen = *parse_peer_address("127.0.0.1:0"),
               .secret = secret,
               .deadline = std::chrono::minutes(5)},
              {.on_come = [this](uint64_t, const PeerIntroduction& guest) { return come(guest); },
               .on_go = [](uint64_t) {},
               .on_refused = [](std::string_view) {}}) {}

  std::string address() const { return door_.address().text(); }

  void progress() { door_.progress(std::chrono::steady_clock::now()); }

  // To who came last.
  ucp_ep_h last() const { return last_; }

 private:
  std::optional<PeerIntroduction> come(const PeerIntroduction& guest) {
    uint64_t place = worker_.next_place(guest.address);
    Result<ucp_ep_h> endpoint = worker_.connect(guest.address, place);
    if (!endpoint) return std::nullopt;
    last_ = *endpoint;
    return PeerIntroduction{worker_.address(), place};
  }

  UcxWorker& worker_;
  PeerDoor door_;
  ucp_ep_h last_ = nullptr;
};

// A way to a node, for as long as it lives.
struct TestWay {
  PeerKnock knock;
  ucp_ep_h endpoint = nullptr;
};

// `meanwhile` is called while it waits.
inline PeerKnock meet(
    UcxWorker& worker,
    SocketWatch& watch,
    const std::string& address,
    const std::function<void()>& meanwhile = [] {}) {
  PeerKnock knock =
      PeerKnock::begin(*parse_peer_address(address), watch, {kSecret, {worker.address()}, 0})
          .take_or_throw();
  wait_until([&] {
    meanwhile();
    worker.progress();
    PeerKnock::State state = knock.progress();
    if (state != PeerKnock::State::kUnderWay && state != PeerKnock::State::kMet)
      throw Failure(ErrorCode::kUnavailable, "the meeting has ended");
    return state == PeerKnock::State::kMet;
  });
  return knock;
}

inline TestWay find_way(
    UcxWorker& worker,
    SocketWatch& watch,
    const std::string& address,
    const std::function<void()>& meanwhile = [] {}) {
  PeerKnock knock = meet(worker, watch, address, meanwhile);
  ucp_ep_h endpoint = worker.connect(knock.node().address, knock.node().place).take_or_throw();
  return {std::move(knock), endpoint};
}

}  // namespace droidspeak
