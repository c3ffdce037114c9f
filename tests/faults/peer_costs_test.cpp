// What a load from peers costs is told by the links to those that have it.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/engine_fixture.h"
#include "engine/prefill_chooser.h"
#include "redis/redis_process.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

class ChoosingAmongPeers : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_REDIS();
    redis_ = std::make_unique<RedisProcess>();
    reader_ = std::make_unique<CacheStore>(at("127.0.0.1"), clock_);
  }

  StoreOptions at(const std::string& host) const {
    StoreOptions options{.host_bytes = uint64_t{64} << 20};
    options.peer = {.listen = host + ":0",
                    .directory = redis_->servers(),
                    .secret = std::vector<std::byte>(32, std::byte{1})};
    return options;
  }

  Sequence sequence(uint32_t seed) const {
    GenerationRequest request;
    request.model = "base";
    request.prompt = random_prompt(seed, 3 * kBlockTokens + 1);
    request.max_tokens = 1;
    Sequence made({.request = std::move(request),
                   .variant = family_.models().base(),
                   .vocab_size = 320,
                   .max_tokens = 3 * kBlockTokens + 2});
    made.exact_keys = chooser().exact_keys(made, *made.variant);
    return made;
  }

  PrefillChooser chooser() const {
    return {family_.models(), books_, *reader_, pool_, costs_, options_};
  }

  void put(CacheStore& store, const std::vector<Digest>& keys, size_t bytes) const {
    const std::vector<std::byte> content(bytes);
    std::vector<EntryBytes> entries;
    for (EntryId id : entries_) entries.push_back({id, content});
    for (const Digest& key : keys) ASSERT_TRUE(put_entries(store, {.key = key}, entries));
  }

  void wait_until_found(const std::vector<Digest>& keys) {
    wait_until([&] {
      reader_->ask(keys, entries_);
      reader_->wait_for_answers(keys, entries_,
                                std::chrono::steady_clock::now() + std::chrono::seconds(1));
      return reader_->longest_prefix(keys, entries_) == keys.size();
    });
  }

  // Reads so many bytes from a peer, which tells the rate of its link.
  void measure(CacheStore& peer, uint64_t number, size_t bytes) {
    const std::vector<Digest> keys = {test_key(number)};
    put(peer, keys, bytes);
    wait_until([&] {  // a peer that was not met yet has nothing
      wait_until_found(keys);
      return std::ranges::all_of(
          entries_, [&](EntryId id) { return reader_->fetch(keys[0], id).has_value(); });
    });
  }

  // Links are measured again now and then.
  static bool is_cost_of(const LinkCost& cost, std::initializer_list<LinkReport> reports) {
    return std::ranges::any_of(reports, [&](const LinkReport& link) {
      return std::abs(cost.bytes_per_second / link.bytes_per_second - 1) < 1e-9;
    });
  }

  LinkReport link_to(const std::string& host) const {
    const StoreCounters counters = reader_->counters();
    for (const LinkReport& link : counters.of(Tier::kPeer).links) {
      if (link.address.starts_with(host)) return link;
    }
    return {};
  }

  TinyFamily family_;
  const PlanBooks books_{family_.ops(), family_.models().config(), family_.file()};
  SteadyClock clock_;
  const std::vector<EntryId> entries_ = key_value_entries(4);
  std::unique_ptr<RedisProcess> redis_;
  std::unique_ptr<CacheStore> reader_;
  BlockPool pool_{8};
  const CostModel costs_{{.token_seconds = 1, .bandwidths = {1e10, 5e8, 1e9, 1e8}}, 4};
  const ChooserOptions options_{.layout = family_.models().config().kv_layout(DType::kF32)};
};

TEST_F(ChoosingAmongPeers, ALoadCostsWhatTheLinkToTheOneThatHasItDoes) {
  CacheStore first(at("127.0.0.2"), clock_);
  CacheStore second(at("127.0.0.3"), clock_);
  measure(first, 1, size_t{1} << 20);
  measure(second, 2, 1000);
  const LinkReport to_first = link_to("127.0.0.2");
  const LinkReport to_second = link_to("127.0.0.3");
  ASSERT_GT(to_first.bytes_per_second, 0);
  ASSERT_GT(to_second.bytes_per_second, 0);
  ASSERT_NE(to_first.bytes_per_second, to_second.bytes_per_second);
  for (bool is_first : {true, false}) {
    const std::string host = is_first ? "127.0.0.2" : "127.0.0.3";
    Sequence reading = sequence(is_first ? 1 : 2);
    put(is_first ? first : second, reading.exact_keys, options_.layout.layer_bytes());
    wait_until_found(reading.exact_keys);
    const LinkReport before = link_to(host);
    const PrefillChoice choice = chooser().choose(reading, 0);
    ASSERT_EQ(choice.source(), PrefillChoice::Source::kOwnExact);
    ASSERT_EQ(choice.stored.num_blocks(), 3u);
    const std::optional<LinkCost>& cost = choice.links[index_of(Tier::kPeer)];
    ASSERT_TRUE(cost);
    EXPECT_TRUE(is_cost_of(*cost, {before, link_to(host)})) << cost->bytes_per_second;
    PrefillWork work{.context_tokens = 3 * kBlockTokens, .suffix_tokens = 1};
    work.load_bytes[index_of(Tier::kPeer)] = uint64_t{3} * 4 * options_.layout.layer_bytes();
    work.links[index_of(Tier::kPeer)] = cost;
    EXPECT_NEAR(choice.predicted_seconds, costs_.prefill_seconds(work), 1e-9);
  }
}

}  // namespace
}  // namespace droidspeak
