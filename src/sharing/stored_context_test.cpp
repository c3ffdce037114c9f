#include "sharing/stored_context.h"

#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "store/test_entries.h"

namespace droidspeak {
namespace {

constexpr int32_t kNumLayers = 4;

std::vector<Digest> some_keys(uint64_t first, size_t count) {
  std::vector<Digest> keys;
  for (size_t i = 0; i < count; ++i) keys.push_back(test_key(first + i));
  return keys;
}

// A sender's cache of five blocks, an own one of two behind three of a sender's, an own exact one.
std::vector<StoredContext> contexts(const ReusePlan& plan) {
  return {{.plan = plan, .sender_keys = some_keys(0, 5)},
          {.plan = plan, .sender_keys = some_keys(0, 3), .own_keys = some_keys(100, 5)},
          {.own_keys = some_keys(100, 5)}};
}

using Entries = std::set<std::pair<Digest, EntryId>>;

// One by one, as a load reads them.
Entries loaded(const StoredContext& stored) {
  Entries entries;
  for (size_t block = 0; block < stored.num_blocks(); ++block) {
    for (int32_t layer : stored.loaded_layers(kNumLayers))
      entries.insert({stored.key_of(block, layer), {EntryKind::kKeyValue, layer}});
    int32_t input = stored.input_layer();
    if (input >= 0) entries.insert({stored.key_of(block, input), {EntryKind::kLayerInput, input}});
  }
  return entries;
}

TEST(StoredContext, PartsAreWhatALoadReads) {
  for (const ReusePlan& plan : {ReusePlan{0, 1, 3}, ReusePlan{1, 1, 2}, ReusePlan{0, 0, 0}}) {
    for (const StoredContext& stored : contexts(plan)) {
      for (size_t first = 0; first <= stored.num_blocks(); ++first) {
        Entries entries;
        for (const StoredContext::Part& part : stored.parts(kNumLayers, first)) {
          for (const Digest& key : part.keys) {
            for (EntryId id : part.entries) EXPECT_TRUE(entries.insert({key, id}).second);
          }
        }
        EXPECT_EQ(entries, loaded(stored.behind(first)));
      }
    }
  }
}

TEST(StoredContext, RecomputesWhatNobodyHasStored) {
  std::vector<StoredContext> stored = contexts({0, 1, 3});
  EXPECT_TRUE(stored[0].recomputes(1));
  EXPECT_FALSE(stored[0].recomputes(0));
  EXPECT_EQ(stored[0].input_layer(), 1);
  EXPECT_GT(stored[0].recompute_work(), 0);
  for (const StoredContext& own : {stored[1], stored[2]}) {
    EXPECT_FALSE(own.recomputes(1));
    EXPECT_EQ(own.input_layer(), -1);
    EXPECT_EQ(own.recompute_work(), 0);
    EXPECT_EQ(own.loaded_layers(kNumLayers), (std::vector<int32_t>{0, 1, 2, 3}));
  }
}

TEST(StoredContext, IsCutToItsLeadingBlocks) {
  for (StoredContext stored : contexts({0, 1, 3})) {
    const Entries whole = loaded(stored);
    for (size_t count : {4u, 2u, 0u}) {
      stored.cut(count);
      EXPECT_EQ(stored.num_blocks(), count);
      for (const auto& entry : loaded(stored)) EXPECT_TRUE(whole.contains(entry));
    }
  }
}

}  // namespace
}  // namespace droidspeak
