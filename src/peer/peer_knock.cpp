#include "peer/peer_knock.h"

#include <utility>

namespace droidspeak {

Result<PeerKnock> PeerKnock::begin(const PeerAddress& address,
                                   SocketWatch& watch,
                                   Options options) {
  Result<Wire> wire = Wire::connect(address, watch, options.name);
  if (!wire) return wire.error();
  return PeerKnock(std::move(*wire), std::move(options));
}

PeerKnock::PeerKnock(Wire wire, Options options)
    : options_(std::move(options)), wire_(std::move(wire)), nonce_(random_nonce()) {
  wire_.send(encode(PeerHello{nonce_}));
}

size_t PeerKnock::wanted() const {
  if (has_met_) return 0;
  if (session_ == nullptr) return kPeerChallengeBytes;
  return introduction_bytes_ == 0 ? kPeerIntroductionHeadBytes : introduction_bytes_;
}

PeerKnock::State PeerKnock::progress() {
  while (true) {
    if (!wire_.progress(wanted())) {
      why_ = has_met_ ? "it is gone" : "it cannot be reached, or ended the meeting";
      return State::kEnded;
    }
    if (has_met_) return State::kStays;
    if (wire_.received().size() < wanted()) return State::kUnderWay;
    State state = session_ == nullptr ? take_challenge() : take_introduction();
    if (state != State::kUnderWay) return state;
  }
}

PeerKnock::State PeerKnock::refuse(std::string why) {
  why_ = std::move(why);
  return State::kRefused;
}

PeerKnock::State PeerKnock::take_challenge() {
  Result<PeerChallenge> challenge = parse_peer_challenge(wire_.received());
  if (!challenge) return refuse(challenge.error().message);
  auto session = std::make_shared<PeerSession>(options_.secret, nonce_, challenge->nonce);
  if (!is_same_tag(session->server_proof(), challenge->proof))
    return refuse("it does not have this family's secret");
  session_ = std::move(session);
  wire_.take_all();
  wire_.send(encode(options_.introduction, PeerSide::kClient, *session_));
  return State::kUnderWay;
}

PeerKnock::State PeerKnock::take_introduction() {
  if (introduction_bytes_ == 0) {
    Result<size_t> bytes = parse_peer_introduction_bytes(wire_.received(), PeerSide::kServer);
    if (!bytes) return refuse(bytes.error().message);
    introduction_bytes_ = *bytes;
    return State::kUnderWay;
  }
  Result<PeerIntroduction> node =
      parse_peer_introduction(wire_.received(), PeerSide::kServer, *session_);
  if (!node) return refuse(node.error().message);
  node_ = std::move(*node);
  wire_.take_all();
  has_met_ = true;
  return State::kMet;
}

}  // namespace droidspeak
