// Nodes for tests: entries by number, a sink that waits, keys.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/test_wait.h"
#include "peer/peer_client.h"
#include "peer/peer_server.h"
#include "peer/test_stranger.h"

namespace droidspeak {

// On a busy machine a node may not run for seconds; only tests of nodes that stop are in a hurry.
inline PeerClientOptions patient_options(std::string secret) {
  return {.secret = std::move(secret),
          .connect_deadline = std::chrono::minutes(5),
          .stall = std::chrono::minutes(5),
          .first_rest = std::chrono::milliseconds(20)};
}

inline PeerKey test_key(uint64_t number) {
  PeerKey key;
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

inline uint64_t number_of(const PeerKey& key) {
  uint64_t number = 0;
  std::memcpy(&number, key.bytes.data(), sizeof number);
  return number;
}

// Bytes that only entry `number` has.
inline std::vector<std::byte> test_entry(uint64_t number, size_t bytes) {
  std::vector<std::byte> entry(bytes);
  uint64_t state = number * 0x9e3779b97f4a7c15U + 1;
  for (std::byte& value : entry) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<std::byte>(state >> 56);
  }
  return entry;
}

// Entries numbered from 0, of these sizes; the rest is missing.
inline PeerSource test_source(std::vector<size_t> sizes) {
  auto entries = std::make_shared<std::vector<std::vector<std::byte>>>();
  for (size_t i = 0; i < sizes.size(); ++i) entries->push_back(test_entry(i, sizes[i]));
  return [entries](const PeerKey& key) -> std::optional<PeerEntry> {
    uint64_t number = number_of(key);
    if (number >= entries->size()) return std::nullopt;
    return PeerEntry{.bytes = entries->at(number), .owner = entries};
  };
}

inline std::vector<PeerReadItem> test_items(size_t count, size_t expected_bytes) {
  std::vector<PeerReadItem> items;
  for (size_t i = 0; i < count; ++i) items.push_back({test_key(i), expected_bytes});
  return items;
}

class WaitingSink final : public PeerReadSink {
 public:
  struct Answer {
    PeerReadStatus status = PeerReadStatus::kLost;
    std::vector<std::byte> bytes;
    int times = 0;
  };

  explicit WaitingSink(size_t count) : answers_(count) {}

  void done(size_t index, PeerReadStatus status, std::span<const std::byte> bytes) override {
    MutexLock lock(mutex_);
    Answer& answer = answers_.at(index);
    answer.status = status;
    answer.bytes.assign(bytes.begin(), bytes.end());
    ++answer.times;
    ++num_done_;
    changed_.notify_all();
  }

  // All that were asked for, each done once or more. Waits as long as it takes: a test that hangs
  // is ended (tests/support/test_limit.cpp).
  std::vector<Answer> wait() {
    MutexLock lock(mutex_);
    while (num_done_ < answers_.size()) changed_.wait(mutex_);
    return answers_;
  }

  size_t num_done() {
    MutexLock lock(mutex_);
    return num_done_;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<Answer> answers_ GUARDED_BY(mutex_);
  size_t num_done_ GUARDED_BY(mutex_) = 0;
};

struct TestRead {
  std::string address;
  std::vector<PeerReadItem> items;
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
};

inline std::vector<WaitingSink::Answer> read_and_wait(PeerClient& client, TestRead read) {
  auto sink = std::make_shared<WaitingSink>(read.items.size());
  client.read(read.address, std::move(read.items), read.deadline, sink);
  return sink->wait();
}

// Asks until the node answers: after a failure it is left alone for a while.
inline std::vector<WaitingSink::Answer> read_until_answered(PeerClient& client,
                                                            const TestRead& read) {
  std::vector<WaitingSink::Answer> answers;
  wait_until([&] {
    answers = read_and_wait(client, read);
    return std::ranges::none_of(
        answers, [](const auto& answer) { return answer.status == PeerReadStatus::kLost; });
  });
  return answers;
}

}  // namespace droidspeak
