// Hit rates of eviction policies on a made-up agent workload: which share of the blocks that
// requests read is found, as a prefix of the request's context. A hit behind a hole does not count.
//   store_eviction_bench [seed]
//
// The workload: contexts of 8 to 128 blocks (log-normal), read by several agents with Zipf
// popularity that drifts; all contexts of a tenant share a system prompt of 4 blocks; a third of
// the requests continue a conversation (the last context and a few blocks more); part of the
// requests are one-off contexts.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "micro/store_eviction_contenders.h"
#include "store/eviction/lru.h"
#include "store/eviction/s3_fifo.h"

namespace droidspeak {
namespace {

using Context = std::vector<Digest>;

struct Workload {
  std::string name;
  double one_off_share = 0;
  double conversation_share = 0;
  double zipf = 1.0;
  int num_documents = 400;
  int num_requests = 20000;
};

Digest key_of(uint64_t a, uint64_t b) {
  uint64_t numbers[2] = {a, b};
  return sha256(std::as_bytes(std::span(numbers)));
}

class Trace {
 public:
  Trace(const Workload& workload, uint64_t seed) : random_(seed) {
    for (int i = 0; i < workload.num_documents; ++i) documents_.push_back(new_context());
    std::vector<double> weights;
    for (int i = 0; i < workload.num_documents; ++i) {
      weights.push_back(1.0 / std::pow(i + 1.0, workload.zipf));
    }
    std::discrete_distribution<size_t> popularity(weights.begin(), weights.end());
    std::uniform_real_distribution<double> uniform;
    for (int i = 0; i < workload.num_requests; ++i) {
      drift();
      double draw = uniform(random_);
      if (draw < workload.one_off_share) {
        requests_.push_back(new_context());
      } else if (draw < workload.one_off_share + workload.conversation_share) {
        requests_.push_back(continue_conversation());
      } else {
        requests_.push_back(documents_[popularity(random_)]);
      }
    }
  }

  const std::vector<Context>& requests() const { return requests_; }

  size_t num_distinct_blocks() const {
    std::unordered_set<Digest, DigestHash> distinct;
    for (const Context& context : requests_) distinct.insert(context.begin(), context.end());
    return distinct.size();
  }

 private:
  Context new_context() {
    std::lognormal_distribution<double> length(std::log(32.0), 0.7);
    auto blocks = static_cast<uint64_t>(std::min(128.0, std::max(8.0, length(random_))));
    uint64_t tenant = random_() % 8;
    Context context;
    for (uint64_t i = 0; i < 4; ++i) context.push_back(key_of(tenant, i));
    uint64_t name = 1000 + ++num_contexts_;
    for (uint64_t i = 4; i < blocks; ++i) context.push_back(key_of(name, i));
    return context;
  }

  // Ranks of two documents change places now and then.
  void drift() {
    if (random_() % 50 != 0) return;
    std::swap(documents_[random_() % documents_.size()], documents_[random_() % documents_.size()]);
  }

  Context continue_conversation() {
    constexpr size_t kOpen = 30;
    if (conversations_.size() < kOpen) conversations_.push_back(documents_[random_() % 100]);
    Context& context = conversations_[random_() % conversations_.size()];
    uint64_t more = 1 + random_() % 4;
    uint64_t name = 1000 + ++num_contexts_;
    for (uint64_t i = 0; i < more; ++i) context.push_back(key_of(name, i));
    Context turn = context;
    if (context.size() > 160) context = new_context();
    return turn;
  }

  std::mt19937_64 random_;
  uint64_t num_contexts_ = 0;
  std::vector<Context> documents_;
  std::vector<Context> conversations_;
  std::vector<Context> requests_;
};

double hit_rate(EvictionPolicy& policy, const Trace& trace, size_t capacity) {
  std::unordered_set<Digest, DigestHash> held;
  uint64_t hits = 0;
  uint64_t total = 0;
  for (const Context& context : trace.requests()) {
    size_t prefix = 0;
    while (prefix < context.size() && held.contains(context[prefix])) ++prefix;
    hits += prefix;
    total += context.size();
    for (size_t i = 0; i < context.size(); ++i) {
      if (held.contains(context[i])) {
        policy.touch(context[i]);
        continue;
      }
      while (held.size() >= capacity) {
        held.erase(*policy.evict([](const Digest&) { return true; }));
      }
      policy.add({context[i], static_cast<uint32_t>(i)});
      held.insert(context[i]);
    }
  }
  return 100.0 * static_cast<double>(hits) / static_cast<double>(total);
}

struct Contender {
  const char* name;
  std::unique_ptr<EvictionPolicy> (*make)();
};

template <class Policy>
std::unique_ptr<EvictionPolicy> make() {
  return std::make_unique<Policy>();
}

constexpr Contender kContenders[] = {
    {"touch-order lru", make<TouchOrderLru>}, {"lru", make<LruPolicy>},
    {"segmented lru", make<SegmentedLru>},    {"aged frequency", make<AgedFrequency>},
    {"s3fifo", make<S3FifoPolicy>},
};

void compare(const Workload& workload, uint64_t seed) {
  Trace trace(workload, seed);
  size_t distinct = 400 * 40;  // the documents, about
  std::printf("\n%s: %zu requests, %zu distinct blocks; hit rate in %% by capacity in blocks\n",
              workload.name.c_str(), trace.requests().size(), trace.num_distinct_blocks());
  std::printf("%-16s", "policy");
  std::vector<size_t> capacities;
  for (double share : {0.05, 0.1, 0.2, 0.4, 0.8}) {
    capacities.push_back(static_cast<size_t>(share * static_cast<double>(distinct)));
    std::printf("%9zu", capacities.back());
  }
  std::printf("\n");
  for (const Contender& contender : kContenders) {
    std::printf("%-16s", contender.name);
    for (size_t capacity : capacities) {
      std::unique_ptr<EvictionPolicy> policy = contender.make();
      std::printf("%9.2f", hit_rate(*policy, trace, capacity));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace droidspeak

int main(int argc, char** argv) {
  using droidspeak::Workload;
  uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  droidspeak::compare({.name = "documents only", .zipf = 0.9}, seed);
  droidspeak::compare({.name = "documents and 40 % scans", .one_off_share = 0.4, .zipf = 0.9},
                      seed);
  droidspeak::compare({.name = "agents: scans and conversations",
                       .one_off_share = 0.3,
                       .conversation_share = 0.33,
                       .zipf = 0.9},
                      seed);
}
