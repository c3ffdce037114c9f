#include "peer/peer_server.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <thread>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "base/error.h"
#include "peer/network_devices.h"
#include "peer/peer_address.h"
#include "peer/peer_door.h"
#include "peer/reply_maker.h"
#include "peer/ucx_worker.h"

namespace droidspeak {
namespace {

using Time = std::chrono::steady_clock::time_point;

constexpr std::chrono::milliseconds kLongestSleep{1000};

struct Client {
  ucp_ep_h endpoint = nullptr;
  Time since;
  std::shared_ptr<const PeerSession> session{};
  bool has_asked = false;        // a good request
  bool is_refused = false;       // about to be closed
  uint64_t last_request_id = 0;  // a reply's tag needs ids that only grow
  size_t num_requests = 0;       // not answered, or their replies not taken
  size_t num_sending = 0;
  Time last_taken{};  // when it last took a reply, or began to have one to take
};

PeerAddress address_for(const PeerServerOptions& options) {
  if (options.secret.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "peers need a secret that the nodes of the family share; it is empty");
  }
  PeerAddress wanted = resolve_peer_address(options.listen).take_or_throw();
  if (!is_one_address(wanted)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("cannot listen for peers on {}: other nodes are told this address; "
                              "name the one that they reach this node by",
                              options.listen));
  }
  return wanted;
}

// What UCX listens on beside the named port.
std::string devices_for(const PeerAddress& listen) {
  std::string devices = devices_around(listen);
  if (devices == "all" &&
      std::getenv("UCX_NET_DEVICES") == nullptr)  // NOLINT(concurrency-mt-unsafe)
    spdlog::warn(
        "peers: no interface has the address of {} for itself, so UCX uses all of them, and "
        "listens there; UCX_NET_DEVICES names others",
        listen.text());
  return devices;
}

}  // namespace

// What the server's own thread does. Counters are read by others.
class PeerServer::Loop {
 public:
  Loop(const PeerServerOptions& options, PeerSource source);
  ~Loop();

  const std::string& address() const { return address_; }

  PeerServerCounters counters() const;

 private:
  void run();
  PeerDoor::Events door_events();
  std::optional<PeerIntroduction> on_guest(uint64_t id, const PeerIntroduction& guest);
  void on_hello(const ArrivedPeerMessage& message);
  void on_request(const ArrivedPeerMessage& message);
  void send_reply(MadePeerReply reply);
  void reply_sent(uint64_t client_id, ucs_status_t status, uint64_t bytes);
  void refuse(uint64_t client_id, std::string_view why);
  void close_marked();
  // Marks clients that take too long; the time until the next could, or until `next`.
  std::chrono::milliseconds expire(Time now, Time next);
  // Zero: nobody's.
  uint64_t client_of(ucp_ep_h endpoint) const;

  const PeerServerOptions options_;
  const PeerAddress listen_;  // as it was wanted
  UcxWorker worker_;
  PeerDoor door_;
  const std::string address_;
  std::map<uint64_t, Client> clients_;  // guests of the door
  std::unordered_map<ucp_ep_h, uint64_t> by_endpoint_;
  std::vector<uint64_t> to_close_;
  PeerReplyMaker maker_;
  std::atomic<uint64_t> num_clients_ = 0;
  std::atomic<uint64_t> num_requests_ = 0;
  std::atomic<uint64_t> num_bytes_ = 0;
  std::atomic<uint64_t> num_refused_ = 0;
  std::atomic<uint64_t> num_stalled_ = 0;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

PeerServer::Loop::Loop(const PeerServerOptions& options, PeerSource source)
    : options_(options),
      listen_(address_for(options)),
      worker_(devices_for(listen_)),
      door_({.listen = listen_, .secret = options.secret, .deadline = options.greeting_deadline},
            door_events()),
      address_(door_.address().text()),
      maker_(options, std::move(source), [this] { worker_.wake(); }) {
  worker_.on_message(PeerMessage::kHello, [this](const ArrivedPeerMessage& m) { on_hello(m); });
  worker_.on_message(PeerMessage::kRequest, [this](const ArrivedPeerMessage& m) { on_request(m); });
  worker_.on_error([this](ucp_ep_h endpoint, ucs_status_t) {
    if (uint64_t client = client_of(endpoint)) to_close_.push_back(client);
  });
  thread_ = std::thread([this] { run(); });
}

PeerDoor::Events PeerServer::Loop::door_events() {
  return {
      .on_come = [this](uint64_t id, const PeerIntroduction& guest) { return on_guest(id, guest); },
      .on_go = [this](uint64_t id) { to_close_.push_back(id); },
      .on_refused =
          [this](std::string_view why) {
            spdlog::debug("a stranger at the peers' port is sent away: {}", why);
            num_refused_.fetch_add(1);
          }};
}

PeerServer::Loop::~Loop() {
  is_stopping_.store(true);
  worker_.wake();
  if (thread_.joinable()) thread_.join();
  maker_.stop();
}

PeerServerCounters PeerServer::Loop::counters() const {
  return {.clients = num_clients_.load(),
          .requests = num_requests_.load(),
          .entries = maker_.num_entries(),
          .bytes = num_bytes_.load(),
          .misses = maker_.num_misses(),
          .refused = num_refused_.load(),
          .stalled = num_stalled_.load()};
}

void PeerServer::Loop::run() {
  while (!is_stopping_.load()) {
    bool happened = worker_.progress();
    for (MadePeerReply& reply : maker_.take()) {
      send_reply(std::move(reply));
      happened = true;
    }
    Time now = std::chrono::steady_clock::now();
    std::chrono::milliseconds patience = expire(now, door_.progress(now));
    close_marked();
    if (!happened) worker_.wait(patience, door_.descriptor());
  }
}

uint64_t PeerServer::Loop::client_of(ucp_ep_h endpoint) const {
  auto found = by_endpoint_.find(endpoint);
  return found == by_endpoint_.end() ? 0 : found->second;
}

std::optional<PeerIntroduction> PeerServer::Loop::on_guest(uint64_t id,
                                                           const PeerIntroduction& guest) {
  if (clients_.size() >= options_.max_clients) {
    num_refused_.fetch_add(1);
    return std::nullopt;
  }
  uint64_t place = worker_.next_place(guest.address);
  Result<ucp_ep_h> endpoint = worker_.connect(guest.address, place);
  if (!endpoint) {
    spdlog::warn("a peer's client cannot be reached: {}", endpoint.error().message);
    num_refused_.fetch_add(1);
    return std::nullopt;
  }
  clients_.emplace(id, Client{.endpoint = *endpoint, .since = std::chrono::steady_clock::now()});
  by_endpoint_.emplace(*endpoint, id);
  num_clients_.store(clients_.size());
  return PeerIntroduction{worker_.address(), place};
}

void PeerServer::Loop::refuse(uint64_t client_id, std::string_view why) {
  spdlog::debug("a peer's client is refused: {}", why);
  clients_.at(client_id).is_refused = true;
  num_refused_.fetch_add(1);
  to_close_.push_back(client_id);
}

void PeerServer::Loop::on_hello(const ArrivedPeerMessage& message) {
  uint64_t id = client_of(message.from);
  if (id == 0 || clients_.at(id).is_refused) return;
  Client& client = clients_.at(id);
  Result<PeerHello> hello = parse_peer_hello(message.body);
  if (!hello || client.session != nullptr) {
    refuse(id, hello ? "greets twice" : hello.error().message);
    return;
  }
  PeerNonce nonce = random_nonce();
  client.session = std::make_shared<PeerSession>(options_.secret, hello->nonce, nonce);
  auto frame = std::make_shared<std::vector<std::byte>>(
      encode(PeerChallenge{nonce, client.session->server_proof()}));
  worker_.send(client.endpoint,
               {.id = PeerMessage::kChallenge,
                .body = *frame,
                .keep = frame,
                .flags = UCP_AM_SEND_FLAG_EAGER},
               nullptr);
}

void PeerServer::Loop::on_request(const ArrivedPeerMessage& message) {
  uint64_t id = client_of(message.from);
  if (id == 0 || clients_.at(id).is_refused) return;
  Client& client = clients_.at(id);
  if (client.session == nullptr) return refuse(id, "asks before it greets");
  Result<PeerRequest> request = parse_peer_request(message.body, *client.session);
  if (!request) return refuse(id, request.error().message);
  if (request->id <= client.last_request_id) return refuse(id, "repeats a request");
  if (client.num_requests >= options_.max_requests_per_client)
    return refuse(id, "asks for too much at a time");
  client.has_asked = true;
  client.last_request_id = request->id;
  if (!maker_.add({id, client.session, std::move(*request)})) return refuse(id, "is one too many");
  ++client.num_requests;
  num_requests_.fetch_add(1);
}

void PeerServer::Loop::send_reply(MadePeerReply reply) {
  auto found = clients_.find(reply.client);
  if (found == clients_.end()) return;
  Client& client = found->second;
  if (client.num_sending++ == 0) client.last_taken = std::chrono::steady_clock::now();
  PeerReplyHeadBytes head = encode(reply.head);
  uint64_t bytes = reply.head.body_bytes;
  worker_.send(
      client.endpoint,
      {.id = PeerMessage::kReply,
       .head = {head.begin(), head.end()},
       .body = reply.body->first(bytes),
       .keep = reply.body},
      [this, id = reply.client, bytes](ucs_status_t status) { reply_sent(id, status, bytes); });
}

void PeerServer::Loop::reply_sent(uint64_t client_id, ucs_status_t status, uint64_t bytes) {
  auto found = clients_.find(client_id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  --client.num_sending;
  --client.num_requests;
  client.last_taken = std::chrono::steady_clock::now();
  if (status == UCS_OK) {
    num_bytes_.fetch_add(bytes);
  } else {
    to_close_.push_back(client_id);
  }
}

std::chrono::milliseconds PeerServer::Loop::expire(Time now, Time next) {
  next = std::min(next, now + kLongestSleep);
  for (auto& [id, client] : clients_) {
    Time greeting_end = client.since + options_.greeting_deadline;
    Time taking_end = client.last_taken + options_.stall;
    if (!client.has_asked) {
      next = std::min(next, greeting_end);
      if (greeting_end <= now) refuse(id, "asks for nothing");
    } else if (client.num_sending > 0) {
      next = std::min(next, taking_end);
      if (taking_end > now) continue;
      num_stalled_.fetch_add(1);
      to_close_.push_back(id);
    }
  }
  auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now);
  return std::max(left, std::chrono::milliseconds(0));
}

void PeerServer::Loop::close_marked() {
  for (uint64_t id : std::exchange(to_close_, {})) {
    auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    ucp_ep_h endpoint = found->second.endpoint;
    by_endpoint_.erase(endpoint);
    clients_.erase(found);
    worker_.close(endpoint);
    door_.close(id);
  }
  num_clients_.store(clients_.size());
}

PeerServer::PeerServer(const PeerServerOptions& options, PeerSource source)
    : loop_(std::make_unique<Loop>(options, std::move(source))) {}

PeerServer::~PeerServer() = default;

std::string PeerServer::address() const {
  return loop_->address();
}

PeerServerCounters PeerServer::counters() const {
  return loop_->counters();
}

}  // namespace droidspeak
