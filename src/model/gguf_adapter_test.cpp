// LoRA in GGUF files: which tensors belong where, and what is refused. Whole answers are compared
// with PEFT's by the parity tests.
#include "model/gguf_adapter.h"

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "model/adapter_config.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"
#include "model/row_order.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class GgufAdapter : public testing::Test {
 protected:
  GgufAdapter() {
    base_.architecture = "llama";
    base_.num_layers = 2;
    base_.d_model = 32;
    base_.num_heads = 4;
    base_.num_kv_heads = 2;
    base_.head_dim = 8;
    base_.ffn_dim = 64;
    base_.vocab_size = 50;
    entries_ = {{"general.architecture", std::string("llama")},
                {"general.type", std::string("adapter")},
                {"adapter.type", std::string("lora")},
                {"adapter.lora.alpha", 4.0}};
    add("blk.0.attn_q.weight.lora_a", {2, 32});
    add("blk.0.attn_q.weight.lora_b", {32, 2});
  }

  // Values that say where they are.
  void add(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    auto& values = values_.emplace_back(std::make_unique<std::vector<float>>());
    for (int64_t i = 0; i < count; ++i) values->push_back(static_cast<float>(i));
    tensors_.push_back({name, DType::kF32, shape, std::as_bytes(std::span(*values))});
  }

  void set(const std::string& key, const GgufValue& value) {
    std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
    entries_.emplace_back(key, value);
  }

  std::filesystem::path write() const {
    write_gguf(folder_.path() / "adapter.gguf", entries_, tensors_);
    return folder_.path() / "adapter.gguf";
  }

  AdapterFiles read() const { return {AdapterOpener(write()), base_, Precision::kExact}; }

  std::string refusal() const {
    try {
      read();
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  std::vector<AdapterTensor> tensors(const std::vector<AdapterTarget>& targets) const {
    const GgufFile file(write());
    return gguf_adapter_tensors(file, check_gguf_adapter(file, base_), base_, targets);
  }

  TemporaryFolder folder_;
  ModelConfig base_;
  GgufEntries entries_;
  std::vector<FileTensor> tensors_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
};

TEST_F(GgufAdapter, IsToldFromAModel) {
  EXPECT_TRUE(is_gguf_adapter(write()));
  set("general.type", std::string("model"));
  EXPECT_FALSE(is_gguf_adapter(write()));
  EXPECT_FALSE(is_gguf_adapter(folder_.path()));
  EXPECT_FALSE(is_gguf_adapter(folder_.path() / "nothing"));
}

TEST_F(GgufAdapter, PutsRowsOfQueriesAndKeysInOrderWhereTheFileHasAnother) {
  add("blk.1.attn_k.weight.lora_b", {16, 2});
  add("blk.1.attn_v.weight.lora_b", {16, 2});
  const auto targets = adapter_targets(base_);
  const auto placed = tensors(targets);
  ASSERT_EQ(placed.size(), 4u);
  EXPECT_TRUE(placed[0].row_order.empty());
  EXPECT_EQ(placed[1].row_order, half_split_rows(4, 8));
  EXPECT_EQ(placed[2].row_order, half_split_rows(2, 8));
  EXPECT_TRUE(placed[3].row_order.empty());
  EXPECT_EQ(placed[2].place->module(), "model.layers.1.self_attn.k_proj");
  base_.architecture = "qwen2";
  set("general.architecture", std::string("qwen2"));
  for (const AdapterTensor& tensor : tensors(targets)) EXPECT_TRUE(tensor.row_order.empty());
}

TEST_F(GgufAdapter, OfFusedLayersHasThemInOneTensor) {
  base_.architecture = "phi3";
  set("general.architecture", std::string("phi3"));
  tensors_.clear();
  add("blk.0.ffn_up.weight.lora_a", {2, 32});
  add("blk.0.attn_qkv.weight.lora_a", {2, 32});
  const auto targets = adapter_targets(base_);
  const auto placed = tensors(targets);
  EXPECT_EQ(placed[0].place->module(), "model.layers.0.mlp.gate_up_proj");
  EXPECT_EQ(placed[1].place->module(), "model.layers.0.self_attn.qkv_proj");
}

TEST_F(GgufAdapter, OfExpertsHasThemInOneTensor) {
  base_.architecture = "mixtral";
  base_.ffn_dim = 0;
  base_.experts = {.count = 3, .per_row = 2, .ffn_dim = 64};
  add("blk.1.ffn_down_exps.weight.lora_a", {3, 2, 64});
  add("blk.1.ffn_down_exps.weight.lora_b", {3, 32, 2});
  const auto targets = adapter_targets(base_);
  const auto placed = tensors(targets);
  ASSERT_EQ(placed.size(), 8u);
  EXPECT_EQ(placed[4].place->module(), "model.layers.1.mlp.experts.2.down_proj");
  EXPECT_EQ(placed[4].tensor.read_floats().front(), 2 * 2 * 64.0f);
  EXPECT_EQ(refusal(), "");
  tensors_.back().shape = {2, 48, 2};
  EXPECT_THAT(refusal(), HasSubstr("has shape [2, 48, 2]: expected one matrix for each of the "
                                   "base's 3 experts"));
}

TEST_F(GgufAdapter, FitsModelsWhoseGgufFilesCallThemselvesAsItDoes) {
  for (const char* name : {"llama", "mistral", "mixtral"}) {
    base_.architecture = name;
    EXPECT_EQ(refusal(), "") << name;
  }
  base_.architecture = "qwen2";
  EXPECT_THAT(refusal(), HasSubstr("key \"general.architecture\" is 'llama': the base model is "
                                   "qwen2"));
}

TEST_F(GgufAdapter, IsRefusedForWhatItSaysAndWeDoNot) {
  set("general.type", std::string("model"));
  EXPECT_THAT(refusal(), HasSubstr("key \"general.type\" is 'model': expected \"adapter\""));
  set("general.type", std::string("adapter"));
  set("adapter.type", std::string("dora"));
  EXPECT_THAT(refusal(), HasSubstr("key \"adapter.type\" is 'dora': expected \"lora\""));
  set("adapter.type", std::string("lora"));
  set("adapter.lora.magnitude", 1.0);
  EXPECT_THAT(refusal(), HasSubstr("key 'adapter.lora.magnitude' is not supported"));
}

// It would have to stand before every prompt.
TEST_F(GgufAdapter, IsRefusedForAPrefixOfPrompts) {
  set("adapter.lora.task_name", std::string("questions"));
  EXPECT_EQ(refusal(), "");
  set("adapter.lora.prompt_prefix", std::string());
  EXPECT_EQ(refusal(), "");
  set("adapter.lora.prompt_prefix", std::string("query: "));
  EXPECT_THAT(refusal(), HasSubstr("key 'adapter.lora.prompt_prefix' is not supported"));
}

TEST_F(GgufAdapter, IsRefusedForAnAlphaThatIsNoNumber) {
  set("adapter.lora.alpha", std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(refusal(), HasSubstr("'adapter.lora.alpha' is nan"));
  set("adapter.lora.alpha", std::string("4"));
  EXPECT_THAT(refusal(), HasSubstr("adapter.lora.alpha"));
}

TEST_F(GgufAdapter, IsRefusedForTensorsThatFitNothing) {
  const std::vector<FileTensor> good = tensors_;
  for (const char* name :
       {"blk.0.attn_norm.weight", "token_embd.weight.lora_a", "blk.2.attn_q.weight.lora_a",
        "blk.0.attn_q.bias.lora_a", "blk.0.attn_q.weight.lora_c", "blk.00.attn_v.weight.lora_a",
        "blk.0.ffn_gate_inp.weight.lora_a", "blk.0.ffn_up_shexp.weight.lora_a", "blk.0"}) {
    add(name, {2, 32});
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr("fits no linear layer"))) << name;
    tensors_ = good;
  }
}

TEST_F(GgufAdapter, IsRefusedForMatricesOfOtherShapes) {
  tensors_[1].shape = {16, 4};
  EXPECT_THAT(refusal(), HasSubstr("\"blk.0.attn_q.weight.lora_b\" has shape [16, 4]"));
  tensors_[1].shape = {64};
  EXPECT_THAT(refusal(), HasSubstr("\"blk.0.attn_q.weight.lora_b\" has shape [64]"));
  tensors_.pop_back();
  EXPECT_THAT(refusal(), HasSubstr("self_attn.q_proj\" has lora_A but no lora_B"));
  tensors_.clear();
  EXPECT_THAT(refusal(), HasSubstr("it holds no tensors"));
}

TEST_F(GgufAdapter, BecomesActiveWithItsInvocation) {
  set("adapter.alora.invocation_tokens", std::vector<int64_t>{7, 49});
  EXPECT_EQ(read().begin_adapter().invocation, (std::vector<int32_t>{7, 49}));
  set("adapter.alora.invocation_tokens", std::vector<int64_t>{7, 50});
  EXPECT_THAT(refusal(),
              HasSubstr("\"adapter.alora.invocation_tokens\" holds 50: expected 0 to 49"));
  set("adapter.alora.invocation_tokens", std::vector<int64_t>{-1});
  EXPECT_THAT(refusal(), HasSubstr("holds -1"));
  set("adapter.alora.invocation_tokens", std::vector<int64_t>{});
  EXPECT_THAT(refusal(), HasSubstr("is no list of 1 to 256 token ids"));
  set("adapter.alora.invocation_tokens", uint64_t{7});
  EXPECT_THAT(refusal(), HasSubstr("is no list of 1 to 256 token ids"));
}

TEST_F(GgufAdapter, HasADigestOfEverythingThatCounts) {
  const Digest first = read().digest();
  EXPECT_EQ(read().digest(), first);
  set("general.description", std::string("other words"));
  EXPECT_EQ(read().digest(), first);
  set("adapter.lora.alpha", 5.0);
  EXPECT_NE(read().digest(), first);
  set("adapter.lora.alpha", 4.0);
  set("adapter.alora.invocation_tokens", std::vector<int64_t>{7});
  EXPECT_NE(read().digest(), first);
  set("adapter.alora.invocation_tokens", std::vector<int64_t>{8});
  (*values_[1])[5] = 77;
  EXPECT_NE(read().digest(), first);
}

TEST_F(GgufAdapter, WithoutAlphaAddsItsProductAsItIs) {
  auto scale = [&] { return AdapterConfig(GgufFile(write()), 50).scale("any", 2); };
  EXPECT_EQ(scale(), 2) << "4 / 2";
  set("adapter.lora.alpha", 0.0);
  EXPECT_EQ(scale(), 1);
  std::erase_if(entries_, [](const auto& entry) { return entry.first == "adapter.lora.alpha"; });
  EXPECT_EQ(scale(), 1);
}

// Values of the file say where they were.
TEST_F(GgufAdapter, HasItsRowsInTheOrderOfTheEngine) {
  auto device = make_cpu_device();
  auto ops = make_cpu_ops(*device, 1);
  const LoraLayer layer = read().pack_layer(*ops, 0);
  const WeightMatrix& up = *layer.qkv.parts.at(0).up;
  const std::vector<int32_t> order = half_split_rows(4, 8);
  ASSERT_EQ(up.rows(), 32);
  for (int32_t row = 0; row < 32; ++row) {
    Tensor out(*device, DType::kF32, 1, 2);
    ops->embed(up, {&row, 1}, out.view());
    const auto stored = static_cast<float>(2 * order[static_cast<size_t>(row)]);
    EXPECT_EQ(out.view().f32()[0], 2 * stored) << row;
    EXPECT_EQ(out.view().f32()[1], 2 * (stored + 1)) << row;
  }
}

TEST_F(GgufAdapter, MayHaveRankOne) {
  tensors_.clear();
  add("blk.0.attn_q.weight.lora_a", {1, 32});
  add("blk.0.attn_q.weight.lora_b", {32, 1});
  EXPECT_EQ(refusal(), "");
}

TEST_F(GgufAdapter, PutsUpAndDownWhereTheyBelong) {
  add("blk.0.ffn_up.weight.lora_a", {2, 32});
  add("blk.0.ffn_down.weight.lora_a", {2, 64});
  const auto targets = adapter_targets(base_);
  EXPECT_EQ(tensors(targets)[2].place->module(), "model.layers.0.mlp.up_proj");
  base_.architecture = "phi3";
  set("general.architecture", std::string("phi3"));
  EXPECT_EQ(tensors(targets)[3].place->module(), "model.layers.0.mlp.down_proj");
}

TEST_F(GgufAdapter, IsRefusedForNamesThatEndEarly) {
  const std::vector<FileTensor> good = tensors_;
  for (const char* name : {"blk.0.attn_q", "blk.0.attn_qkv.weight.lora_a", "blk.0attn_q.weight"}) {
    add(name, {2, 32});
    EXPECT_THAT(refusal(), AllOf(HasSubstr(name), HasSubstr("fits no linear layer"))) << name;
    tensors_ = good;
  }
}

TEST_F(GgufAdapter, OfExpertsHasThreeDimensions) {
  base_.architecture = "mixtral";
  base_.ffn_dim = 0;
  base_.experts = {.count = 3, .per_row = 2, .ffn_dim = 64};
  add("blk.1.ffn_down_exps.weight.lora_a", {3, 64});
  EXPECT_THAT(refusal(), HasSubstr("has shape [3, 64]: expected one matrix for each"));
}

TEST_F(GgufAdapter, HasInvocationsUpToTheirBound) {
  const std::string key = "adapter.alora.invocation_tokens";
  set(key, std::vector<int64_t>(256, 0));
  EXPECT_EQ(read().begin_adapter().invocation, std::vector<int32_t>(256, 0));
  set(key, std::vector<int64_t>(257, 0));
  EXPECT_THAT(refusal(), HasSubstr("is no list of 1 to 256 token ids"));
}

// Blocks of 32 values take 18 bytes in the file and 128 in memory.
TEST_F(GgufAdapter, IsBoundedInMemoryToo) {
  const auto most = static_cast<int64_t>(max_adapter_bytes(base_) / sizeof(float));
  ASSERT_EQ(most % 32, 0);
  const std::vector<std::byte> blocks(static_cast<size_t>(most / 32 + 1) * 18);
  auto refusal_of = [&](int64_t rows) {
    tensors_.assign(1, {"blk.0.attn_q.weight.lora_a",
                        DType::kQ4_0,
                        {rows, 32},
                        std::span(blocks).first(static_cast<size_t>(rows) * 18)});
    return refusal();
  };
  EXPECT_THAT(refusal_of(most / 32), HasSubstr("lora_A but no lora_B"));
  EXPECT_THAT(refusal_of(most / 32 + 1),
              HasSubstr(fmt::format("hold {} values: an adapter of this base has at most {}",
                                    most + 32, most)));
}

}  // namespace
}  // namespace droidspeak
