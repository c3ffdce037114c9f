// Servers of the remote tier by themselves: which of them has what, who is followed and who is
// forgotten.
#include "store/tiers/remote_nodes.h"

#include <atomic>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "store/scripted_server.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

class CountingSink final : public ReadSink {
 public:
  std::span<std::byte> room(size_t, size_t) override { return {}; }

  void done(size_t, const BlockLabel* label) override {
    ++(label == nullptr ? num_failed : num_read);
  }

  bool is_wanted() const override { return true; }

  int num_failed = 0;
  int num_read = 0;
};

// All that nodes need of a tier.
class TierOfNodes : public testing::Test {
 protected:
  TierOfNodes() {
    options_.first_pause = std::chrono::milliseconds(20);
    options_.longest_pause = std::chrono::milliseconds(100);
    options_.connections = 0;
  }

  ~TierOfNodes() override {
    nodes_.close();
    EXPECT_TRUE(threads_.end(std::chrono::seconds(120), [] { return uint64_t{0}; }));
  }

  static RedisAddress nowhere(uint16_t port) { return {"127.0.0.1", port}; }

  static RedisRedirect redirect_to(const RedisAddress& address) {
    return {.kind = RedisRedirect::Kind::kMoved, .slot = 1, .address = address};
  }

  // A name in a slot.
  static std::string name_in(uint16_t slot) {
    for (int i = 0;; ++i) {
      std::string name = "name" + std::to_string(i);
      if (redis_slot(name) == slot) return name;
    }
  }

  bool has_link(const RedisAddress& address) const {
    const std::vector<LinkReport> links = nodes_.report();
    return std::ranges::find(links, address.text(), &LinkReport::address) != links.end();
  }

  ValueSeal seal_{test_bytes(1, 32)};
  BlockEncoding encoding_;
  RemoteOptions options_;
  RemoteIndex index_;
  RemoteTables tables_{{}, {}, seal_};
  RemoteCounters counters_{};
  std::atomic<int> num_answers_ = 0;
  RemoteParts parts_{.options = options_,
                     .tls = nullptr,
                     .seal = seal_,
                     .encoding = encoding_,
                     .index = index_,
                     .tables = tables_,
                     .counters = counters_,
                     .redirect_read = [](ValueRead, const RedisRedirect&) {},
                     .redirect_question = [](ValueQuestion, const RedisRedirect&) {},
                     .learn_slots = [](const std::vector<RedisSlotRange>&) {},
                     .on_answer = [this] { ++num_answers_; },
                     .on_lost = [] {},
                     .misses_an_owner = [] { return false; }};
  SteadyClock clock_;
  LeavableThreads threads_{clock_};
  RemoteNodes nodes_{parts_, threads_};
  std::shared_ptr<const void> owner_ = std::make_shared<int>(1);
};

TEST_F(TierOfNodes, OneThatIsNotUpAnswersAtOnce) {
  auto node = std::make_shared<RemoteNode>(nowhere(1), parts_);
  const Digest key = test_key(1);
  const std::vector<EntryId> wanted = {kv(0), kv(4)};
  std::vector<RemoteQuestion> questions =
      index_.questions({&key, 1}, wanted, std::chrono::steady_clock::now());
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(index_.num_known({&key, 1}, wanted), 0u);
  node->ask({questions[0]});
  EXPECT_EQ(num_answers_, 1);
  EXPECT_EQ(index_.num_known({&key, 1}, wanted), 1u) << "nobody waits for it";
  auto sink = std::make_shared<CountingSink>();
  node->read(
      {.name = "n", .key = key, .wanted = {{0, kv(0)}, {1, kv(1)}}, .sink = sink, .bytes = 7});
  EXPECT_EQ(sink->num_failed, 2);
  EXPECT_EQ(counters_.misses, 2u);
  EXPECT_EQ(node->report().queued_bytes, 0u);
  EXPECT_FALSE(node->is_up());
  EXPECT_FALSE(node->has_failed()) << "it has not been tried";
  EXPECT_FALSE(node->has_threads());
  EXPECT_FALSE(node->is_closed());
  node->close();
  EXPECT_TRUE(node->is_closed());
}

TEST_F(TierOfNodes, QuestionsThatAServerLeavesOpenAreAnsweredWithNo) {
  ScriptedServer server([](const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "CLUSTER") return "-ERR no cluster\r\n";
    return words[0] == "PING" ? "+PONG\r\n" : "no reply at all\r\n";
  });
  options_.servers = server.servers();
  nodes_.start(owner_);
  wait_until([&] { return nodes_.is_any_up(); });
  const std::vector<Digest> keys = {test_key(1), test_key(2)};
  const std::vector<EntryId> wanted = {kv(0)};
  std::vector<RemoteQuestion> questions =
      index_.questions(keys, wanted, std::chrono::steady_clock::now());
  ASSERT_EQ(questions.size(), 2u);
  for (const RemoteQuestion& question : questions) nodes_.node_of("any")->ask({question});
  wait_until([&] { return num_answers_ == 2; });
  EXPECT_EQ(index_.num_known(keys, wanted), 2u) << "nobody waits for them";
}

TEST_F(TierOfNodes, SlotsHaveTheirServers) {
  options_.servers.addresses = {nowhere(1)};
  EXPECT_EQ(nodes_.node_of("any"), nullptr) << "not started";
  nodes_.start(owner_);
  ASSERT_NE(nodes_.node_of("any"), nullptr);
  EXPECT_EQ(nodes_.node_of("any")->address(), nowhere(1)) << "without a cluster, the only one";
  nodes_.learn_slots({{.first = 0, .last = 100, .master = nowhere(2)},
                      {.first = 101, .last = 101, .master = nowhere(3)},
                      {.first = 103, .last = 16383, .master = nowhere(2)}});
  EXPECT_EQ(nodes_.node_of(name_in(0))->address(), nowhere(2));
  EXPECT_EQ(nodes_.node_of(name_in(100))->address(), nowhere(2));
  EXPECT_EQ(nodes_.node_of(name_in(101))->address(), nowhere(3));
  EXPECT_EQ(nodes_.node_of(name_in(102)), nullptr);
  EXPECT_EQ(nodes_.node_of(name_in(103))->address(), nowhere(2));
  EXPECT_EQ(nodes_.node_of(name_in(16383))->address(), nowhere(2));
  EXPECT_EQ(nodes_.report().size(), 3u);
}

TEST_F(TierOfNodes, AServerWithoutSlotsIsForgottenUnlessTheOptionsNameIt) {
  options_.servers.addresses = {nowhere(1)};
  nodes_.start(owner_);
  nodes_.learn_slots({{.first = 0, .last = 16383, .master = nowhere(2)}});
  EXPECT_TRUE(has_link(nowhere(1)) && has_link(nowhere(2)));
  auto node = nodes_.node_of("any");
  nodes_.learn_slots({{.first = 0, .last = 16383, .master = nowhere(3)}});
  EXPECT_TRUE(has_link(nowhere(1)) && has_link(nowhere(3)));
  EXPECT_FALSE(has_link(nowhere(2)));
  EXPECT_TRUE(node->is_closed());
  nodes_.follow(redirect_to(nowhere(4)));
  nodes_.learn_slots({{.first = 0, .last = 16383, .master = nowhere(3)}});
  EXPECT_TRUE(has_link(nowhere(4))) << "a redirect has named it of late";
}

TEST_F(TierOfNodes, OfThoseThatOnlyRedirectsNameThereAreFew) {
  options_.servers.addresses = {nowhere(1)};
  nodes_.start(owner_);
  nodes_.learn_slots({{.first = 0, .last = 16383, .master = nowhere(1)}});
  for (uint16_t i = 0; i < RemoteNodes::kMostNamed; ++i)
    EXPECT_NE(nodes_.follow(redirect_to(nowhere(static_cast<uint16_t>(100 + i)))), nullptr) << i;
  EXPECT_EQ(nodes_.follow(redirect_to(nowhere(200))), nullptr);
  auto known = nodes_.follow(redirect_to(nowhere(100)));
  ASSERT_NE(known, nullptr) << "one that is known is followed all the same";
  EXPECT_EQ(known->address(), nowhere(100));
  EXPECT_NE(nodes_.follow(redirect_to(nowhere(1))), nullptr);
  EXPECT_EQ(nodes_.report().size(), 1 + RemoteNodes::kMostNamed);
  // One that has slots by now does not count among them.
  nodes_.learn_slots({{.first = 0, .last = 8000, .master = nowhere(1)},
                      {.first = 8001, .last = 16383, .master = nowhere(100)}});
  EXPECT_NE(nodes_.follow(redirect_to(nowhere(201))), nullptr);
  EXPECT_EQ(nodes_.follow(redirect_to(nowhere(202))), nullptr);
}

TEST_F(TierOfNodes, ThereAreSoManyAtMost) {
  options_.servers.addresses = {nowhere(1)};
  nodes_.start(owner_);
  for (uint16_t i = 1; i < RemoteNodes::kMostNodes; ++i)
    EXPECT_NE(nodes_.follow(redirect_to(nowhere(static_cast<uint16_t>(100 + i)))), nullptr) << i;
  EXPECT_EQ(nodes_.follow(redirect_to(nowhere(200))), nullptr);
  EXPECT_EQ(nodes_.report().size(), RemoteNodes::kMostNodes);
  nodes_.close();
  EXPECT_TRUE(nodes_.follow(redirect_to(nowhere(101)))->is_closed());
}

TEST_F(TierOfNodes, OnceClosedNoMoreAreAddedAndTheirOwnerIsFree) {
  options_.servers.addresses = {nowhere(1)};
  nodes_.start(owner_);
  nodes_.close();
  EXPECT_EQ(nodes_.follow(redirect_to(nowhere(2))), nullptr);
  EXPECT_TRUE(nodes_.node_of("any")->is_closed());
  ASSERT_TRUE(threads_.end(std::chrono::seconds(60), [] { return uint64_t{0}; }));
  EXPECT_EQ(owner_.use_count(), 1);
}

TEST_F(TierOfNodes, AnOwnerIsMissedWhereSlotsAreFreeOrTheirServerIsDown) {
  ScriptedServer server([](const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "CLUSTER") return "-ERR no cluster\r\n";
    return words[0] == "PING" ? "+PONG\r\n" : "-ERR\r\n";
  });
  options_.servers = server.servers();
  nodes_.start(owner_);
  EXPECT_FALSE(nodes_.misses_an_owner()) << "no cluster";
  wait_until([&] { return nodes_.is_any_up(); });
  nodes_.learn_slots({{.first = 0, .last = 16383, .master = server.address()}});
  EXPECT_FALSE(nodes_.misses_an_owner());
  nodes_.learn_slots({{.first = 0, .last = 16382, .master = server.address()}});
  EXPECT_TRUE(nodes_.misses_an_owner()) << "nobody has the last slot";
  nodes_.learn_slots({{.first = 0, .last = 8000, .master = server.address()},
                      {.first = 8001, .last = 16383, .master = nowhere(1)}});
  EXPECT_TRUE(nodes_.misses_an_owner()) << "one of them is not there";
  EXPECT_TRUE(nodes_.is_any_up());
}

}  // namespace
}  // namespace droidspeak
