// How fast one process reads another's memory: entries of 48 KiB (K/V of one layer and block of the
// default model in f16) until so many bytes have come. bench/peer_rate.py runs both and compares.
//   peer_rate_bench serve            prints its address, serves until its stdin ends
//   peer_rate_bench read ADDRESS MB  prints bytes per second
#include <cstdio>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "peer/peer_client.h"
#include "peer/peer_server.h"

namespace droidspeak {
namespace {

constexpr size_t kEntryBytes = size_t{48} << 10;
constexpr size_t kNumEntries = 2048;  // 96 MiB: more than a cache
constexpr auto kSecret = "of the measurement";

PeerKey key_of(uint64_t number) {
  PeerKey key;
  std::memcpy(key.bytes.data(), &number, sizeof number);
  return key;
}

int serve() {
  auto memory = std::make_shared<std::vector<std::byte>>(kEntryBytes * kNumEntries, std::byte{7});
  PeerServer server({.listen = "127.0.0.1:0", .secret = kSecret},
                    [memory](const PeerKey& key) -> std::optional<PeerEntry> {
                      uint64_t number = 0;
                      std::memcpy(&number, key.bytes.data(), sizeof number);
                      if (number >= kNumEntries) return std::nullopt;
                      std::span<const std::byte> all(*memory);
                      return PeerEntry{.bytes = all.subspan(number * kEntryBytes, kEntryBytes),
                                       .owner = memory};
                    });
  std::printf("%s\n", server.address().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}

// Copies, as the store does.
class CopyingSink final : public PeerReadSink {
 public:
  explicit CopyingSink(size_t count) : memory_(kEntryBytes * kNumEntries), left_(count) {}

  void done(size_t index, PeerReadStatus status, std::span<const std::byte> bytes) override {
    if (status == PeerReadStatus::kHere)
      std::memcpy(memory_.data() + index % kNumEntries * kEntryBytes, bytes.data(), bytes.size());
    MutexLock lock(mutex_);
    num_lost_ += status == PeerReadStatus::kHere ? 0 : 1;
    if (--left_ == 0) changed_.notify_all();
  }

  // How many were lost.
  size_t wait() {
    MutexLock lock(mutex_);
    while (left_ > 0) changed_.wait(mutex_);
    return num_lost_;
  }

 private:
  std::vector<std::byte> memory_;
  Mutex mutex_;
  Condition changed_;
  size_t left_ GUARDED_BY(mutex_);
  size_t num_lost_ GUARDED_BY(mutex_) = 0;
};

size_t read_some(PeerClient& client, const std::string& address, size_t count) {
  std::vector<PeerReadItem> items;
  for (size_t i = 0; i < count; ++i) items.push_back({key_of(i % kNumEntries), kEntryBytes});
  auto sink = std::make_shared<CopyingSink>(count);
  client.read(address, std::move(items), std::chrono::minutes(5), sink);
  return sink->wait();
}

int read(const std::string& address, size_t megabytes) {
  PeerClient client({.secret = kSecret, .stall = std::chrono::seconds(10)});
  read_some(client, address, kNumEntries);  // warms both up
  size_t count = (megabytes << 20) / kEntryBytes;
  Stopwatch watch;
  size_t num_lost = read_some(client, address, count);
  if (num_lost > 0) {
    std::fprintf(stderr, "%zu of %zu entries were lost\n", num_lost, count);
    return 1;
  }
  std::printf("%.0f\n", static_cast<double>(count * kEntryBytes) / (watch.ms() * 1e-3));
  return 0;
}

}  // namespace
}  // namespace droidspeak

int main(int argc, char** argv) {
  try {
    std::string role = argc > 1 ? argv[1] : "";
    if (role == "serve" && argc == 2) return droidspeak::serve();
    if (role == "read" && argc == 4) return droidspeak::read(argv[2], std::stoul(argv[3]));
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  std::fprintf(stderr, "peer_rate_bench serve | read ADDRESS MEGABYTES\n");
  return 2;
}
