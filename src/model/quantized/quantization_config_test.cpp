#include "model/quantized/quantization_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/json_fields.h"
#include "model/quantized/quantized_fixture.h"

namespace droidspeak {
namespace {

class Config : public testing::Test {
 protected:
  static QuantizationConfig read(std::string_view text) {
    return read_quantization_config(JsonFields("config.json", text, {}));
  }

  static void expect_refused(std::string_view text, std::string_view part) {
    expect_refusal([&] { read(text); }, part);
  }

  static std::string compressed(std::string_view more, std::string_view weights) {
    return fmt::format(
        R"({{"quant_method": "compressed-tensors", "format": "int-quantized" {}, "config_groups": {{
            "group_0": {{"targets": ["Linear"], "weights": {{"num_bits": 8, "strategy": "channel" {}}}}}}}}})",
        more, weights);
  }
};

TEST_F(Config, WhatIsNotDoneIsRefusedByName) {
  expect_refused(R"({"bits": 4})", "\"quant_method\" is missing: expected");
  expect_refused(R"({"quant_method": "bitsandbytes"})", "\"quant_method\" is \"bitsandbytes\"");
  expect_refused(R"({"quant_method": "gptq", "bits": 3, "group_size": 128})", "\"bits\" is 3");
  expect_refused(R"({"quant_method": "gptq", "bits": 4, "group_size": 0})", "\"group_size\" is 0");
  expect_refused(R"({"quant_method": "gptq", "bits": 4})", "\"group_size\" is missing");
  expect_refused(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"})",
      "\"checkpoint_format\" is \"marlin\"");
  expect_refused(
      R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"x": {"bits": 8}}})",
      "\"dynamic\" is");
  expect_refused(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"})",
                 "\"version\" is \"gemv\"");
  expect_refused(R"({"quant_method": "awq", "bits": 8, "group_size": 128})", "\"bits\" is 8");
  expect_refused(
      R"({"quant_method": "awq", "bits": 4, "group_size": 64, "checkpoint_format": "marlin"})",
      "\"marlin\"");
  expect_refused(R"({"quant_method": "awq", "bits": 4, "group_size": 64, "method": "gptq"})",
                 "\"method\" is \"gptq\"");
  expect_refused(R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "method": "qqq"})",
                 "\"method\" is \"qqq\"");
  expect_refused(R"({"quant_method": "gptq", "bits": 3, "group_size": 32, "method": "gptq"})",
                 "\"bits\" is 3");
  expect_refused(R"({"quant_method": "fp8", "fmt": "e5m2"})", "\"fmt\" is \"e5m2\"");
  expect_refused(R"({"quant_method": "fp8", "weight_block_size": [128]})", "\"weight_block_size\"");
  expect_refused(R"({"quant_method": "fp8", "weight_block_size": [0, 1]})",
                 "\"weight_block_size[0]\"");
  expect_refused(R"({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}})",
                 "\"kv_cache_scheme\" is");
}

TEST_F(Config, OfCompressedTensorsIsRefusedByName) {
  EXPECT_EQ(read(compressed("", "")).bits, 8);
  EXPECT_EQ(read(compressed(R"(, "sparsity_config": {"format": "dense"})", "")).bits, 8);
  EXPECT_EQ(read(compressed(R"(, "transform_config": {"config_groups": {}})", "")).bits, 8);
  expect_refused(compressed(R"(, "sparsity_config": {"format": "sparse-24"})", ""),
                 "\"sparsity_config.format\" is \"sparse-24\"");
  expect_refused(compressed(R"(, "transform_config": {"config_groups": {"R1": {}}})", ""),
                 "\"transform_config.config_groups\" is");
  expect_refused(compressed(R"(, "kv_cache_scheme": {"num_bits": 8})", ""), "\"kv_cache_scheme\"");
  expect_refused(compressed(R"(, "quantization_status": "initialized")", ""),
                 "\"quantization_status\" is \"initialized\"");
  expect_refused(compressed("", R"(, "type": "float", "symmetric": false)"),
                 "weights.symmetric\" is false");
  expect_refused(compressed("", R"(, "dynamic": true)"), "weights.dynamic\" is true");
  expect_refused(compressed("", R"(, "strategy": "token")"), "weights.strategy\" is \"token\"");
  expect_refused(R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})",
                 "\"format\" is \"nvfp4-pack-quantized\"");
  expect_refused(R"({"quant_method": "compressed-tensors", "format": "int-quantized"})",
                 "\"config_groups\" is missing");
  expect_refused(R"({"quant_method": "compressed-tensors", "format": "int-quantized",
                     "config_groups": {"a": {"weights": null}}})",
                 "\"config_groups.a.weights\" is null");
  expect_refused(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                     "config_groups": {"a": {"weights": {"num_bits": 8, "strategy": "channel"}},
                                       "b": {"weights": {"num_bits": 4, "strategy": "channel"}}}})",
                 "\"config_groups.b\" is");
}

TEST_F(Config, OfGptqSaysHowItsTensorsLie) {
  using Zero = QuantizationConfig::Zero;
  const QuantizationConfig plain =
      read(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "pack_dtype": "INT32"})");
  EXPECT_EQ(plain.layout, QuantizationConfig::Layout::kGptq);
  EXPECT_EQ(plain.bits, 8);
  EXPECT_EQ(plain.zero, Zero::kStored);
  EXPECT_EQ(plain.zero_offset, 1);
  EXPECT_EQ(plain.scale_block, (QuantizationConfig::ScaleBlock{1, 0})) << "-1: all columns";
  EXPECT_FALSE(plain.needs_group_index);
  auto with = [](std::string_view more) {
    return fmt::format(R"({{"quant_method": "gptq", "bits": 4, "group_size": 64, {}}})", more);
  };
  EXPECT_EQ(read(with(R"("format": "gptq_v2")")).zero_offset, 0);
  EXPECT_EQ(read(with(R"("format": "gptq_v2", "checkpoint_format": "gptq_v2")")).zero_offset, 0);
  EXPECT_EQ(read(with(R"("format": "gptq", "checkpoint_format": "gptq")")).zero_offset, 1);
  for (const char* both : {R"("format": "gptq", "checkpoint_format": "gptq_v2")",
                           R"("format": "gptq_v2", "checkpoint_format": "gptq")"})
    expect_refused(with(both), "expected what \"checkpoint_format\" says");
  expect_refused(with(R"("pack_dtype": "int8")"), "\"pack_dtype\" is \"int8\"");
}

TEST_F(Config, OfAwqHasTwoNamesForItsSizesThatAgree) {
  const QuantizationConfig old = read(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 64})");
  EXPECT_EQ(old.bits, 4);
  EXPECT_EQ(old.scale_block, (QuantizationConfig::ScaleBlock{1, 64}));
  auto both = [](int bits, int w_bit, int group, int q_group) {
    return fmt::format(
        R"({{"quant_method": "awq", "bits": {}, "w_bit": {}, "group_size": {}, "q_group_size": {}}})",
        bits, w_bit, group, q_group);
  };
  EXPECT_EQ(read(both(4, 4, 32, 32)).scale_block.columns, 32);
  expect_refused(both(4, 8, 32, 32), "\"w_bit\" is 8: expected what \"bits\" says");
  expect_refused(both(4, 4, 32, 64), "\"q_group_size\" is 64: expected what \"group_size\" says");
}

// As GPTQModel 7 writes them.
TEST_F(Config, OfGptqModelSaysMore) {
  const QuantizationConfig gptq = read(
      R"({"bits": 4, "checkpoint_format": "gptq", "desc_act": true, "format": "gptq",
          "group_size": 32, "lm_head": false, "meta": {"quantizer": ["gptqmodel:7.7.0"]},
          "method": "gptq", "pack_dtype": "int32", "quant_method": "gptq", "sym": true})");
  EXPECT_TRUE(gptq.needs_group_index);
  EXPECT_EQ(gptq.zero, QuantizationConfig::Zero::kMiddle);
  const std::string awq =
      R"({{"bits": 4, "checkpoint_format": "gemm", "desc_act": false, "format": "gemm",
           "group_size": 32, "lm_head": false, "meta": {{"pack_impl": "auto"}}, "method": "awq",
           "pack_dtype": "int32", "quant_method": "awq", "version": "gemm", "zero_point": {}}})";
  EXPECT_EQ(read(fmt::format(fmt::runtime(awq), false)).zero, QuantizationConfig::Zero::kMiddle);
  EXPECT_EQ(read(fmt::format(fmt::runtime(awq), true)).zero, QuantizationConfig::Zero::kStored);
}

// As AutoRound 0.16 writes them, in GPTQ's and AWQ's form and under its own name.
TEST_F(Config, OfAutoRoundSaysHowItWasMade) {
  using Zero = QuantizationConfig::Zero;
  auto with = [](std::string_view more) {
    return fmt::format(R"({{"autoround_version": "0.16.1", "bits": 4, "data_type": "int",
        "enable_quanted_input": true, "group_size": 32, "provider": "auto-round", "iters": 200,
        "to_quant_block_names": "model.layers", "scale_dtype": "torch.float16", {}}})",
                       more);
  };
  EXPECT_EQ(read(with(R"("quant_method": "gptq", "sym": true)")).zero, Zero::kMiddle);
  EXPECT_EQ(read(with(R"("quant_method": "awq", "sym": false, "zero_point": true)")).zero,
            Zero::kStored);
  expect_refused(with(R"("quant_method": "gptq", "extra_config": {"lm_head": {"bits": 8}})"),
                 "\"extra_config\" is");
  expect_refused(R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "data_type": "mx_fp"})",
                 "\"data_type\" is \"mx_fp\"");
}

TEST_F(Config, OfAutoRoundNamesTheLayoutOfOthers) {
  using Layout = QuantizationConfig::Layout;
  auto with = [](std::string_view packing, int bits) {
    return fmt::format(R"({{"quant_method": "auto-round", "bits": {}, "group_size": 32,
                            "sym": false, "packing_format": "auto_round:{}"}})",
                       bits, packing);
  };
  EXPECT_EQ(read(with("auto_gptq", 4)).layout, Layout::kGptq);
  EXPECT_EQ(read(with("auto_gptq", 4)).zero_offset, 1);
  EXPECT_EQ(read(with("gptqmodel", 8)).layout, Layout::kGptq);
  EXPECT_EQ(read(with("gptqmodel", 8)).zero_offset, 0);
  EXPECT_EQ(read(with("gptqmodel", 8)).bits, 8);
  EXPECT_EQ(read(with("auto_awq", 4)).layout, Layout::kAwq);
  EXPECT_EQ(read(with("auto_awq", 4)).zero_offset, 0);
  expect_refused(with("auto_awq", 8), "\"bits\" is 8: expected 4");
  expect_refused(with("mlx", 4), "\"packing_format\" is \"auto_round:mlx\"");
  expect_refused(R"({"quant_method": "auto-round", "bits": 4, "group_size": 32})",
                 "\"packing_format\" is missing");
  expect_refused(R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "act_bits": 8,
                     "packing_format": "auto_round:auto_gptq"})",
                 "\"act_bits\" is 8");
  expect_refused(R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "data_type": "fp",
                     "packing_format": "auto_round:auto_gptq"})",
                 "\"data_type\" is \"fp\"");
}

TEST_F(Config, OfExpertsInMxfp4SaysNothingMore) {
  EXPECT_EQ(read(R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})").layout,
            QuantizationConfig::Layout::kMxfp4);
  expect_refused(R"({"quant_method": "mxfp4", "group_size": 16})", "\"group_size\" is 16");
}

TEST_F(Config, OfFloatsHasCodesOfEightBits) {
  const QuantizationConfig blocks =
      read(R"({"quant_method": "fp8", "weight_block_size": [1, 128]})");
  EXPECT_EQ(blocks.scale_block, (QuantizationConfig::ScaleBlock{1, 128}));
  EXPECT_EQ(blocks.scale_suffix, "weight_scale_inv");
  EXPECT_FALSE(blocks.may_scale_rows);
  EXPECT_EQ(blocks.bits, 8);
  const QuantizationConfig plain = read(R"({"quant_method": "fp8"})");
  EXPECT_TRUE(plain.may_scale_rows);
  EXPECT_EQ(plain.scale_suffix, "weight_scale");
  EXPECT_EQ(read(R"({"quant_method": "fp8", "modules_to_convert": null, "scale_fmt": "float",
                     "expert_dtype": "fp8"})")
                .bits,
            8);  // as transformers 5 writes it
  expect_refused(R"({"quant_method": "fp8", "expert_dtype": "fp4"})",
                 "\"expert_dtype\" is \"fp4\"");
  EXPECT_EQ(read(R"({"quant_method": "fbgemm_fp8"})").bits, 8);
  expect_refused(R"({"quant_method": "fbgemm_fp8", "kv_cache_scheme": {"num_bits": 8}})",
                 "\"kv_cache_scheme\" is");
}

TEST_F(Config, OfFloatsSaysWhetherEachRowOfActivationsIsRounded) {
  auto rounds = [](std::string_view more) {
    return read(fmt::format(R"({{"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {{"g": {{"weights": {{"num_bits": 8, "type": "float",
        "strategy": "channel"}} {}}}}}}})",
                            more))
        .rounds_input;
  };
  EXPECT_TRUE(
      rounds(R"(, "input_activations": {"num_bits": 8, "type": "float", "dynamic": true})"));
  for (const char* dynamic : {"false", "null", "\"local\""}) {
    EXPECT_FALSE(rounds(fmt::format(
        R"(, "input_activations": {{"num_bits": 8, "type": "float", "dynamic": {}}})", dynamic)));
  }
  EXPECT_FALSE(rounds(R"(, "input_activations": {"num_bits": 8, "type": "float"})"));
  EXPECT_FALSE(rounds(R"(, "input_activations": {"num_bits": 8, "type": "int", "dynamic": true})"));
  EXPECT_FALSE(
      rounds(R"(, "input_activations": {"num_bits": 16, "type": "float", "dynamic": true})"));
  EXPECT_FALSE(rounds(R"(, "input_activations": {})"));
  EXPECT_FALSE(rounds(R"(, "input_activations": null)"));
  EXPECT_FALSE(rounds(""));
  EXPECT_TRUE(read(R"({"quant_method": "fp8"})").rounds_input);
  EXPECT_TRUE(read(R"({"quant_method": "fp8", "activation_scheme": "dynamic"})").rounds_input);
  EXPECT_FALSE(read(R"({"quant_method": "fp8", "activation_scheme": "static"})").rounds_input);
  EXPECT_TRUE(read(R"({"quant_method": "fbgemm_fp8"})").rounds_input);
  EXPECT_FALSE(read(R"({"quant_method": "gptq", "bits": 8, "group_size": 8})").rounds_input);
}

TEST_F(Config, OfCompressedTensorsSaysWhatHasOneScale) {
  using Block = QuantizationConfig::ScaleBlock;
  auto block = [](std::string_view weights) {
    return read(fmt::format(R"({{"quant_method": "compressed-tensors", "format": "PACK-QUANTIZED",
        "config_groups": {{"g": {{"weights": {{"num_bits": 8, {}}}}}}}}})",
                            weights))
        .scale_block;
  };
  EXPECT_EQ(block(R"("strategy": "tensor")"), (Block{0, 0}));
  EXPECT_EQ(block(R"("strategy": "channel")"), (Block{1, 0}));
  EXPECT_EQ(block(R"("strategy": "group", "group_size": 16)"), (Block{1, 16}));
  EXPECT_EQ(block(R"("strategy": "group", "group_size": -1)"), (Block{1, 0}));
  EXPECT_EQ(block(R"("strategy": "block", "block_structure": [3, 5])"), (Block{3, 5}));
}

TEST_F(Config, OfCompressedTensorsSaysWhetherColumnsAreOrdered) {
  auto is_ordered = [](std::string_view order) {
    return read(compressed("", fmt::format(R"(, "actorder": {})", order))).needs_group_index;
  };
  for (const char* order : {R"("group")", R"("dynamic")", "true"})
    EXPECT_TRUE(is_ordered(order)) << order;
  for (const char* order : {R"("weight")", R"("static")", "false", "null"})
    EXPECT_FALSE(is_ordered(order)) << order;
  expect_refused(compressed("", R"(, "actorder": "random")"), "weights.actorder\" is \"random\"");
}

TEST_F(Config, OfCompressedTensorsRefusesCodesThatItsFormatCannotHold) {
  using Layout = QuantizationConfig::Layout;
  auto group = [](std::string_view more, std::string_view weights) {
    return fmt::format(R"({{"quant_method": "compressed-tensors", "format": "int-quantized",
        "config_groups": {{"g": {{"weights": {{"strategy": "channel", {}}} {}}}}}}})",
                       weights, more);
  };
  expect_refused(group("", R"("num_bits": 4)"),
                 "weights.num_bits\" is 4: expected 8 for int-quant");
  const std::string packed = R"(, "format": "pack-quantized")";
  EXPECT_EQ(read(group(packed, R"("num_bits": 4)")).layout, Layout::kPacked)
      << "a group's own format counts";
  EXPECT_EQ(read(group(packed, R"("num_bits": 8)")).layout, Layout::kPacked);
  expect_refused(group(packed, R"("num_bits": 8, "type": "float")"),
                 "weights.type\" is \"float\": expected int for pack-quantized");
  expect_refused(group(R"(, "output_activations": {"num_bits": 8})", R"("num_bits": 8)"),
                 "\"config_groups.g.output_activations\" is");
  for (const char* groups : {"{}", R"({"g": null})"})
    expect_refused(fmt::format(R"({{"quant_method": "compressed-tensors",
                                   "format": "int-quantized", "config_groups": {}}})",
                               groups),
                   "\"config_groups");
}

// Equal bytes that mean something else are other weights.
TEST_F(Config, ChangesItsDescriptionWithEverythingThatCounts) {
  const std::string first =
      read(R"({"quant_method": "gptq", "bits": 4, "group_size": 8})").describe();
  const char* others[] = {
      R"({"quant_method": "gptq", "bits": 8, "group_size": 8})",
      R"({"quant_method": "gptq", "bits": 4, "group_size": 16})",
      R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "checkpoint_format": "gptq_v2"})",
      R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": true})",
      R"({"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": true})"};
  for (const char* other : others) EXPECT_NE(read(other).describe(), first) << other;
}

}  // namespace
}  // namespace droidspeak
