// The remote tier on a server that is only a map: what must hold on every machine, with or without
// a Redis.
#include <gtest/gtest.h>

#include "store/map_server.h"
#include "store/remote_fixture.h"

namespace droidspeak {
namespace {

TEST_F(RemoteStores, AMapThatSpeaksRespIsEnough) {
  MapServer server;
  const size_t per_block = remote_entries().size();
  auto one = open_and_find(options(server.servers()));
  put(*one, 3);
  EXPECT_GT(server.num_values(), 3u);
  auto two = open_and_find(options(server.servers()));
  EXPECT_EQ(find(*two, 4), 3u);
  EXPECT_EQ(read_right(*two, 3, Tier::kRemote), 3 * per_block);
  EXPECT_EQ(two->tier_of(keys(3), remote_entries()), Tier::kHost) << "promoted";
  EXPECT_EQ(remote(*two).damaged, 0u);
}

TEST_F(RemoteStores, ValuesOfNoPossibleSizeAreMisses) {
  for (size_t size : {size_t{0}, size_t{5}, size_t{700'000}}) {
    SCOPED_TRACE(size);
    MapServer server;
    put(*open_and_find(options(server.servers())), 2);
    server.change_blocks([&](std::string& value) { value.resize(size, 'x'); });
    auto two = open_and_find(options(server.servers()));
    EXPECT_EQ(find(*two, 2), 2u);
    EXPECT_EQ(read_right(*two, 2, Tier::kRemote), 0u);
    EXPECT_GT(remote(*two).damaged, 0u);
    EXPECT_EQ(find(*two, 2), 0u) << "they are not asked for again";
  }
}

// K/V of ten layers lies in three values, the input of a layer in one.
TEST_F(RemoteStores, ReportWhatWentOverTheLink) {
  MapServer server;
  auto one = open_and_find(options(server.servers()));
  put(*one, 2);
  uint64_t stored = 0;
  size_t num_values = 0;
  server.change_blocks([&](std::string& value) {
    stored += value.size();
    ++num_values;
  });
  EXPECT_EQ(num_values, 2u * 4);
  TierReport wrote = remote(*one);
  EXPECT_EQ(wrote.tier, Tier::kRemote);
  EXPECT_EQ(wrote.bytes_written, stored);
  EXPECT_EQ(wrote.entries, 2u);
  EXPECT_EQ(wrote.hits + wrote.misses + wrote.bytes_read + wrote.write_errors, 0u);
  EXPECT_EQ(wrote.read_seconds, 0);
  auto two = open_and_find(options(server.servers()));
  EXPECT_EQ(find(*two, 3), 2u);
  ASSERT_EQ(read_right(*two, 2, Tier::kRemote), 2 * kPerBlock);
  TierReport read = remote(*two);
  EXPECT_EQ(read.hits, 2 * kPerBlock);
  EXPECT_EQ(read.misses + read.damaged + read.dropped_writes + read.write_errors, 0u);
  EXPECT_EQ(read.bytes_read, stored);
  EXPECT_GT(read.read_seconds, 0);
  EXPECT_LT(read.read_seconds, 600);
  ASSERT_EQ(read.links.size(), 1u);
  EXPECT_EQ(read.links[0].failures, 0u);
}

TEST_F(RemoteStores, EveryDamagedValueIsCountedOnce) {
  MapServer server;
  put(*open_and_find(options(server.servers())), 2);
  server.change_blocks([](std::string& value) { value.back() = static_cast<char>(~value.back()); });
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 2), 2u);
  EXPECT_EQ(read_right(*two, 2, Tier::kRemote), 0u);
  EXPECT_EQ(remote(*two).damaged, 2u * 4);
  EXPECT_EQ(remote(*two).hits, 0u);
}

}  // namespace
}  // namespace droidspeak
