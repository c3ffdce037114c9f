// Which blocks codec tables are learned from.
#include "store/tiers/table_learner.h"

#include <gtest/gtest.h>

#include "codec/learn_tables.h"
#include "codec/test_values.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

class LearnedBlocks : public testing::Test {
 protected:
  static constexpr uint32_t kEnough = kLearnedTokens / kBlockTokens;

  // All layers of a block, of which the first `num_layers` are there.
  std::shared_ptr<PendingWrite> block(uint32_t number, int32_t num_layers) const {
    auto write = std::make_shared<PendingWrite>();
    write->label = {test_key(number), {}, number};
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      auto values = std::make_shared<std::vector<std::byte>>(
          test_values(layout_, test_frequencies(16), {layer, number * kBlockTokens}, 1, number));
      write->entries.push_back({kv(layer), *values, values});
    }
    return write;
  }

  void remember(const std::shared_ptr<PendingWrite>& write) { learner_.remember({&write, 1}); }

  const KvLayout layout_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF16};
  TableLearner learner_{{test_key(500), test_frequencies(16)}, layout_};
};

TEST_F(LearnedBlocks, AreEnoughWithAllTheirLayers) {
  for (uint32_t number = 0; number < kEnough; ++number) {
    EXPECT_FALSE(learner_.has_seen_enough()) << number;
    remember(block(number, 2));
  }
  EXPECT_TRUE(learner_.has_seen_enough());
  Result<CodecTables> tables = learner_.learn();
  ASSERT_TRUE(tables);
  EXPECT_TRUE(tables->fit(layout_));
  EXPECT_FALSE(learner_.has_seen_enough()) << "what was learned from is forgotten";
}

TEST_F(LearnedBlocks, MoreOfOneLayerDoNotStandForAnother) {
  for (uint32_t number = 0; number < 3 * kEnough; ++number) remember(block(number, 1));
  for (uint32_t number = 0; number < kEnough; ++number) {
    EXPECT_FALSE(learner_.has_seen_enough()) << number << " of the second";
    remember(block(number, 2));
  }
  EXPECT_TRUE(learner_.has_seen_enough());
  learner_.forget();
  EXPECT_FALSE(learner_.has_seen_enough());
}

TEST_F(LearnedBlocks, AreNotThoseThatWereErasedOrAreNoKv) {
  for (uint32_t number = 0; number < kEnough; ++number) {
    auto erased = block(number, 2);
    erased->is_cancelled = true;
    remember(erased);
    auto inputs = block(number, 2);
    for (PendingEntry& entry : inputs->entries) entry.id.kind = EntryKind::kLayerInput;
    remember(inputs);
    auto cut = block(number, 2);
    for (PendingEntry& entry : cut->entries) entry.bytes = entry.bytes.first(64);
    remember(cut);
  }
  EXPECT_FALSE(learner_.has_seen_enough());
}

TEST_F(LearnedBlocks, AreOfALayoutThatCanBeCoded) {
  EXPECT_TRUE(learner_.can_learn());
  EXPECT_FALSE(TableLearner({}, {}).can_learn());
  KvLayout bytes = layout_;
  bytes.dtype = DType::kI8;
  EXPECT_FALSE(TableLearner({}, bytes).can_learn());
}

}  // namespace
}  // namespace droidspeak
