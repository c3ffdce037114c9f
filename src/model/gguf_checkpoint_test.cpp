// What the loaders refuse, and how they say it. Answers of what they take: tests/parity.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/checkpoint.h"
#include "model/checkpoint_fixture.h"
#include "support/gguf_writer.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

class GgufCheckpoint : public Checkpoints {
 protected:
  explicit GgufCheckpoint(const char* golden = "llama.gguf")
      : golden_(std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/gguf" / golden) {
    path_ = folder_.path() / "model.gguf";
    for (const auto& [key, value] : golden_.metadata()) entries_.emplace_back(key, value);
    tensors_ = golden_.tensors();
  }

  std::string refusal_of_file() {
    write_gguf(path_, entries_, tensors_);
    return refusal();
  }

  // With one more entry, or another value of one.
  std::string refusal_with(const std::string& key, const GgufValue& value) {
    GgufEntries before = entries_;
    std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
    entries_.emplace_back(key, value);
    std::string message = refusal_of_file();
    entries_ = before;
    return message;
  }

  GgufFile golden_;
  GgufEntries entries_;
  std::vector<FileTensor> tensors_;
};

TEST_F(GgufCheckpoint, LoadsAsItIs) {
  EXPECT_EQ(refusal_of_file(), "");
}

class GraniteCheckpoint : public GgufCheckpoint {
 protected:
  GraniteCheckpoint() : GgufCheckpoint("granite.gguf") {}
};

TEST_F(GraniteCheckpoint, RefusesOneWithoutRope) {
  EXPECT_EQ(refusal_with("granite.rope.scaling.finetuned", true), "");
  EXPECT_THAT(refusal_with("granite.rope.scaling.finetuned", false),
              HasSubstr("key \"granite.rope.scaling.finetuned\" is false: expected true"));
}

TEST_F(GgufCheckpoint, HasBiasesOnAllLayersOrNone) {
  std::vector<float> bias(32);
  const auto bytes = std::as_bytes(std::span(bias));
  tensors_.push_back({"blk.1.attn_output.bias", DType::kF32, {32}, bytes});
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor 'blk.1.attn_output.bias' belongs to no part"));
  tensors_.push_back({"blk.0.attn_output.bias", DType::kF32, {32}, bytes});
  EXPECT_EQ(refusal_of_file(), "");
  tensors_.push_back({"blk.0.attn_q.bias", DType::kF32, {32}, bytes});
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor \"blk.0.attn_k.bias\" is missing"));
}

TEST_F(GgufCheckpoint, RefusesKeysThatItDoesNotKnow) {
  EXPECT_THAT(refusal_with("llama.leading_dense_block_count", uint64_t{1}),
              HasSubstr("key \"llama.leading_dense_block_count\" is not 0"));
  EXPECT_EQ(refusal_with("llama.expert_count", uint64_t{0}), "");
  EXPECT_THAT(refusal_with("llama.attention.causal", false),
              HasSubstr("key \"llama.attention.causal\" is not true"));
  EXPECT_THAT(refusal_with("llama.logit_scale", 0.5), HasSubstr("llama.logit_scale"));
  EXPECT_THAT(refusal_with("llama.attention.temperature_length", uint64_t{8192}),
              HasSubstr("key \"llama.attention.temperature_length\" is not supported"));
  EXPECT_THAT(refusal_with("llama.attention.value_length", uint64_t{24}),
              HasSubstr("key \"llama.attention.value_length\" is 24: expected 8"));
  EXPECT_EQ(refusal_with("general.license", std::string("mit")), "");
  EXPECT_EQ(refusal_with("tokenizer.ggml.model", std::string("gpt2")), "");
}

TEST_F(GgufCheckpoint, RefusesNumbersOutOfRange) {
  EXPECT_THAT(refusal_with("llama.attention.sliding_window", uint64_t{1} << 40),
              HasSubstr("\"llama.attention.sliding_window\" is 1099511627776"));
  EXPECT_THAT(refusal_with("llama.attention.head_count", uint64_t{0}),
              HasSubstr("\"llama.attention.head_count\" is 0"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{1} << 33),
              HasSubstr("\"llama.block_count\" is 8589934592"));
  EXPECT_THAT(refusal_with("llama.rope.dimension_count", uint64_t{4}),
              HasSubstr("\"llama.rope.dimension_count\" is 4: expected 8, the head size"));
  EXPECT_THAT(refusal_with("llama.rope.freq_base", 1e-3), HasSubstr("RoPE theta"));
  EXPECT_THAT(refusal_with("llama.rope.scaling.factor", -2.0),
              HasSubstr("RoPE scaling makes frequency 0 -0.5"));
  EXPECT_THAT(refusal_with("llama.attention.layer_norm_rms_epsilon", 0.0),
              HasSubstr("norm epsilon"));
}

TEST_F(GgufCheckpoint, RefusesExpertsThatCannotBe) {
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{8}),
              HasSubstr("llama.expert_used_count"));
  entries_.emplace_back("llama.expert_used_count", uint64_t{2});
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{8}),
              HasSubstr("tensor \"blk.0.ffn_gate_inp.weight\" is missing"));
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{1}),
              HasSubstr("a token cannot have more experts than there are"));
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{1} << 40),
              HasSubstr("\"llama.expert_count\" is 1099511627776"));
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{2000}), HasSubstr("1 to 1024"));
}

class SplitGguf : public GgufCheckpoint {
 protected:
  SplitGguf() { entries_.emplace_back("split.tensors.count", int64_t{std::ssize(tensors_)}); }

  // Tensors take turns; the first part has the metadata.
  void write_parts(uint64_t count) {
    for (uint64_t part = 0; part < count; ++part) {
      GgufEntries entries = part == 0 ? entries_ : GgufEntries();
      entries.emplace_back("split.no", part);
      entries.emplace_back("split.count", count);
      std::vector<FileTensor> tensors;
      for (size_t i = part; i < tensors_.size(); i += count) tensors.push_back(tensors_[i]);
      write_gguf(path_of(part + 1, count), entries, tensors);
    }
    path_ = path_of(1, count);
  }

  std::filesystem::path path_of(uint64_t part, uint64_t count) const {
    return folder_.path() / fmt::format("model-{:05}-of-{:05}.gguf", part, count);
  }
};

TEST_F(SplitGguf, IsOneModel) {
  write_parts(3);
  EXPECT_EQ(refusal(), "");
  Checkpoint split(path_);
  Checkpoint whole(golden_.path());
  EXPECT_EQ(split.digest(), whole.digest());
}

TEST_F(SplitGguf, NamesThePartThatIsWrong) {
  write_parts(3);
  path_ = path_of(2, 3);
  EXPECT_THAT(refusal(), HasSubstr("is part 2 of a GGUF file split into 3: give the first part"));
  path_ = path_of(1, 3);
  std::filesystem::copy_file(path_of(2, 3), path_of(3, 3),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path_of(3, 3).string()), HasSubstr("part 3 of 3")));
  std::filesystem::remove(path_of(3, 3));
  EXPECT_THAT(refusal(), HasSubstr(path_of(3, 3).string()));
  write_parts(3);
  path_ = folder_.path() / "model.gguf";
  std::filesystem::copy_file(path_of(1, 3), path_);
  EXPECT_THAT(refusal(), HasSubstr("its name must end in \"-00001-of-00003.gguf\""));
}

TEST_F(SplitGguf, RefusesPartsThatDoNotAddUp) {
  entries_.back().second = int64_t{1000};
  write_parts(2);
  EXPECT_THAT(refusal(), HasSubstr("key \"split.tensors.count\" is 1000"));
  write_parts(2);
  write_gguf(path_of(2, 2), {{"split.no", uint64_t{1}}, {"split.count", uint64_t{2}}}, tensors_);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr(path_of(2, 2).string()), HasSubstr("is in an earlier part")));
  entries_.emplace_back("split.count", uint64_t{1} << 40);
  path_ = folder_.path() / "model.gguf";
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"split.count\" is 1099511627776"));
}

TEST_F(GgufCheckpoint, RefusesAnUnknownArchitecture) {
  EXPECT_THAT(refusal_with("general.architecture", std::string("mamba")),
              AllOf(HasSubstr("\"mamba\" is not supported"), HasSubstr("llama, qwen2, qwen3")));
}

class Qwen3GgufCheckpoint : public GgufCheckpoint {
 protected:
  Qwen3GgufCheckpoint() : GgufCheckpoint("qwen3.gguf") {}
};

TEST_F(Qwen3GgufCheckpoint, RefusesAWindow) {
  EXPECT_EQ(refusal_of_file(), "");
  EXPECT_THAT(refusal_with("qwen3.attention.sliding_window", uint64_t{4096}),
              HasSubstr("key \"qwen3.attention.sliding_window\" is not supported"));
}

TEST_F(Qwen3GgufCheckpoint, NeedsItsNorms) {
  std::erase_if(tensors_, [](const FileTensor& t) { return t.name == "blk.1.attn_k_norm.weight"; });
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor \"blk.1.attn_k_norm.weight\" is missing"));
}

class Olmo3GgufCheckpoint : public GgufCheckpoint {
 protected:
  Olmo3GgufCheckpoint() : GgufCheckpoint("olmo3.gguf") {}
};

TEST_F(Olmo3GgufCheckpoint, HasTheWindowWhereTheFileListsIt) {
  const std::string key = "olmo2.attention.sliding_window_pattern";
  EXPECT_EQ(refusal_with(key, std::vector<int64_t>{1, 0, 1, 0}), "");
  EXPECT_EQ(load_weights(*ops_, path_, Precision::kExact)->config.windows,
            (std::vector<int32_t>{40, 0, 40, 0}));
  EXPECT_THAT(
      refusal_with(key, std::vector<int64_t>{1, 1, 0}),
      HasSubstr("sliding_window_pattern\" has 3 values: expected one for each of 4 layers"));
}

TEST_F(GgufCheckpoint, RefusesWhatIsSaidOfExpertsThatItHasNot) {
  EXPECT_THAT(refusal_with("llama.expert_used_count", uint64_t{2}),
              HasSubstr("\"llama.expert_used_count\" is 2: expected 0"));
}

// A quantised model of three layers, of which the last two are the same.
class ThreeLayers : public GgufCheckpoint {
 protected:
  ThreeLayers() : GgufCheckpoint("llama-q8_0.gguf") {
    for (FileTensor tensor : std::vector<FileTensor>(tensors_)) {
      if (!tensor.name.starts_with("blk.1.")) continue;
      tensor.name.replace(0, 6, "blk.2.");
      tensors_.push_back(tensor);
    }
    std::erase_if(entries_, [](const auto& entry) { return entry.first == "llama.block_count"; });
    entries_.emplace_back("llama.block_count", uint64_t{3});
    write_gguf(path_, entries_, tensors_);
  }

  std::vector<float> product(const WeightMatrix& matrix) {
    Tensor in(*device_, DType::kF32, 1, matrix.columns());
    Tensor out(*device_, DType::kF32, 1, matrix.rows());
    for (int64_t i = 0; i < matrix.columns(); ++i)
      in.view().f32()[i] = std::sin(static_cast<float>(i));
    ops_->linear(matrix, in.view(), out.view());
    return {out.view().f32(), out.view().f32() + matrix.rows()};
  }

  std::vector<float> product(TensorRole role, int32_t layer, Precision precision) {
    const Checkpoint checkpoint(path_);
    const FileTensor* tensor = checkpoint.find(role, layer, "weight");
    const std::vector<std::byte> bytes = tensor->read();
    const MatrixPart part{tensor->dtype, tensor->shape[0], tensor->shape[1], bytes, {}};
    return product(*ops_->pack({&part, 1}, precision));
  }
};

// Rounding is felt most in K and V, in the first layer and behind the last one.
TEST_F(ThreeLayers, AreFinerWhereRoundingIsFeltMost) {
  const auto weights = load_weights(*ops_, path_, Precision::kFast);
  for (int32_t layer : {0, 1, 2}) {
    const LayerWeights& w = weights->layers[static_cast<size_t>(layer)];
    const Precision wanted = layer == 1 ? Precision::kFast : Precision::kFine;
    const Precision other = layer == 1 ? Precision::kFine : Precision::kFast;
    for (const auto& [matrix, role] : {std::pair{w.output.get(), TensorRole::kAttentionOutput},
                                       {w.down.get(), TensorRole::kDown}}) {
      EXPECT_EQ(product(*matrix), product(role, layer, wanted)) << layer;
      EXPECT_NE(product(*matrix), product(role, layer, other)) << layer;
    }
    std::vector<float> values = product(*w.qkv);
    const std::vector<float> fine = product(TensorRole::kValue, layer, Precision::kFine);
    values.erase(values.begin(), values.end() - std::ssize(fine));
    EXPECT_EQ(values, fine) << layer;
    EXPECT_NE(values, product(TensorRole::kValue, layer, Precision::kFast)) << layer;
  }
}

TEST_F(GgufCheckpoint, RefusesWhatIsNoModel) {
  EXPECT_THAT(refusal_with("general.type", std::string("adapter")),
              HasSubstr("key \"general.type\" is \"adapter\": expected \"model\""));
  EXPECT_EQ(refusal_with("general.type", std::string("model")), "");
}

TEST_F(GgufCheckpoint, RefusesNumbersBelowTheirRange) {
  EXPECT_THAT(refusal_with("llama.embedding_length", int64_t{-1}),
              HasSubstr("\"llama.embedding_length\" is -1: expected 0 to 2147483647"));
  EXPECT_THAT(refusal_with("llama.context_length", uint64_t{0}),
              HasSubstr("context length must be positive"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{0}),
              HasSubstr("\"llama.block_count\" is 0: expected 1 to 1024"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{1025}),
              HasSubstr("\"llama.block_count\" is 1025: expected 1 to 1024"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{1024}), HasSubstr("\"blk.2."));
  EXPECT_THAT(refusal_with("llama.attention.head_count", uint64_t{1}),
              testing::Not(HasSubstr("expected at least 1")));
}

TEST_F(GgufCheckpoint, NeedsItsEmbedding) {
  const std::vector<FileTensor> good = tensors_;
  auto embedding = std::ranges::find(tensors_, "token_embd.weight", &FileTensor::name);
  embedding->shape.insert(embedding->shape.begin(), 1);
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"token_embd.weight\" is missing or not a matrix"));
  tensors_ = good;
  std::erase_if(tensors_, [](const FileTensor& t) { return t.name == "token_embd.weight"; });
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"token_embd.weight\" is missing or not a matrix"));
}

TEST_F(GgufCheckpoint, HasBiasesOfItsFfnOnAllMatricesOrNone) {
  const std::vector<float> bias(64);
  tensors_.push_back({"blk.0.ffn_gate.bias", DType::kF32, {64}, std::as_bytes(std::span(bias))});
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor \"blk.0.ffn_up.bias\" is missing"));
}

TEST_F(GgufCheckpoint, RefusesNormsInBlocks) {
  const std::vector<std::byte> block(34);
  auto norm = std::ranges::find(tensors_, "blk.1.attn_norm.weight", &FileTensor::name);
  norm->dtype = DType::kQ8_0;
  norm->bytes = std::span<const std::byte>(block);
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"blk.1.attn_norm.weight\" has shape [32] of q8_0"));
}

TEST_F(GgufCheckpoint, HasTablesOfItsRotation) {
  const std::vector<float> divisors(4, 2.0f);
  const auto bytes = std::as_bytes(std::span(divisors));
  tensors_.push_back({"rope_freqs.weight", DType::kF32, {4}, bytes});
  EXPECT_EQ(refusal_of_file(), "");
  tensors_.back().name = "rope_factors_short.weight";
  tensors_.push_back({"rope_factors_long.weight", DType::kF32, {4}, bytes});
  EXPECT_EQ(refusal_of_file(), "");
  tensors_.push_back({"rope_others.weight", DType::kF32, {4}, bytes});
  EXPECT_THAT(refusal_of_file(), HasSubstr("'rope_others.weight' belongs to no part"));
}

TEST_F(GgufCheckpoint, TakesZeroOfAnyKindForWhatItDoesNotHave) {
  const std::string key = "llama.attention.max_alibi_bias";
  for (const GgufValue& zero :
       {GgufValue(uint64_t{0}), GgufValue(int64_t{0}), GgufValue(0.0), GgufValue(false)})
    EXPECT_EQ(refusal_with(key, zero), "") << zero.index();
  for (const GgufValue& other : {GgufValue(uint64_t{1}), GgufValue(int64_t{-1}), GgufValue(0.5),
                                 GgufValue(true), GgufValue(std::string("0"))})
    EXPECT_THAT(refusal_with(key, other), HasSubstr("is not 0")) << other.index();
  EXPECT_EQ(refusal_with("llama.attention.causal", true), "");
  EXPECT_EQ(refusal_with("llama2.unknown", uint64_t{1}), "") << "of something else";
  EXPECT_EQ(refusal_with("llama", uint64_t{1}), "");
}

TEST_F(Qwen3GgufCheckpoint, TakesAWindowOfNothing) {
  EXPECT_EQ(refusal_with("qwen3.attention.sliding_window", uint64_t{0}), "");
}

class Phi3GgufCheckpoint : public GgufCheckpoint {
 protected:
  Phi3GgufCheckpoint() : GgufCheckpoint("phi3.gguf") {}
};

TEST_F(Phi3GgufCheckpoint, RotatesNoMoreThanAHead) {
  EXPECT_EQ(refusal_of_file(), "");
  const auto head = load_weights(*ops_, path_, Precision::kExact)->config.head_dim;
  EXPECT_EQ(refusal_with("phi3.rope.dimension_count", static_cast<uint64_t>(head - 2)), "");
  EXPECT_THAT(refusal_with("phi3.rope.dimension_count", static_cast<uint64_t>(head + 2)),
              HasSubstr("rotary size must be even and at most the head size"));
}

}  // namespace
}  // namespace droidspeak
