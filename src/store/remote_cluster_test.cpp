// A cluster of servers: slots that move, servers that die, are replaced and leave.
#include <csignal>

#include <gtest/gtest.h>

#include "redis/slots.h"
#include "store/remote_fixture.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

class Cluster {
 public:
  Cluster() {
    for (int i = 0; i < 3; ++i) nodes_.push_back(start_node());
    const char* ranges[3][2] = {{"0", "5460"}, {"5461", "10922"}, {"10923", "16383"}};
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i]->command({"CLUSTER", "ADDSLOTSRANGE", ranges[i][0], ranges[i][1]});
      std::string epoch = std::to_string(i + 1);
      nodes_[i]->command({"CLUSTER", "SET-CONFIG-EPOCH", epoch});
    }
    for (size_t i = 1; i < nodes_.size(); ++i)
      nodes_[0]->command({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[i]->port())});
    for (const auto& node : nodes_) wait_until([&] { return is_ok(*node); }, "the cluster");
  }

  // Node number 3: a copy of this one, and in step with it when this returns.
  void add_replica_of(size_t master) {
    nodes_.push_back(start_node());
    nodes_[0]->command({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_.back()->port())});
    std::string master_id = id(master);
    const RedisProcess& replica = *nodes_.back();
    wait_until(
        [&] {
          return replica.command({"CLUSTER", "REPLICATE", master_id}).text == "OK";
        },
        "the replica");
    wait_until(
        [&] {
          return info(replica, "replication").find("master_link_status:up") != std::string::npos;
        },
        "the replica's link");
    // Who does not know a replica does not vote for it.
    std::string replica_id = id(nodes_.size() - 1);
    for (const auto& node : nodes_) {
      wait_until(
          [&] {
            std::string known = node->command({"CLUSTER", "NODES"}).text;
            size_t line = known.find(replica_id);
            return line != std::string::npos &&
                   known.substr(line, known.find('\n', line) - line).find("slave " + master_id) !=
                       std::string::npos;
          },
          "the replica's being known");
    }
  }

  // A server without slots, which knows the others.
  void add_empty() {
    nodes_.push_back(start_node());
    nodes_[0]->command({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_.back()->port())});
    wait_until([&] { return is_ok(*nodes_.back()); }, "the empty server");
    std::string new_id = id(nodes_.size() - 1);
    wait_until(
        [&] {
          return nodes_[0]->command({"CLUSTER", "NODES"}).text.find(new_id) != std::string::npos;
        },
        "the empty server's being known");
  }

  // The slot's keys are at `to`, which has not become its owner yet.
  void begin_to_move_slot(uint16_t slot, size_t from, size_t to) {
    std::string number = std::to_string(slot);
    node(to).command({"CLUSTER", "SETSLOT", number, "IMPORTING", id(from)});
    node(from).command({"CLUSTER", "SETSLOT", number, "MIGRATING", id(to)});
    for (const RedisReply& key :
         node(from).command({"CLUSTER", "GETKEYSINSLOT", number, "100"}).items) {
      RedisReply moved = node(from).command(
          {"MIGRATE", "127.0.0.1", std::to_string(node(to).port()), key.text, "0", "5000"});
      ASSERT_EQ(moved.text, "OK");
    }
  }

  static std::string info(const RedisProcess& node, const std::string& section) {
    return node.command({"INFO", section}).text;
  }

  RedisProcess& node(size_t index) { return *nodes_[index]; }

  RedisServers servers() const { return nodes_[0]->servers(); }

  std::string id(size_t index) { return node(index).command({"CLUSTER", "MYID"}).text; }

  // The slot's keys are lost: as if they had been evicted just before.
  void move_slot(uint16_t slot, size_t to) {
    for (const auto& node : nodes_) {
      for (const RedisReply& key :
           node->command({"CLUSTER", "GETKEYSINSLOT", std::to_string(slot), "1000"}).items) {
        node->command({"DEL", key.text});
      }
    }
    for (const auto& node : nodes_)
      node->command({"CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id(to)});
  }

 private:
  static std::unique_ptr<RedisProcess> start_node() {
    return std::make_unique<RedisProcess>(RedisProcess::Options{
        .arguments = {"--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                      "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
                      "--repl-ping-replica-period", "1"}});
  }

  static bool is_ok(const RedisProcess& node) {
    std::string info = node.command({"CLUSTER", "INFO"}).text;
    RedisReply slots = node.command({"CLUSTER", "SLOTS"});
    return info.find("cluster_state:ok") != std::string::npos && slots.items.size() == 3;
  }

  std::vector<std::unique_ptr<RedisProcess>> nodes_;
};

TEST_F(RemoteStores, AClusterIsUsedBySlots) {
  SKIP_WITHOUT_REDIS();
  Cluster cluster;
  auto is_whole = [](const CacheStore& store) {
    return is_up(store) && remote(store).links.size() == 3;
  };
  const uint64_t num_blocks = 24;
  auto one = open(options(cluster.servers()));
  wait_until([&] { return is_whole(*one); });
  put(*one, num_blocks);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_GT(cluster.node(i).command({"DBSIZE"}).integer, 4) << "node " << i;
  auto two = open(options(cluster.servers()));
  wait_until([&] { return is_whole(*two); });
  ASSERT_EQ(find(*two, num_blocks), num_blocks);
  EXPECT_EQ(read_right(*two, num_blocks, Tier::kRemote), num_blocks * kPerBlock);

  // A slot moves behind both stores' backs: MOVED is followed by writes, questions and reads.
  uint16_t slot = redis_slot(remote_name(test_key(0), kv(0)));
  size_t to = slot <= 5460 ? 1 : 0;
  cluster.move_slot(slot, to);
  one->clear();
  two->clear();
  put(*one, 1);
  EXPECT_EQ(remote(*one).write_errors, 0u);
  ASSERT_EQ(find(*two, 1), 1u);
  EXPECT_EQ(read_right(*two, 1, Tier::kRemote), kPerBlock);

  cluster.node(2).kill_now();
  two->clear();
  find(*two, num_blocks);
  size_t count = read_right(*two, num_blocks, Tier::kRemote);
  EXPECT_LT(count, num_blocks * kPerBlock);
}

// A slot on its way: what has gone already is asked for at the other server.
TEST_F(RemoteStores, AskIsFollowed) {
  SKIP_WITHOUT_REDIS();
  Cluster cluster;
  auto one = open(options(cluster.servers()));
  wait_until([&] { return is_up(*one) && remote(*one).links.size() == 3; });
  put(*one, 1);
  auto two = open(options(cluster.servers()));
  wait_until([&] { return is_up(*two) && remote(*two).links.size() == 3; });
  uint16_t slot = redis_slot(remote_name(test_key(0), kv(0)));
  size_t from = slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2;
  size_t to = (from + 1) % 3;
  cluster.begin_to_move_slot(slot, from, to);
  ASSERT_EQ(find(*two, 1), 1u);
  EXPECT_EQ(read_right(*two, 1, Tier::kRemote), kPerBlock);
}

// A server that only ASK names has no slots yet: it has not left the cluster, but is about to come.
TEST_F(RemoteStores, AServerThatASlotIsOnItsWayToStays) {
  SKIP_WITHOUT_REDIS();
  Cluster cluster;
  cluster.add_empty();
  auto store = open(options(cluster.servers()));
  wait_until([&] { return is_up(*store) && remote(*store).links.size() == 3; });
  put(*store, 24);
  uint16_t slot = redis_slot(remote_name(test_key(0), kv(0)));
  size_t from = slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2;
  cluster.begin_to_move_slot(slot, from, 3);
  store = open(options(cluster.servers()));
  wait_until([&] { return find(*store, 1) == 1; });  // once the fourth one is met
  EXPECT_EQ(remote(*store).links.size(), 4u);
  // The slots are read anew, because others have moved.
  auto slots_calls = [&] {
    size_t calls = 0;
    for (size_t i = 0; i < 4; ++i) {
      std::string stats = Cluster::info(cluster.node(i), "commandstats");
      size_t at = stats.find("cmdstat_cluster|slots:calls=");
      if (at != std::string::npos) calls += std::stoul(stats.substr(at + 28));
    }
    return calls;
  };
  for (uint64_t block : {1, 2}) {
    size_t before = slots_calls();
    uint16_t other = redis_slot(remote_name(test_key(block), kv(0)));
    ASSERT_NE(other, slot);
    cluster.move_slot(other, other <= 5460 ? 1 : 0);
    std::vector<Digest> moved = {test_key(block)};
    wait_until([&] {
      store->ask(moved, remote_entries());
      return slots_calls() > before;
    });
  }
  EXPECT_EQ(remote(*store).links.size(), 4u);
  EXPECT_EQ(read_right(*store, 1, Tier::kRemote), kPerBlock);
}

// The replica takes the dead master's place: what was written is found there, what is written goes
// there, and the dead one is forgotten.
TEST_F(RemoteStores, AReplicaTakesTheMastersPlace) {
  SKIP_WITHOUT_REDIS();
  Cluster cluster;
  cluster.add_replica_of(1);
  const uint64_t num_blocks = 24;
  auto has_links = [&](const CacheStore& store, size_t num) {
    return is_up(store) && remote(store).links.size() == num;
  };
  auto one = open(options(cluster.servers()));
  auto two = open(options(cluster.servers()));
  wait_until([&] { return has_links(*one, 3) && has_links(*two, 3); });
  put(*one, num_blocks);
  ASSERT_EQ(find(*two, num_blocks), num_blocks);
  const std::string offset = "master_repl_offset:";
  auto offset_of = [&](size_t node) {
    std::string text = Cluster::info(cluster.node(node), "replication");
    size_t at = text.find(offset);
    return text.substr(at, text.find('\r', at) - at);
  };
  wait_until([&] { return offset_of(1) == offset_of(3); });

  cluster.node(1).kill_now();
  EXPECT_LT(read_right(*two, num_blocks, Tier::kRemote), num_blocks * kPerBlock)
      << "misses, no more";
  auto names = [&](const CacheStore& store, uint16_t port) {
    const auto links = remote(store).links;
    return std::ranges::any_of(links, [&](const LinkReport& link) {
      return link.is_up && link.address == RedisAddress{"127.0.0.1", port}.text();
    });
  };
  // Somebody has to ask for the dead one to be missed.
  wait_until([&] {
    find(*one, num_blocks);
    return names(*one, cluster.node(3).port()) && has_links(*one, 3);
  });
  auto three = open(options(cluster.servers()));
  wait_until([&] { return has_links(*three, 3) && names(*three, cluster.node(3).port()); });
  ASSERT_EQ(find(*three, num_blocks), num_blocks) << "the replica had it all";
  EXPECT_EQ(read_right(*three, num_blocks, Tier::kRemote), num_blocks * kPerBlock);
  one->clear();
  put(*one, num_blocks);
  EXPECT_EQ(remote(*one).write_errors, 0u);
  EXPECT_EQ(remote(*one).dropped_writes, 0u);
  one->check_integrity();
}

}  // namespace
}  // namespace droidspeak
