// Reads of 1 MiB values from one Redis: a plain client that throws them away, and the remote tier,
// which verifies them and puts them where they belong. In turns, in one run.
//   redis-server --port 7001 --save "" &  build/bin/remote_bench 127.0.0.1:7001
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "redis/connection.h"
#include "store/cache_store.h"
#include "store/read_ahead.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

// Four layers are 1 MiB.
const KvLayout kLayout{.num_layers = 32, .num_kv_heads = 8, .head_dim = 128, .dtype = DType::kF16};
constexpr uint64_t kBlocks = 32;  // of a set: 256 MiB
constexpr uint64_t kSets = 2;     // one is read while the other makes room
constexpr int kRounds = 9;
constexpr int kAhead = 18;  // as many commands as the tier has ahead, on one connection

Digest key_of(uint64_t number) {
  return sha256(std::as_bytes(std::span(&number, 1)));
}

std::vector<EntryRead> reads_of(uint64_t set) {
  std::vector<EntryRead> reads;
  for (int32_t layer = 0; layer < kLayout.num_layers; ++layer) {
    for (uint64_t block = 0; block < kBlocks; ++block)
      reads.push_back({key_of(set * kBlocks + block), {EntryKind::kKeyValue, layer}});
  }
  return reads;
}

double gigabytes() {
  return static_cast<double>(kBlocks * kLayout.block_bytes()) * 1e-9;
}

void wait_for_server(const CacheStore& store) {
  while (!store.link_cost_of(Tier::kRemote, {}, store.link_reports()))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

void fill(const StoreOptions& options, const Clock& clock) {
  CacheStore store(options, clock);
  wait_for_server(store);
  for (uint64_t number = 0; number < kSets * kBlocks; ++number) {
    std::vector<EntrySize> sizes;
    for (int32_t layer = 0; layer < kLayout.num_layers; ++layer)
      sizes.push_back({{EntryKind::kKeyValue, layer}, kLayout.layer_bytes()});
    std::optional<EntryRoom> room = store.reserve({key_of(number)}, sizes);
    for (size_t i = 0; room && i < sizes.size(); ++i)
      std::memset(room->bytes(i).data(), static_cast<int>(number + i), room->bytes(i).size());
    if (room) store.put(std::move(*room));
    store.flush();
  }
}

double plain_rate(const RedisServers& servers, uint64_t set) {
  auto connection = RedisConnection::open(servers.addresses.front(), servers, nullptr,
                                          std::chrono::milliseconds(5000))
                        .take_or_throw();
  std::vector<std::string> names;
  for (int32_t layer = 0; layer < kLayout.num_layers; layer += kLayersTogether) {
    for (uint64_t block = 0; block < kBlocks; ++block)
      names.push_back(remote_name(key_of(set * kBlocks + block), {EntryKind::kKeyValue, layer}));
  }
  std::vector<std::byte> memory(size_t{4} << 20);
  size_t sent = 0;
  Stopwatch watch;
  for (size_t received = 0; received < names.size(); ++received) {
    std::string commands;
    for (; sent < names.size() && sent < received + kAhead; ++sent)
      append_command(commands, {"GET", names[sent]});
    bool is_right = commands.empty() || connection->send(commands);
    ReplyHead head = connection->read_head().take_or_throw();
    is_right = is_right && head.text_bytes > (size_t{1} << 20) && head.text_bytes < memory.size() &&
               connection->read(std::span(memory).first(head.text_bytes)) &&
               connection->finish_text();
    if (!is_right)
      throw Failure(ErrorCode::kDataCorrupt, "a value is not there: is maxmemory set?");
  }
  return gigabytes() / (watch.ms() * 1e-3);
}

double tier_rate(CacheStore& store, uint64_t set) {
  std::vector<EntryRead> reads = reads_of(set);
  std::vector<Digest> keys;
  for (uint64_t block = 0; block < kBlocks; ++block) keys.push_back(key_of(set * kBlocks + block));
  std::vector<EntryId> wanted;
  for (int32_t layer = 0; layer < kLayout.num_layers; ++layer)
    wanted.push_back({EntryKind::kKeyValue, layer});
  uint64_t before = store.counters().of(Tier::kRemote).bytes_read;
  Stopwatch watch;
  store.ask(keys, wanted);
  store.wait_for_answers(keys, wanted, std::chrono::steady_clock::now() + std::chrono::seconds(5));
  std::unique_ptr<ReadAhead> ahead = store.read_ahead(reads);
  for (const EntryRead& read : reads) {
    std::optional<PinnedEntry> entry = store.fetch(read.key, read.id, *ahead);
    if (!entry) throw Failure(ErrorCode::kDataCorrupt, "an entry is missing");
  }
  double seconds = watch.ms() * 1e-3;
  // A few may be in host memory still.
  return static_cast<double>(store.counters().of(Tier::kRemote).bytes_read - before) * 1e-9 /
         seconds;
}

void run(const std::string& address) {
  SteadyClock clock;
  RedisServers servers{.addresses = {parse_redis_address(address).take_or_throw()}};
  StoreOptions options{.host_bytes = kBlocks * kLayout.block_bytes()};
  options.kv_layout = kLayout;
  options.write_queue_bytes = uint64_t{256} << 20;
  options.remote = {.servers = servers,
                    .secret = std::vector<std::byte>(32, std::byte{1}),
                    .format = RemoteFormat::kRaw};
  options.remote.stall = std::chrono::milliseconds(5000);
  fill(options, clock);
  CacheStore store(options, clock);
  wait_for_server(store);
  std::vector<double> plain;
  std::vector<double> tier;
  for (int round = 0; round < kRounds; ++round) {
    uint64_t set = static_cast<uint64_t>(round) % kSets;
    plain.push_back(plain_rate(servers, set));
    tier.push_back(tier_rate(store, set));
  }
  auto print = [](const char* name, std::vector<double> rates) {
    rates.erase(rates.begin(), rates.begin() + kSets);  // memory is touched for the first time
    std::ranges::sort(rates);
    fmt::print("{}: median {:.2f} GB/s, best {:.2f}\n", name, rates[rates.size() / 2],
               rates.back());
    return rates[rates.size() / 2];
  };
  double of_plain = print("plain client, one connection", plain);
  double of_tier = print("remote tier, raw, verified  ", tier);
  fmt::print("ratio of medians {:.2f}\n", of_tier / of_plain);
}

}  // namespace
}  // namespace droidspeak

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: remote_bench HOST:PORT, a Redis without limits to fill\n");
    return 2;
  }
  try {
    droidspeak::run(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "remote_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
