#include "peer/peer_client.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "peer/network_devices.h"
#include "peer/peer_connection.h"
#include "peer/reply_checker.h"
#include "peer/staging.h"
#include "peer/ucx_worker.h"

namespace droidspeak {
namespace {

using Time = PeerReadFrame::Time;

constexpr size_t kMaxReplies = 256;  // in memory, of all nodes
constexpr size_t kMaxPeers = 1024;
constexpr std::chrono::milliseconds kLongestSleep{1000};

std::string devices_of(const PeerClientOptions& options) {
  return options.own_address.empty()
             ? "all"
             : devices_around(parse_peer_address(options.own_address).take_or_throw());
}

}  // namespace

class PeerClient::Loop {
 public:
  explicit Loop(const PeerClientOptions& options);
  ~Loop();

  void add(const std::string& address, std::vector<PeerReadFramePointer> frames);
  bool may_ask(const std::string& address) const;
  std::vector<PeerLink> links() const;

 private:
  struct News {
    std::string address;
    std::vector<PeerReadFramePointer> frames{};
    uint64_t refused_connection = 0;
  };

  void post(News news);
  void run();
  bool take_news();
  // Null when there are too many.
  PeerConnection* connection_to(const std::string& address);
  PeerConnection* connection_of(ucp_ep_h endpoint);
  void attend_to_wires();
  std::chrono::milliseconds update();
  void close_all();

  const PeerClientOptions options_;
  UcxWorker worker_;
  SocketWatch watch_;
  std::shared_ptr<StagingPool> pool_;
  std::map<std::string, PeerConnection> connections_;
  std::vector<PeerConnection*> by_name_;  // in the watch
  std::atomic<bool> is_stopping_ = false;

  mutable Mutex mutex_;
  std::vector<News> news_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<PeerLinkFigures>> figures_ GUARDED_BY(mutex_);

  PeerReplyChecker checker_;
  std::thread thread_;
};

PeerClient::Loop::Loop(const PeerClientOptions& options)
    : options_(options),
      worker_(devices_of(options)),
      pool_(std::make_shared<StagingPool>(kMaxReplyBytes, kMaxReplies)),
      checker_({.on_rest =
                    [this](const std::string& address, PeerReadFramePointer rest) {
                      post({address, {std::move(rest)}});
                    },
                .on_refused =
                    [this](const std::string& address, uint64_t connection) {
                      post({.address = address, .refused_connection = connection});
                    }}) {
  if (options.secret.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "peers need a secret that the nodes of the family share; it is empty");
  }
  worker_.on_message(PeerMessage::kChallenge, [this](const ArrivedPeerMessage& message) {
    if (PeerConnection* connection = connection_of(message.from))
      connection->on_challenge(message, std::chrono::steady_clock::now());
  });
  worker_.on_message(PeerMessage::kReply, [this](const ArrivedPeerMessage& message) {
    if (PeerConnection* connection = connection_of(message.from)) connection->on_reply(message);
  });
  worker_.on_error([this](ucp_ep_h endpoint, ucs_status_t) {
    if (PeerConnection* connection = connection_of(endpoint)) connection->fail("it is gone");
  });
  thread_ = std::thread([this] { run(); });
}

PeerClient::Loop::~Loop() {
  is_stopping_.store(true);
  worker_.wake();
  if (thread_.joinable()) thread_.join();
  checker_.stop();
}

// After the end what comes is lost at once.
void PeerClient::Loop::post(News news) {
  std::vector<PeerReadFramePointer> too_late;
  {
    MutexLock lock(mutex_);
    if (is_closed_) {
      too_late = std::move(news.frames);
    } else {
      news_.push_back(std::move(news));
    }
  }
  for (const PeerReadFramePointer& frame : too_late) frame->lose();
  worker_.wake();
}

void PeerClient::Loop::add(const std::string& address, std::vector<PeerReadFramePointer> frames) {
  post({address, std::move(frames)});
}

void PeerClient::Loop::run() {
  while (!is_stopping_.load()) {
    bool happened = worker_.progress();
    happened |= take_news();
    attend_to_wires();
    std::chrono::milliseconds patience = update();
    if (!happened) worker_.wait(patience, watch_.descriptor());
  }
  close_all();
}

bool PeerClient::Loop::take_news() {
  std::vector<News> news;
  {
    MutexLock lock(mutex_);
    news = std::exchange(news_, {});
  }
  Time now = std::chrono::steady_clock::now();
  for (News& item : news) {
    PeerConnection* connection = connection_to(item.address);
    if (connection != nullptr && item.refused_connection != 0)
      connection->fail_connection(item.refused_connection, "its reply is not what it signed");
    for (PeerReadFramePointer& frame : item.frames) {
      if (connection != nullptr) {
        connection->add(std::move(frame), now);
      } else {
        frame->lose();
      }
    }
  }
  return !news.empty();
}

PeerConnection* PeerClient::Loop::connection_to(const std::string& address) {
  auto found = connections_.find(address);
  if (found != connections_.end()) return &found->second;
  if (connections_.size() >= kMaxPeers) return nullptr;
  auto figures = std::make_shared<PeerLinkFigures>();
  {
    MutexLock lock(mutex_);
    figures_.emplace(address, figures);
  }
  PeerConnection::Surroundings all{options_, worker_, watch_, checker_, *pool_, by_name_.size()};
  auto made = connections_.try_emplace(address, address, all, std::move(figures)).first;
  by_name_.push_back(&made->second);
  return by_name_.back();
}

void PeerClient::Loop::attend_to_wires() {
  for (uint64_t name : watch_.ready()) by_name_[name]->attend_to_wire();
}

PeerConnection* PeerClient::Loop::connection_of(ucp_ep_h endpoint) {
  if (endpoint == nullptr) return nullptr;
  auto found = std::find_if(connections_.begin(), connections_.end(),
                            [&](const auto& item) { return item.second.endpoint() == endpoint; });
  return found == connections_.end() ? nullptr : &found->second;
}

std::chrono::milliseconds PeerClient::Loop::update() {
  Time now = std::chrono::steady_clock::now();
  Time next = now + kLongestSleep;
  for (auto& [address, connection] : connections_) next = std::min(next, connection.update(now));
  auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now);
  return std::max(left, std::chrono::milliseconds(0));
}

void PeerClient::Loop::close_all() {
  {
    MutexLock lock(mutex_);
    is_closed_ = true;
  }
  take_news();
  for (auto& [address, connection] : connections_) connection.close();
}

bool PeerClient::Loop::may_ask(const std::string& address) const {
  MutexLock lock(mutex_);
  auto found = figures_.find(address);
  return found == figures_.end() || !found->second->is_resting(std::chrono::steady_clock::now());
}

std::vector<PeerLink> PeerClient::Loop::links() const {
  MutexLock lock(mutex_);
  std::vector<PeerLink> links;
  for (const auto& [address, figures] : figures_) links.push_back(figures->link(address));
  return links;
}

PeerClient::PeerClient(const PeerClientOptions& options) : loop_(std::make_unique<Loop>(options)) {}

PeerClient::~PeerClient() = default;

void PeerClient::read(const std::string& address,
                      std::vector<PeerReadItem> items,
                      std::chrono::milliseconds deadline,
                      std::shared_ptr<PeerReadSink> sink) {
  Time end = std::chrono::steady_clock::now() + deadline;
  loop_->add(address, split_read(std::move(items), end, sink));
}

bool PeerClient::may_ask(const std::string& address) const {
  return loop_->may_ask(address);
}

std::vector<PeerLink> PeerClient::links() const {
  return loop_->links();
}

}  // namespace droidspeak
