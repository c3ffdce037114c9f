// GB/s of put and fetch for one 4096-token context of the default model in f16: 64 blocks of 30
// layers. By the calling thread's processor time, so that other work on the machine matters less,
// and by the wall.
//   store_throughput_bench [folder]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "store/cache_store.h"

namespace droidspeak {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kF16};
constexpr uint64_t kNumBlocks = 64;
constexpr int kRounds = 7;

double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Of one piece of work.
struct Spent {
  double thread = 0;
  double wall = 0;
};

class Meter {
 public:
  Spent read() const { return {thread_seconds() - thread_, watch_.ms() * 1e-3}; }

 private:
  double thread_ = thread_seconds();
  Stopwatch watch_;
};

// Medians.
struct Rate {
  explicit Rate(std::vector<Spent> spent, double gigabytes) {
    auto middle = spent.begin() + static_cast<ptrdiff_t>(spent.size() / 2);
    std::nth_element(spent.begin(), middle, spent.end(),
                     [](const Spent& a, const Spent& b) { return a.thread < b.thread; });
    thread = gigabytes / middle->thread;
    std::nth_element(spent.begin(), middle, spent.end(),
                     [](const Spent& a, const Spent& b) { return a.wall < b.wall; });
    wall = gigabytes / middle->wall;
  }

  double thread = 0;
  double wall = 0;
};

void print(const std::string& what, const Rate& rate) {
  std::printf("%-42s %6.2f GB/s (%.2f by the wall)\n", what.c_str(), rate.thread, rate.wall);
}

struct Context {
  std::vector<std::byte> bytes;  // [layers] of one block, the same for every block
  std::vector<std::byte> target = std::vector<std::byte>(kLayout.layer_bytes());
  double total_gb = static_cast<double>(kNumBlocks * kLayout.block_bytes()) * 1e-9;
};

Digest key_of(uint64_t round, uint64_t block) {
  uint64_t numbers[2] = {round, block};
  return sha256(std::as_bytes(std::span(numbers)));
}

Spent put_context(CacheStore& store, const Context& context, uint64_t round) {
  std::vector<Digest> keys;
  for (uint64_t block = 0; block < kNumBlocks; ++block) keys.push_back(key_of(round, block));
  Meter meter;
  for (uint64_t block = 0; block < kNumBlocks; ++block) {
    std::vector<EntrySize> entries;
    for (int32_t layer = 0; layer < kLayout.num_layers; ++layer)
      entries.push_back({{EntryKind::kKeyValue, layer}, kLayout.layer_bytes()});
    auto room =
        store.reserve({.key = keys[block], .position = static_cast<uint32_t>(block)}, entries);
    if (!room) continue;
    for (size_t layer = 0; layer < entries.size(); ++layer) {
      std::span<std::byte> to = room->bytes(layer);
      std::memcpy(to.data(), context.bytes.data() + layer * kLayout.layer_bytes(), to.size());
    }
    store.put(std::move(*room));
  }
  return meter.read();
}

// Layer by layer, as a prefill needs them, each copied once as into paged memory.
Spent fetch_context(CacheStore& store, Context& context, uint64_t round) {
  std::vector<Digest> keys;
  for (uint64_t block = 0; block < kNumBlocks; ++block) keys.push_back(key_of(round, block));
  Meter meter;
  for (int32_t layer = 0; layer < kLayout.num_layers; ++layer) {
    for (const Digest& key : keys) {
      auto entry = store.fetch(key, {EntryKind::kKeyValue, layer});
      if (!entry) std::printf("a miss\n");
      if (entry) std::memcpy(context.target.data(), entry->bytes().data(), entry->bytes().size());
    }
  }
  return meter.read();
}

void measure_memcpy(const Context& context) {
  std::vector<Spent> copies;
  std::vector<std::byte> target(context.bytes.size() * kNumBlocks);
  for (int round = 0; round < kRounds; ++round) {
    Meter meter;
    for (uint64_t b = 0; b < kNumBlocks; ++b) {
      std::memcpy(target.data() + b * context.bytes.size(), context.bytes.data(),
                  context.bytes.size());
    }
    copies.push_back(meter.read());
  }
  print("memcpy", Rate(copies, context.total_gb));
}

void measure_host(Context& context) {
  SteadyClock clock;
  StoreOptions options;
  options.host_bytes = uint64_t{320} << 20;
  CacheStore store(options, clock);
  print("put, first touch of memory", Rate({put_context(store, context, 100)}, context.total_gb));
  for (uint64_t round = 101; round < 104; ++round) put_context(store, context, round);
  std::vector<Spent> puts, fetches;
  for (uint64_t round = 0; round < kRounds; ++round) {
    puts.push_back(put_context(store, context, round));
    fetches.push_back(fetch_context(store, context, round));
  }
  print("put, evicting", Rate(puts, context.total_gb));
  print("fetch from host, and copy", Rate(fetches, context.total_gb));
}

void measure_disk(Context& context,
                  const std::filesystem::path& folder,
                  const std::string& name,
                  DiskFormat format) {
  SteadyClock clock;
  StoreOptions options;
  options.disk_folder = folder / name;
  options.kv_layout = kLayout;
  options.disk_format = format;
  options.host_bytes = uint64_t{128} << 20;  // one context, so that memory is reused
  options.write_queue_bytes = options.host_bytes;
  CacheStore store(options, clock);
  Stopwatch watch;
  print(name + ": put beside the writer", Rate({put_context(store, context, 0)}, context.total_gb));
  store.flush();
  std::printf("%s: put and synced in %.0f ms\n", name.c_str(), watch.ms());
  put_context(store, context, 1);
  store.flush();
  std::vector<Spent> fetches;
  for (uint64_t round = 0; round < kRounds; ++round) {
    fetches.push_back(fetch_context(store, context, round % 2));
  }
  print(name + ": fetch from disk (page cache), and copy", Rate(fetches, context.total_gb));
  watch.restart();
  CacheStore second(options, clock);
  std::printf("%s: opened 128 blocks in %.1f ms\n", name.c_str(), watch.ms());
  print(name + ": first fetch after the start",
        Rate({fetch_context(second, context, 0)}, context.total_gb));
}

}  // namespace
}  // namespace droidspeak

int main(int argc, char** argv) {
  using namespace droidspeak;
  TemporaryFolder folder;
  std::filesystem::path base = argc > 1 ? std::filesystem::path(argv[1]) : folder.path();
  Context context;
  context.bytes.resize(kLayout.block_bytes());
  auto* halves = reinterpret_cast<uint16_t*>(context.bytes.data());
  for (size_t i = 0; i < context.bytes.size() / 2; ++i) {
    halves[i] = static_cast<uint16_t>(0x3000 + (i * 2654435761u >> 7 & 0x8fff));
  }
  measure_memcpy(context);
  measure_host(context);
  measure_disk(context, base, "raw", DiskFormat::kRaw);
  measure_disk(context, base, "int8", DiskFormat::kInt8);
}
