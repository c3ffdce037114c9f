// Coded K/V in Redis: with tables that the first writer learns, and everybody else takes from
// there.
#include <cmath>

#include <gtest/gtest.h>

#include "codec/device_decoder.h"
#include "codec/host_piece_kernel.h"
#include "codec/test_values.h"
#include "store/remote_fixture.h"
#include "store/tiers/link_encoding.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

const KvLayout kLayout{.num_layers = 4, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF16};

class CodedRemote : public RemoteStores {
 protected:
  StoreOptions coded(const RedisServers& servers) const {
    StoreOptions made = options(servers, RemoteFormat::kCoded);
    made.kv_layout = kLayout;
    made.input_bytes = 0;
    made.coded_model = {test_key(500), test_frequencies(16)};
    return made;
  }

  static std::vector<EntryId> entries() { return {kv(0), kv(1), kv(2), kv(3)}; }

  static std::vector<std::byte> values(uint32_t block, int32_t layer) {
    return test_values(kLayout, test_frequencies(16), {layer, block * kBlockTokens}, 1,
                       100 * block + static_cast<uint32_t>(layer));
  }

  static void put_blocks(CacheStore& store, uint32_t first, uint32_t end) {
    for (uint32_t block = first; block < end; ++block) {
      std::vector<std::vector<std::byte>> contents;
      std::vector<EntryBytes> made;
      for (EntryId id : entries()) contents.push_back(values(block, id.layer));
      for (size_t i = 0; i < contents.size(); ++i) made.push_back({entries()[i], contents[i]});
      ASSERT_TRUE(put_entries(store, {test_key(block), test_owner(block), block}, made));
    }
    store.flush();
  }

  // The first four blocks teach the tables, which the server has when this returns.
  void teach(CacheStore& store, const RedisProcess& server) {
    put_blocks(store, 0, 4);
    wait_until([&] { return !server.command({"KEYS", "ds1:tables:*"}).items.empty(); });
    // The next block is written with them once the writer knows that they are there.
    for (uint32_t block = 4; num_coded(server) == 0; ++block) put_blocks(store, block, block + 1);
  }

  // Values that are smaller than 8 bits would make them.
  static size_t num_coded(const RedisProcess& server) {
    size_t count = 0;
    for (const RedisReply& key : server.command({"KEYS", "ds1:{*"}).items) {
      int64_t bytes = server.command({"STRLEN", key.text}).integer;
      if (bytes < static_cast<int64_t>(4 * kLayout.layer_bytes() * 2 / 5)) ++count;
    }
    return count;
  }

  // Of what came, how far it is from what was put; nothing on a miss.
  static std::optional<double> loss_of(CacheStore& store, uint32_t block, int32_t layer) {
    std::vector<Digest> key = {test_key(block)};
    store.ask(key, entries());
    store.wait_for_answers(key, entries(),
                           std::chrono::steady_clock::now() + std::chrono::seconds(10));
    auto entry = store.fetch(key[0], kv(layer));
    if (!entry) return std::nullopt;
    EXPECT_EQ(entry->tier(), Tier::kRemote);
    std::vector<std::byte> before = values(block, layer);
    double loss = 0;
    double size = 0;
    for (size_t i = 0; i < before.size() / 2; ++i) {
      float was = load_element(kLayout.dtype, before.data(), i);
      float is = load_element(kLayout.dtype, entry->bytes().data(), i);
      loss += (was - is) * (was - is);
      size += was * was;
    }
    return std::sqrt(loss / size);
  }
};

TEST_F(CodedRemote, OneTeachesTablesAndAllReadWithThem) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(coded(server.servers()));
  teach(*one, server);
  put_blocks(*one, 100, 110);
  EXPECT_GE(num_coded(server), 10u);
  auto two = open_and_find(coded(server.servers()));
  for (uint32_t block = 100; block < 110; ++block) {
    for (int32_t layer = 0; layer < kLayout.num_layers; ++layer) {
      std::optional<double> loss = loss_of(*two, block, layer);
      ASSERT_TRUE(loss) << block << " " << layer;
      EXPECT_GT(*loss, 0.001) << "it is coded";
      EXPECT_LT(*loss, 0.3);
    }
  }
  EXPECT_LT(loss_of(*two, 0, 0).value(), 0.02) << "8 bits, before there were tables";
  // It does not learn its own.
  put_blocks(*two, 200, 210);
  EXPECT_EQ(server.command({"KEYS", "ds1:tables:*"}).items.size(), 1u);
  EXPECT_LT(loss_of(*open_and_find(coded(server.servers())), 205, 3).value(), 0.3);
}

TEST_F(CodedRemote, PiecesStayCodedForADeviceThatDecodes) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(coded(server.servers()));
  teach(*one, server);
  put_blocks(*one, 100, 103);
  auto plain = open_and_find(coded(server.servers()));
  auto device = make_cpu_device();
  StoreOptions with_decoder = coded(server.servers());
  with_decoder.decoder =
      std::make_shared<DeviceDecoder>(*device, std::make_unique<HostPieceKernel>(), kLayout);
  auto two = open_and_find(with_decoder);
  KvCache kv_memory(*device, kLayout, 4 * kLayout.block_bytes());
  for (uint32_t block = 100; block < 103; ++block) {
    for (int32_t layer = 0; layer < kLayout.num_layers; ++layer) {
      ASSERT_TRUE(loss_of(*plain, block, layer));
      std::vector<std::byte> right(kLayout.layer_bytes());
      std::ranges::copy(plain->fetch(test_key(block), kv(layer))->bytes(), right.begin());
      std::vector<Digest> key = {test_key(block)};
      two->ask(key, entries());
      two->wait_for_answers(key, entries(),
                            std::chrono::steady_clock::now() + std::chrono::seconds(10));
      std::optional<PinnedEntry> entry = two->fetch(key[0], kv(layer));
      ASSERT_TRUE(entry);
      ASSERT_NE(entry->coding(), nullptr);
      EXPECT_EQ(entry->value_bytes(), right.size());
      CodedBlock piece{entry->bytes(), entry->coding()->tables, block * kBlockTokens, 2};
      ASSERT_EQ(two->decoder()->decode(layer, kv_memory.layer(layer), {&piece, 1}), std::nullopt);
      std::vector<std::byte> decoded(kLayout.layer_bytes());
      kv_memory.save(*device->make_copy_lane(), layer, 2, decoded);
      EXPECT_TRUE(decoded == right) << block << " " << layer;
    }
  }
}

// Both are there before there are tables, and one of them has nothing to write.
TEST_F(CodedRemote, TablesThatComeLaterAreFoundAndNotAskedForAllTheTime) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(coded(server.servers()));
  auto two = open_and_find(coded(server.servers()));
  teach(*one, server);
  put_blocks(*one, 100, 101);
  wait_until([&] { return loss_of(*two, 100, 0).has_value(); });
  // Tables that nobody has: a miss each time, and the server hears of it now and then.
  {
    std::string name = server.command({"KEYS", "ds1:tables:*"}).items.at(0).text;
    one.reset();
    two.reset();
    server.command({"DEL", name});
  }
  auto three = open_and_find(coded(server.servers()));
  auto start = std::chrono::steady_clock::now();
  server.command({"CONFIG", "RESETSTAT"});
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(loss_of(*three, 100, 0));
  std::string stats = server.command({"INFO", "commandstats"}).text;
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  size_t at = stats.find("cmdstat_getrange:calls=");
  size_t calls = at == std::string::npos ? 0 : std::stoul(stats.substr(at + 23));
  EXPECT_LE(static_cast<double>(calls), 2 + 10 * seconds) << "once in 100 ms";
  EXPECT_EQ(remote(*three).damaged, 0u);
}

TEST_F(CodedRemote, TablesThatTheServerHasLostAreGivenBackToIt) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(coded(server.servers()));
  teach(*one, server);
  put_blocks(*one, 100, 101);
  std::string name = server.command({"KEYS", "ds1:tables:*"}).items.at(0).text;
  for (const char* damage : {"", "not sealed"}) {
    server.command({"SET", name, damage});
    if (*damage == 0) server.command({"DEL", name});
    wait_until([&] { return server.command({"STRLEN", name}).integer > 1000; });
    auto two = open_and_find(coded(server.servers()));
    EXPECT_LT(loss_of(*two, 100, 0).value(), 0.3);
  }
}

// Somebody else's tables under the same name: what was coded with ours is a miss, never wrong.
TEST_F(CodedRemote, WhatIsCodedWithOtherTablesIsAMiss) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  std::string name;
  {
    auto one = open_and_find(coded(server.servers()));
    teach(*one, server);
    put_blocks(*one, 100, 101);
    name = server.command({"KEYS", "ds1:tables:*"}).items.at(0).text;
  }
  server.command({"DEL", name});
  auto two = open_and_find(coded(server.servers()));
  EXPECT_FALSE(loss_of(*two, 100, 0)) << "there are no tables";
  EXPECT_GT(remote(*two).misses, 0u);
  EXPECT_EQ(remote(*two).damaged, 0u);
  put_blocks(*two, 300, 304);  // learns others
  wait_until([&] { return server.command({"EXISTS", name}).integer == 1; });
  EXPECT_FALSE(loss_of(*two, 100, 0));
}

// Of one base, served with another RoPE: neither replaces the other's tables, whoever was first.
TEST_F(CodedRemote, FamiliesOfOtherRopeKeepTheirTables) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(coded(server.servers()));
  teach(*one, server);
  StoreOptions longer = coded(server.servers());
  for (float& frequency : longer.coded_model.rotation.frequencies) frequency /= 4;
  auto two = open_and_find(longer);
  put_blocks(*two, 200, 204);
  auto names = [&] { return server.command({"KEYS", "ds1:tables:*"}).items; };
  wait_until([&] { return names().size() == 2; }, "tables of both");
  put_blocks(*one, 100, 101);
  EXPECT_LT(loss_of(*open_and_find(coded(server.servers())), 100, 0).value(), 0.3);
}

TEST_F(CodedRemote, DamageIsAMiss) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  {
    auto one = open_and_find(coded(server.servers()));
    teach(*one, server);
    put_blocks(*one, 100, 101);
  }
  std::string name = remote_name(test_key(100), kv(0));
  server.command({"SETRANGE", name, "700", "x!x"});
  auto two = open_and_find(coded(server.servers()));
  EXPECT_FALSE(loss_of(*two, 100, 0));
  EXPECT_EQ(remote(*two).damaged, 1u);
}

TEST(LinkEncoding, FollowsTheLink) {
  const KvLayout f16{.num_layers = 32, .num_kv_heads = 8, .head_dim = 128, .dtype = DType::kF16};
  EXPECT_EQ(fastest_encoding(f16, 1e6), EntryEncoding::kCoded);
  EXPECT_EQ(fastest_encoding(f16, 125e6), EntryEncoding::kCoded) << "1 Gbit/s";
  EXPECT_EQ(fastest_encoding(f16, 1250e6), EntryEncoding::kInt8) << "10 Gbit/s";
  EXPECT_EQ(fastest_encoding(f16, 10e9), EntryEncoding::kRaw);
  EXPECT_EQ(encoding_over(RemoteFormat::kInt8, f16, 1e6), EntryEncoding::kInt8);
  EXPECT_EQ(encoding_over(RemoteFormat::kAuto, f16, 1e6), EntryEncoding::kCoded);
  EXPECT_GT(decoded_rate(EntryEncoding::kCoded, f16, 1e6), 4.5e6);
  EXPECT_NEAR(decoded_rate(EntryEncoding::kRaw, f16, 1e6), 1e6, 1);
  KvLayout i8 = f16;
  i8.dtype = DType::kI8;
  EXPECT_EQ(fastest_encoding(i8, 1e6), EntryEncoding::kRaw);
  EXPECT_EQ(fastest_encoding({}, 1e6), EntryEncoding::kRaw) << "of no layout";
  EXPECT_EQ(encoding_over(RemoteFormat::kRaw, f16, 1e6), EntryEncoding::kRaw);
  EXPECT_EQ(encoding_over(RemoteFormat::kCoded, f16, 10e9), EntryEncoding::kCoded);
  EXPECT_EQ(decoded_rate(EntryEncoding::kCoded, i8, 1e6), 1e6);
  // 2 bytes, 0.4 bytes and 1/6e8 seconds of computing for each value.
  EXPECT_NEAR(decoded_rate(EntryEncoding::kCoded, f16, 1e9), 2 / (0.4e-9 + 1 / 6e8), 1);
  // A byte, a scale of 4 bytes for 64 of them, and 1/2e9 seconds.
  EXPECT_NEAR(decoded_rate(EntryEncoding::kInt8, f16, 1e9), 2 / (1.0625e-9 + 1 / 2e9), 1);
}

}  // namespace
}  // namespace droidspeak
