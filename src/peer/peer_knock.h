// A client's side of meeting a node: shows that both have the secret, then says how its own worker
// is reached and learns how the node's is. The connection stays; its end is the node's. For one
// thread, which it never holds up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peer/frames.h"
#include "peer/wire.h"

namespace droidspeak {

class PeerKnock {
 public:
  struct Options {
    std::string secret;
    PeerIntroduction introduction;
    uint64_t name = 0;  // in the watch
  };

  // `watch` outlives it.
  static Result<PeerKnock> begin(const PeerAddress& address, SocketWatch& watch, Options options);

  enum class State {
    kUnderWay,
    kMet,      // said once
    kStays,    // met before
    kEnded,    // the node has gone, or does not want to
    kRefused,  // the node is not of this family
  };

  // To be called when the watch says its name.
  State progress();

  // Of the node, once it has been met.
  const PeerIntroduction& node() const { return node_; }

  // After the end.
  const std::string& why() const { return why_; }

 private:
  PeerKnock(Wire wire, Options options);

  size_t wanted() const;
  State take_challenge();
  State take_introduction();
  State refuse(std::string why);

  Options options_;
  Wire wire_;
  PeerNonce nonce_;
  std::shared_ptr<const PeerSession> session_;  // null: waits for the challenge
  size_t introduction_bytes_ = 0;               // 0: not known
  bool has_met_ = false;
  PeerIntroduction node_;
  std::string why_;
};

}  // namespace droidspeak
