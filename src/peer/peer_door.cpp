#include "peer/peer_door.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <sys/socket.h>

namespace droidspeak {
namespace {

constexpr uint64_t kListener = 0;     // in the watch
constexpr size_t kMaxStrangers = 64;  // one more takes the place of the first who is silent
constexpr int kMaxAtOnce = 64;        // then others have their turn
constexpr std::chrono::milliseconds kPause{100};
constexpr std::chrono::hours kLong{1};

}  // namespace

PeerDoor::PeerDoor(const Options& options, Events events)
    : options_(options), events_(std::move(events)), listener_(listen_on(options.listen)) {
  is_listening_ = watch_.add(listener_.get(), kListener, SocketWatch::For::kReading);
}

PeerDoor::Time PeerDoor::progress(Time now) {
  if (!is_listening_ && now >= listen_again_) {
    is_listening_ = watch_.add(listener_.get(), kListener, SocketWatch::For::kReading);
    listen_again_ = now + kPause;
  }
  bool is_knocked = false;
  for (uint64_t name : watch_.ready()) {
    if (name == kListener) {
      is_knocked = true;
    } else {
      attend_to(name);
    }
  }
  if (is_knocked) let_in(now);  // last: newcomers may take the places of others
  return expire(now);
}

void PeerDoor::let_in(Time now) {
  for (int i = 0; i < kMaxAtOnce; ++i) {
    FileDescriptor socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.get() < 0) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      watch_.remove(listener_.get());
      is_listening_ = false;
      listen_again_ = now + kPause;
      return;
    }
    make_room();
    uint64_t name = next_name_++;
    visitors_.emplace(name, Visitor{.wire = Wire(std::move(socket), watch_, name), .since = now});
  }
}

size_t PeerDoor::num_strangers() const {
  return static_cast<size_t>(std::ranges::count_if(
      visitors_, [](const auto& visitor) { return !visitor.second.is_guest; }));
}

// Whoever is silent does not keep others out; who has greeted stays as long as others have not.
void PeerDoor::make_room() {
  if (num_strangers() < kMaxStrangers) return;
  auto first = std::ranges::find_if(
      visitors_, [](const auto& visitor) { return visitor.second.session == nullptr; });
  if (first == visitors_.end()) {
    first = std::ranges::find_if(visitors_,
                                 [](const auto& visitor) { return !visitor.second.is_guest; });
  }
  refuse("others come, and it has not introduced itself");
  visitors_.erase(first);
}

size_t PeerDoor::wanted(const Visitor& visitor) const {
  if (visitor.is_guest) return 0;
  if (visitor.session == nullptr) return kPeerHelloBytes;
  return visitor.introduction_bytes == 0 ? kPeerIntroductionHeadBytes : visitor.introduction_bytes;
}

void PeerDoor::attend_to(uint64_t name) {
  auto found = visitors_.find(name);
  if (found == visitors_.end()) return;
  Visitor& visitor = found->second;
  while (true) {
    if (!visitor.wire.progress(wanted(visitor))) {
      bool is_guest = visitor.is_guest;
      visitors_.erase(found);
      if (is_guest) {
        events_.on_go(name);
      } else {
        refuse("says too much, or goes");
      }
      return;
    }
    if (visitor.is_guest || visitor.wire.received().size() < wanted(visitor)) return;
    bool may_stay =
        visitor.session == nullptr ? take_hello(visitor) : take_introduction(name, visitor);
    if (!may_stay) {
      visitors_.erase(found);
      return;
    }
  }
}

bool PeerDoor::refuse(std::string_view why) {
  events_.on_refused(why);
  return false;
}

bool PeerDoor::take_hello(Visitor& visitor) {
  Result<PeerHello> hello = parse_peer_hello(visitor.wire.received());
  if (!hello) return refuse(hello.error().message);
  PeerNonce nonce = random_nonce();
  visitor.session = std::make_shared<PeerSession>(options_.secret, hello->nonce, nonce);
  visitor.wire.take_all();
  visitor.wire.send(encode(PeerChallenge{nonce, visitor.session->server_proof()}));
  return true;
}

bool PeerDoor::take_introduction(uint64_t name, Visitor& visitor) {
  if (visitor.introduction_bytes == 0) {
    Result<size_t> bytes =
        parse_peer_introduction_bytes(visitor.wire.received(), PeerSide::kClient);
    if (!bytes) return refuse(bytes.error().message);
    visitor.introduction_bytes = *bytes;
    return true;
  }
  Result<PeerIntroduction> guest =
      parse_peer_introduction(visitor.wire.received(), PeerSide::kClient, *visitor.session);
  if (!guest) return refuse(guest.error().message);
  visitor.wire.take_all();
  std::optional<PeerIntroduction> answer = events_.on_come(name, *guest);
  if (!answer) return false;
  visitor.is_guest = true;
  visitor.wire.send(encode(*answer, PeerSide::kServer, *visitor.session));
  return true;
}

PeerDoor::Time PeerDoor::expire(Time now) {
  Time next = is_listening_ ? now + kLong : listen_again_;
  for (auto it = visitors_.begin(); it != visitors_.end();) {
    Time end = it->second.since + options_.deadline;
    if (it->second.is_guest || end > now) {
      if (!it->second.is_guest) next = std::min(next, end);
      ++it;
    } else {
      refuse("does not show the secret");
      it = visitors_.erase(it);
    }
  }
  return next;
}

}  // namespace droidspeak
