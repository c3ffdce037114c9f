// A directory whose Redis answers, but takes nothing more.
#include <latch>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "store/scripted_server.h"
#include "store/test_entries.h"
#include "store/tiers/peer_directory.h"

namespace droidspeak {
namespace {

std::string bulk(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

// Redis takes the first lease, then nothing more; it can still be read. The first lease is answered
// once there is a block to ask for and one to tell of, so that both come in one piece of work.
TEST(PeerDirectory, KeepsWhatItFoundWhereNothingCanBeTold) {
  const PeerNodeId own{std::byte{1}};
  const PeerNodeId other{std::byte{2}};
  PeerHolding holding{other, {}};
  holding.entries.add(kv(0));
  PeerOptions options{.secret = test_bytes(1, 32), .stall = kLongestTestWait};
  const PeerRecords records(options.secret);
  std::latch has_work(1);
  std::atomic<int> num_told = 0;
  ScriptedServer redis([&](const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "PING") return "+PONG\r\n";
    if (words[0] == "DEL") return ":1\r\n";
    if (words[0] == "GET" && words[1] == PeerRecords::block_name(test_key(1)))
      return bulk(records.holding_text(test_key(1), holding));
    if (words[0] == "GET") return bulk(records.lease_text(other, "10.0.0.1:7"));
    has_work.wait();
    return num_told++ == 0 ? "+OK\r\n" : "-READONLY\r\n";
  });
  options.directory = redis.servers();
  PeerHoldings holdings;
  holdings.add({test_key(2), {}, 0}, std::vector<PendingEntry>{{kv(0), {}, nullptr}});
  PeerIndex index(own);
  const Digest asked = test_key(1);
  {
    PeerDirectory directory({options, holdings, index, own, "10.0.0.2:7", [](const auto&) {}});
    directory.ask(std::span(&asked, 1));
    directory.publish(test_key(2));
    has_work.count_down();
    directory.wait_for_answers(std::span(&asked, 1),
                               std::chrono::steady_clock::now() + kLongestTestWait);
  }
  EXPECT_EQ(index.address_of(asked, kv(0), std::chrono::steady_clock::now()), "10.0.0.1:7");
}

}  // namespace
}  // namespace droidspeak
