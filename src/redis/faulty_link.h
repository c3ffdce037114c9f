// For tests: a link to a server on loopback that becomes slow, stops, breaks or changes bytes, at
// once or once it has carried so much.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "redis/loopback_listener.h"

namespace droidspeak {

class FaultyLink {
 public:
  enum class Fault { kNone, kSlow, kStalled, kReset, kFlipped };

  explicit FaultyLink(uint16_t server_port) : server_port_(server_port) {}

  RedisServers servers() const { return {.addresses = {listener_.address()}}; }

  // From the server, all connections together; for Fault::kSlow.
  void set_slow_rate(double bytes_per_second) { slow_rate_ = bytes_per_second; }

  // What happens once so many more bytes have come from the server.
  void fail_after(uint64_t bytes, Fault fault) {
    fault_ = fault;
    fault_at_ = carried_ + bytes;
  }

  void heal() { fault_at_ = kNever; }

  bool has_failed() const { return carried_ >= fault_at_; }

  // From the server, since the link is there.
  uint64_t carried() const { return carried_; }

 private:
  static constexpr int kLookMs = LoopbackListener::kLookMs;
  static constexpr size_t kSlowBytes = 512;
  static constexpr uint64_t kNever = std::numeric_limits<uint64_t>::max();

  bool has_failed(Fault fault) const { return fault_ == fault && has_failed(); }

  void carry(int client) {
    int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = LoopbackListener::loopback(server_port_);
    bool is_open = connect(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    LoopbackListener::send_at_once(server);
    std::vector<char> bytes(65536);
    while (is_open && !listener_.is_ending() && !has_failed(Fault::kReset)) {
      pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (has_failed(Fault::kStalled) || poll(ends, 2, kLookMs) <= 0) {
        if (has_failed(Fault::kStalled))
          std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
        continue;
      }
      if (ends[0].revents != 0) is_open = send_all(server, bytes, receive(client, bytes, 65536));
      if (is_open && ends[1].revents != 0) is_open = carry_from_server(server, client, bytes);
    }
    close(server);
  }

  // What is left before the fault first, so that it comes where it was meant to.
  bool carry_from_server(int server, int client, std::vector<char>& bytes) {
    bool is_slow = has_failed(Fault::kSlow);
    uint64_t left = has_failed() ? bytes.size() : fault_at_ - carried_;
    size_t most = is_slow ? kSlowBytes : std::min<uint64_t>(bytes.size(), left);
    ssize_t count = receive(server, bytes, most);
    if (count > 0 && has_failed(Fault::kFlipped)) bytes[static_cast<size_t>(count) / 2] ^= 0x20;
    if (!send_all(client, bytes, count)) return false;
    carried_ += static_cast<uint64_t>(count);
    if (is_slow) wait_for_turn(static_cast<double>(count) / slow_rate_);
    return true;
  }

  // Connections share the rate.
  void wait_for_turn(double seconds) {
    auto time = std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(seconds));
    std::chrono::steady_clock::time_point until;
    {
      MutexLock lock(mutex_);
      free_from_ = std::max(free_from_, std::chrono::steady_clock::now()) + time;
      until = free_from_;
    }
    while (!listener_.is_ending() && has_failed(Fault::kSlow) &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(
          until - std::chrono::steady_clock::now(), std::chrono::milliseconds(kLookMs)));
  }

  static ssize_t receive(int from, std::vector<char>& bytes, size_t most) {
    return recv(from, bytes.data(), most, 0);
  }

  static bool send_all(int to, const std::vector<char>& bytes, ssize_t count) {
    return count > 0 && send(to, bytes.data(), static_cast<size_t>(count), MSG_NOSIGNAL) == count;
  }

  const uint16_t server_port_;
  std::atomic<double> slow_rate_ = 10;
  std::atomic<Fault> fault_ = Fault::kNone;
  std::atomic<uint64_t> fault_at_ = kNever;
  std::atomic<uint64_t> carried_ = 0;
  Mutex mutex_;
  std::chrono::steady_clock::time_point free_from_ GUARDED_BY(mutex_){};
  LoopbackListener listener_{[this](int client) { carry(client); }};  // ends before the rest
};

}  // namespace droidspeak
