// What a pass asks the operations for: no row more than is wanted, corrections of neighbours
// together, single tokens as something that comes again. What comes out is compared in
// tests/parity.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "kv/kv_cache.h"
#include "model/expert_ffn.h"
#include "model/family.h"
#include "support/tiny_model.h"
#include "support/watched_ops.h"

namespace droidspeak {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;
using Rows = std::vector<int64_t>;

class Passes : public testing::Test {
 protected:
  Passes() {
    const KvLayout layout = family_.config().kv_layout(DType::kF16);
    kv_ = std::make_unique<KvCache>(*device_, layout, 16 * layout.block_bytes());
  }

  // Rows of a sequence of its own, behind those of all others.
  BatchSlice slice(int32_t num_rows, const char* variant) {
    BlockTable& table = *tables_.emplace_back(std::make_unique<BlockTable>());
    EXPECT_TRUE(table.reserve(kv_->pool(), num_rows));
    const int64_t first = std::exchange(num_rows_, num_rows_ + num_rows);
    return {{first, num_rows, 0, table.blocks()}, family_.get(variant)->adapter.get()};
  }

  // What attention sees, layer by layer.
  Rows run(const std::vector<BatchSlice>& slices, LayerRange range = {0, 4}) {
    const std::vector<int32_t> tokens(static_cast<size_t>(num_rows_), 65);
    Tensor hidden(*device_, DType::kF32, num_rows_, family_.config().d_model);
    Transformer& transformer = *family_.base()->transformer;
    ops_.attention_rows.clear();
    ops_.lora_rows.clear();
    ops_.num_repeats = 0;
    transformer.embed(tokens, hidden.view());
    transformer.forward_layers(range, slices, *kv_, hidden.view());
    return ops_.attention_rows;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  WatchedOps ops_{*device_};
  ModelFamily family_{ops_, read_family_file(write_tiny_family(folder_.path())),
                      FamilyOptions{Precision::kExact, 0}};
  std::unique_ptr<KvCache> kv_;
  std::vector<std::unique_ptr<BlockTable>> tables_;
  int64_t num_rows_ = 0;
};

TEST_F(Passes, HaveOnlyWantedRowsInTheLastLayer) {
  std::vector<BatchSlice> slices = {slice(5, "base"), slice(3, "base"), slice(2, "base")};
  EXPECT_EQ(run(slices), (Rows{10, 10, 10, 10})) << "all are wanted";
  slices[0].output_rows = 1;
  slices[1].output_rows = 0;
  slices[2].output_rows = 2;
  EXPECT_EQ(run(slices), (Rows{10, 10, 10, 3}));
  EXPECT_EQ(run(slices, {0, 3}), (Rows{10, 10, 10})) << "before the last one all are needed";
  EXPECT_EQ(run(slices, {3, 4}), (Rows{3}));
  for (BatchSlice& one : slices) one.output_rows = 0;
  EXPECT_EQ(run(slices), (Rows{10, 10, 10})) << "its K/V is all that it leaves";
}

TEST_F(Passes, OfSingleTokensAreRepeated) {
  std::vector<BatchSlice> slices = {slice(1, "base"), slice(1, "alpha")};
  EXPECT_EQ(run(slices), (Rows{2, 2, 2, 2}));
  EXPECT_EQ(ops_.num_repeats, 1);
  run(slices, {0, 1});
  EXPECT_EQ(ops_.num_repeats, 0) << "a layer is not worth it";
  run(slices, {1, 3});
  EXPECT_EQ(ops_.num_repeats, 1);
  slices[1].output_rows = 0;
  EXPECT_EQ(run(slices), (Rows{2, 2, 2, 2})) << "as the next ones will come";
  EXPECT_EQ(ops_.num_repeats, 1);
  slices.push_back(slice(2, "base"));
  run(slices);
  EXPECT_EQ(ops_.num_repeats, 0) << "a prompt is among them";
}

TEST_F(Passes, WhoseTokensAreLookedAtAreNotRepeated) {
  std::vector<BatchSlice> slices = {slice(1, "base")};
  Tensor sums(*device_, DType::kF32, 1, 1);
  const AttentionMass mass{.sums = sums.view(), .first_layer = 3};
  slices[0].mass = &mass;
  run(slices);
  EXPECT_EQ(ops_.num_repeats, 0);
}

TEST_F(Passes, CorrectNeighboursOfOneAdapterTogether) {
  std::vector<BatchSlice> slices = {slice(2, "alpha"), slice(1, "alpha"), slice(3, "base"),
                                    slice(1, "alpha"), slice(1, "beta")};
  run(slices);
  ASSERT_EQ(ops_.lora_rows.size(), 4u * 4) << "q/k/v, output, gate/up and down of each layer";
  for (const Ranges& ranges : ops_.lora_rows) EXPECT_EQ(ranges, (Ranges{{0, 3}, {6, 7}, {7, 8}}));
  slices[0].base_rows = 1;
  slices[1].base_rows = 1;
  slices[3].base_rows = 1;
  run(slices);
  for (const Ranges& ranges : ops_.lora_rows) EXPECT_EQ(ranges, (Ranges{{1, 2}, {7, 8}}));
  for (BatchSlice& one : slices) one.base_rows = one.sequence.num_rows;
  run(slices);
  EXPECT_TRUE(ops_.lora_rows.empty()) << "nobody's adapter is active";
}

// One layer of two experts, each chosen by every row.
class ExpertPasses : public testing::Test {
 protected:
  ExpertPasses() {
    config_.d_model = 8;
    config_.experts = {.count = 2, .per_row = 2, .ffn_dim = 4};
    weights_.router = pack(2, 8);
    for (int i = 0; i < 2; ++i) weights_.experts.push_back({pack(8, 8), pack(8, 4), {}, {}});
    adapter_.layers.resize(1);
    plain_.layers.resize(1);
    for (int i = 0; i < 2; ++i) {
      ExpertLora& lora = adapter_.layers[0].experts.emplace_back();
      if (i == 1) continue;  // of which nothing is adapted
      lora.down.down = pack(2, 4);
      lora.down.parts.push_back({.up = pack(8, 2), .rank = 2});
    }
  }

  std::unique_ptr<WeightMatrix> pack(int64_t rows, int64_t columns) {
    const std::vector<float> values(static_cast<size_t>(rows * columns), 0.25f);
    const MatrixPart part{DType::kF32, rows, columns, std::as_bytes(std::span(values)), {}};
    return ops_.pack({&part, 1}, Precision::kExact);
  }

  BatchSlice slice(int64_t first, int32_t num_rows, const Adapter* adapter) const {
    BatchSlice made;
    made.sequence.first_row = first;
    made.sequence.num_rows = num_rows;
    made.adapter = adapter;
    return made;
  }

  // Whether the device was left to it.
  bool is_taken(const std::vector<BatchSlice>& slices) {
    Tensor in(*device_, DType::kF32, 4, 8);
    Tensor hidden(*device_, DType::kF32, 4, 8);
    std::fill_n(in.view().f32(), 32, 1.0f);
    std::fill_n(hidden.view().f32(), 32, 0.0f);
    ops_.experts_taken.clear();
    ops_.lora_rows.clear();
    ops_.num_linear = 0;
    ExpertFfn(ops_).add(config_, weights_, 0, slices, in.view(), hidden.view());
    return ops_.num_linear == 0;
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  WatchedOps ops_{*device_};
  ModelConfig config_;
  LayerWeights weights_;
  Adapter adapter_;
  Adapter plain_;  // none on experts
};

TEST_F(ExpertPasses, AreOneOperationWhereNoExpertIsCorrected) {
  ops_.takes_experts = true;
  EXPECT_TRUE(is_taken({slice(0, 4, nullptr)}));
  EXPECT_EQ(ops_.experts_taken, std::vector<size_t>{2});
  EXPECT_TRUE(is_taken({slice(0, 2, nullptr), slice(2, 2, &plain_)}));
  EXPECT_EQ(ops_.experts_taken, std::vector<size_t>{2});
  BatchSlice inactive = slice(2, 2, &adapter_);
  inactive.base_rows = 2;
  EXPECT_TRUE(is_taken({slice(0, 2, nullptr), inactive}));
  EXPECT_FALSE(is_taken({slice(0, 2, nullptr), slice(2, 2, &adapter_)}));
  EXPECT_TRUE(ops_.experts_taken.empty()) << "it is not asked";
  inactive.base_rows = 1;
  EXPECT_FALSE(is_taken({slice(0, 2, nullptr), inactive}));
  ops_.takes_experts = false;
  EXPECT_FALSE(is_taken({slice(0, 4, nullptr)}));
  EXPECT_EQ(ops_.experts_taken.size(), 1u) << "it has no such way";
}

// Rows lie expert by expert: four of the first, of which some are corrected, then four of the
// other.
TEST_F(ExpertPasses, CorrectNeighboursTogether) {
  is_taken({slice(0, 2, &adapter_), slice(2, 1, nullptr), slice(3, 1, &adapter_)});
  EXPECT_EQ(ops_.lora_rows, (std::vector<Ranges>{{{0, 2}, {3, 4}}}));
  is_taken({slice(0, 4, &adapter_)});
  EXPECT_EQ(ops_.lora_rows, (std::vector<Ranges>{{{0, 4}}}));
  is_taken({slice(0, 4, &plain_)});
  EXPECT_TRUE(ops_.lora_rows.empty());
}

}  // namespace
}  // namespace droidspeak
