#include "model/quantized/quantization_config.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "model/json_fields.h"

namespace droidspeak {
namespace {

using Layout = QuantizationConfig::Layout;
using Code = QuantizationConfig::Code;
using Zero = QuantizationConfig::Zero;
using Names = std::span<const std::string_view>;

constexpr int64_t kMostColumns = 1 << 24;

// Whatever they hold, the tensors mean the same: how they were made, and what other programs do
// with them.
constexpr std::string_view kGptqNeutral[] = {"act_group_aware",
                                             "backend",
                                             "batch_size",
                                             "block_name_to_quantize",
                                             "cache_block_outputs",
                                             "cache_examples_on_gpu",
                                             "damp_auto_increment",
                                             "damp_percent",
                                             "dataset",
                                             "disable_exllama",
                                             "exllama_config",
                                             "lm_head",
                                             "max_input_length",
                                             "meta",
                                             "model_file_base_name",
                                             "model_name_or_path",
                                             "model_seqlen",
                                             "module_name_preceding_first_block",
                                             "modules_in_block_to_quantize",
                                             "mse",
                                             "pad_token_id",
                                             "quantizer",
                                             "static_groups",
                                             "tokenizer",
                                             "true_sequential",
                                             "use_cuda_fp16",
                                             "use_exllama"};
constexpr std::string_view kGptqRead[] = {
    "bits",   "checkpoint_format", "data_type",    "desc_act", "format", "group_size",
    "method", "pack_dtype",        "quant_method", "sym"};
constexpr std::string_view kAwqNeutral[] = {
    "backend", "do_fuse", "exllama_config",  "fuse_max_seq_len",
    "lm_head", "meta",    "modules_to_fuse", "modules_to_not_convert"};
constexpr std::string_view kAwqRead[] = {
    "bits",       "checkpoint_format", "data_type",    "format", "group_size", "method",
    "pack_dtype", "q_group_size",      "quant_method", "sym",    "version",    "w_bit",
    "zero_point"};
// What AutoRound says in all of its forms.
constexpr std::string_view kAutoRoundNeutral[] = {"amp",
                                                  "autoround_version",
                                                  "backend",
                                                  "batch_size",
                                                  "block_name_to_quantize",
                                                  "enable_minmax_tuning",
                                                  "enable_quanted_input",
                                                  "gradient_accumulate_steps",
                                                  "iters",
                                                  "low_gpu_mem_usage",
                                                  "lr",
                                                  "minmax_lr",
                                                  "nsamples",
                                                  "provider",
                                                  "quant_block_list",
                                                  "scale_dtype",
                                                  "seqlen",
                                                  "supported_types",
                                                  "to_quant_block_names"};
constexpr std::string_view kAutoRoundRead[] = {"bits",           "data_type",    "group_size",
                                               "packing_format", "quant_method", "sym"};
constexpr std::string_view kFp8Neutral[] = {"activation_scheme", "dequantize", "ignored_layers",
                                            "modules_to_not_convert", "scale_fmt"};
constexpr std::string_view kFp8Read[] = {"expert_dtype", "fmt", "quant_method",
                                         "weight_block_size"};
constexpr std::string_view kFbgemmNeutral[] = {"activation_scale_ub", "modules_to_not_convert"};
constexpr std::string_view kMxfp4Neutral[] = {"dequantize", "modules_to_not_convert"};
constexpr std::string_view kMxfp4Read[] = {"quant_method"};
constexpr std::string_view kFbgemmRead[] = {"quant_method"};
constexpr std::string_view kCompressedNeutral[] = {"global_compression_ratio", "ignore", "version"};
constexpr std::string_view kCompressedRead[] = {"config_groups",   "format",
                                                "quant_method",    "quantization_status",
                                                "sparsity_config", "transform_config"};
constexpr std::string_view kGroupNeutral[] = {"input_activations", "targets"};
constexpr std::string_view kGroupRead[] = {"format", "weights"};
constexpr std::string_view kWeightsNeutral[] = {"observer", "observer_kwargs", "scale_dtype",
                                                "zp_dtype"};
constexpr std::string_view kWeightsRead[] = {
    "actorder", "block_structure", "group_size", "num_bits", "strategy", "symmetric", "type"};

bool contains(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

void refuse_others(const JsonFields& json, std::initializer_list<Names> known) {
  for (const std::string& name : json.keys()) {
    const bool is_known =
        std::ranges::any_of(known, [&](Names names) { return contains(names, name); });
    if (!is_known && !json.is_blank(name))
      json.refuse(name, "null, false, 0 or empty: it is not supported");
  }
}

// The text of a field that has to be one of these; the first when it is missing.
std::string one_of(const JsonFields& json, std::string_view field, Names values) {
  std::string value = json.get_string_or(field, std::string(values.front()));
  std::ranges::transform(value, value.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (!contains(values, value))
    json.refuse(field, fmt::format("{}: others are not supported", fmt::join(values, " or ")));
  return value;
}

int32_t read_bits(const JsonFields& json, std::string_view field) {
  const int64_t bits = json.get_int(field, 1, 16);
  if (bits != 4 && bits != 8) json.refuse(field, "4 or 8");
  return static_cast<int32_t>(bits);
}

// Columns of one scale; -1 stands for all.
int64_t read_group_size(const JsonFields& json, std::string_view field) {
  const int64_t size = json.get_int(field, -1, kMostColumns);
  if (size == 0) json.refuse(field, "-1 or the number of columns that have one scale");
  return std::max<int64_t>(size, 0);
}

// Two names of one thing must say the same.
void refuse_contradiction(const JsonFields& json, std::string_view name, std::string_view other) {
  if (!json.has(name) || !json.has(other)) return;
  if (json.get_int(name, -1, kMostColumns) != json.get_int(other, -1, kMostColumns))
    json.refuse(other, fmt::format("what \"{}\" says", name));
}

// What GPTQModel and AutoRound write beside what others do.
void check_packing(const JsonFields& json, std::string_view method) {
  constexpr std::string_view words[] = {"int32"};
  constexpr std::string_view types[] = {"int"};
  one_of(json, "data_type", types);
  one_of(json, "pack_dtype", words);
  one_of(json, "method", {&method, 1});
}

// Files of the first form hold zero points less one.
QuantizationConfig read_gptq(const JsonFields& json) {
  constexpr std::string_view formats[] = {"gptq", "gptq_v2"};
  refuse_others(json, {kGptqNeutral, kAutoRoundNeutral, kGptqRead});
  check_packing(json, "gptq");
  const std::string_view field = json.has("checkpoint_format") ? "checkpoint_format" : "format";
  const bool is_first_form = one_of(json, field, formats) == "gptq";
  if (json.has("format") && (one_of(json, "format", formats) == "gptq") != is_first_form)
    json.refuse("format", "what \"checkpoint_format\" says");
  return {.method = "gptq",
          .layout = Layout::kGptq,
          .bits = read_bits(json, "bits"),
          .zero = json.get_bool_or("sym", false) ? Zero::kMiddle : Zero::kStored,
          .zero_offset = is_first_form ? 1 : 0,
          .scale_block = {.rows = 1, .columns = read_group_size(json, "group_size")},
          .needs_group_index = json.get_bool_or("desc_act", false)};
}

QuantizationConfig read_awq(const JsonFields& json) {
  constexpr std::string_view versions[] = {"gemm"};
  refuse_others(json, {kAwqNeutral, kAutoRoundNeutral, kAwqRead});
  check_packing(json, "awq");
  for (std::string_view field : {"version", "format", "checkpoint_format"})
    one_of(json, field, versions);
  refuse_contradiction(json, "bits", "w_bit");
  refuse_contradiction(json, "group_size", "q_group_size");
  const std::string_view bits = json.has("bits") ? "bits" : "w_bit";
  const std::string_view group = json.has("group_size") ? "group_size" : "q_group_size";
  if (json.get_int(bits, 1, 16) != 4) json.refuse(bits, "4");
  // Symmetric ones hold zero points, too, which are the middle.
  const bool is_symmetric = !json.get_bool_or("zero_point", true) || json.get_bool_or("sym", false);
  return {.method = "awq",
          .layout = Layout::kAwq,
          .zero = is_symmetric ? Zero::kMiddle : Zero::kStored,
          .scale_block = {.rows = 1, .columns = read_group_size(json, group)},
          .has_whole_groups = true};
}

// Its own name for GPTQ's and AWQ's layouts, whose zero points are as they are but in one.
QuantizationConfig read_auto_round(const JsonFields& json) {
  constexpr std::string_view less_one = "auto_round:auto_gptq";
  constexpr std::string_view awq = "auto_round:auto_awq";
  constexpr std::string_view formats[] = {less_one, "auto_round:gptqmodel", awq};
  constexpr std::string_view types[] = {"int"};
  refuse_others(json, {kAutoRoundNeutral, kAutoRoundRead});
  one_of(json, "data_type", types);
  static_cast<void>(json.get_string("packing_format"));
  const std::string format = one_of(json, "packing_format", formats);
  QuantizationConfig config{
      .method = "auto-round",
      .layout = format == awq ? Layout::kAwq : Layout::kGptq,
      .bits = read_bits(json, "bits"),
      .zero = json.get_bool_or("sym", false) ? Zero::kMiddle : Zero::kStored,
      .zero_offset = format == less_one ? 1 : 0,
      .scale_block = {.rows = 1, .columns = read_group_size(json, "group_size")},
      .has_whole_groups = format == awq};
  if (format == awq && config.bits != 4) json.refuse("bits", "4");
  return config;
}

QuantizationConfig::ScaleBlock read_block(const JsonFields& json, std::string_view field) {
  const std::vector<int64_t> sizes = json.get_ints(field, 1, kMostColumns);
  if (sizes.size() != 2) json.refuse(field, "two sizes: rows and columns that have one scale");
  return {sizes[0], sizes[1]};
}

bool is_static(const JsonFields& json) {
  return json.is_text("activation_scheme") && json.get_string("activation_scheme") == "static";
}

QuantizationConfig read_fp8(const JsonFields& json) {
  constexpr std::string_view formats[] = {"e4m3"};
  constexpr std::string_view types[] = {"fp8"};
  refuse_others(json, {kFp8Neutral, kFp8Read});
  one_of(json, "fmt", formats);
  one_of(json, "expert_dtype", types);
  QuantizationConfig config{.method = "fp8",
                            .layout = Layout::kBytes,
                            .code = Code::kFloat,
                            .bits = 8,
                            .zero = Zero::kMiddle,
                            .rounds_input = !is_static(json)};
  if (json.has("weight_block_size")) {
    config.scale_block = read_block(json, "weight_block_size");
    config.scale_suffix = "weight_scale_inv";
  } else {
    config.may_scale_rows = true;
    config.other_scale_suffix = "weight_scale_inv";  // as transformers calls it
  }
  return config;
}

QuantizationConfig read_fbgemm(const JsonFields& json) {
  refuse_others(json, {kFbgemmNeutral, kFbgemmRead});
  return {.method = "fbgemm_fp8",
          .layout = Layout::kBytes,
          .code = Code::kFloat,
          .bits = 8,
          .zero = Zero::kMiddle,
          .rounds_input = true};
}

QuantizationConfig read_mxfp4(const JsonFields& json) {
  refuse_others(json, {kMxfp4Neutral, kMxfp4Read});
  return {.method = "mxfp4",
          .layout = Layout::kMxfp4,
          .code = Code::kFloat,
          .bits = 4,
          .zero = Zero::kMiddle,
          .scale_block = {.rows = 1, .columns = 32}};
}

std::string strategy_of(const JsonFields& weights) {
  constexpr std::string_view strategies[] = {"tensor", "channel", "group", "block"};
  return one_of(weights, "strategy", strategies);
}

QuantizationConfig::ScaleBlock read_strategy(const JsonFields& weights) {
  const std::string strategy = strategy_of(weights);
  if (strategy == "tensor") return {.rows = 0, .columns = 0};
  if (strategy == "channel") return {.rows = 1, .columns = 0};
  if (strategy == "block") return read_block(weights, "block_structure");
  return {.rows = 1, .columns = read_group_size(weights, "group_size")};
}

// "weight" and "static" order columns only while rounding them.
bool orders_columns(const JsonFields& weights) {
  constexpr std::string_view orders[] = {"group", "weight", "static", "dynamic"};
  if (!weights.is_text("actorder")) return weights.get_bool_or("actorder", false);
  const std::string order = one_of(weights, "actorder", orders);
  return order == "group" || order == "dynamic";
}

// Each row by a scale of its own.
bool rounds_input(const JsonFields& group) {
  if (group.is_blank("input_activations")) return false;
  const auto input = group.find_object("input_activations");
  return input && input->is_text("type") && input->get_string("type") == "float" &&
         input->has("num_bits") && input->get_int("num_bits", 1, 32) == 8 &&
         !input->is_text("dynamic") && input->get_bool_or("dynamic", false);
}

// One of config_groups.
QuantizationConfig read_group(const JsonFields& group, const std::string& default_format) {
  constexpr std::string_view types[] = {"int", "float"};
  constexpr std::string_view formats[] = {"dense", "pack-quantized", "int-quantized",
                                          "float-quantized", "naive-quantized"};
  refuse_others(group, {kGroupNeutral, kGroupRead});
  const auto weights = group.find_object("weights");
  if (!weights) group.refuse("weights", "an object: nothing else than weights is quantised");
  refuse_others(*weights, {kWeightsNeutral, kWeightsRead});
  const std::string format =
      group.has("format") ? one_of(group, "format", formats) : default_format;
  QuantizationConfig config{
      .method = "compressed-tensors",
      .layout = format == "pack-quantized" ? Layout::kPacked : Layout::kBytes,
      .code = one_of(*weights, "type", types) == "int" ? Code::kInteger : Code::kFloat,
      .bits = read_bits(*weights, "num_bits"),
      .zero = weights->get_bool_or("symmetric", true) ? Zero::kMiddle : Zero::kStored,
      .scale_block = read_strategy(*weights),
      .needs_group_index = orders_columns(*weights),
      .has_whole_groups = strategy_of(*weights) == "group",
      .rounds_input = rounds_input(group)};
  if (config.layout == Layout::kBytes && config.bits != 8)
    weights->refuse("num_bits", fmt::format("8 for {}", format));
  if (config.code == Code::kFloat && config.layout == Layout::kPacked)
    weights->refuse("type", "int for pack-quantized");
  if (config.code == Code::kFloat && config.zero == Zero::kStored)
    weights->refuse("symmetric", "true for floats");
  return config;
}

// Sparse weights lie otherwise; transforms change activations.
void refuse_sparsity_and_transforms(const JsonFields& json) {
  constexpr std::string_view formats[] = {"dense"};
  if (!json.is_blank("sparsity_config")) {
    const auto sparsity = json.find_object("sparsity_config");
    static_cast<void>(sparsity->get_string("format"));
    one_of(*sparsity, "format", formats);
  }
  if (!json.is_blank("transform_config")) {
    const auto transforms = json.find_object("transform_config");
    refuse_others(*transforms, {});
  }
}

QuantizationConfig read_compressed(const JsonFields& json) {
  constexpr std::string_view formats[] = {"dense", "pack-quantized", "int-quantized",
                                          "float-quantized", "naive-quantized"};
  constexpr std::string_view statuses[] = {"compressed", "frozen"};
  refuse_others(json, {kCompressedNeutral, kCompressedRead});
  refuse_sparsity_and_transforms(json);
  one_of(json, "quantization_status", statuses);
  const std::string format = one_of(json, "format", formats);
  const auto groups = json.find_object("config_groups");
  if (!groups || groups->keys().empty())
    json.refuse("config_groups", "an object with at least one group");
  std::vector<QuantizationConfig> read;
  for (const std::string& name : groups->keys()) {
    const auto group = groups->find_object(name);
    if (!group) groups->refuse(name, "an object");
    read.push_back(read_group(*group, format));
    if (!(read.back() == read.front()))
      groups->refuse(name, "the same scheme for all groups of weights: others are not supported");
  }
  return read.front();
}

struct Method {
  std::string_view name;
  QuantizationConfig (*read)(const JsonFields&);
  std::string_view what;  // is read
};

constexpr Method kMethods[] = {
    {"auto-round", read_auto_round,
     "`auto_round:auto_gptq`, `auto_round:gptqmodel` (4 and 8 bits) and `auto_round:auto_awq` (4 "
     "bits), symmetric or not"},
    {"awq", read_awq, "4 bits, version `gemm`, with zero points or symmetric"},
    {"compressed-tensors", read_compressed,
     "`pack-quantized` (4 and 8 bits), `int-quantized` (8 bits), `float-quantized` and "
     "`naive-quantized` (FP8 E4M3, int8), scales by tensor, channel, group or block, zero points, "
     "`weight_g_idx`; all groups alike"},
    {"fbgemm_fp8", read_fbgemm, "FP8 E4M3, scales by channel"},
    {"fp8", read_fp8,
     "E4M3, scales by tensor, channel (`weight_scale` or `weight_scale_inv`) or block "
     "(`weight_scale_inv`)"},
    {"gptq", read_gptq,
     "4 and 8 bits, symmetric or not, `g_idx` (`desc_act`), zero points of `gptq` (less one) and "
     "`gptq_v2`"},
    {"mxfp4", read_mxfp4, "experts as parameters (`*_blocks`, `*_scales`)"},
};

}  // namespace

std::string QuantizationConfig::describe() const {
  return fmt::format("{} layout={} code={} bits={} zero={}+{} block={}x{}:{} {} {}", method,
                     static_cast<int>(layout), static_cast<int>(code), bits, static_cast<int>(zero),
                     zero_offset, scale_block.rows, scale_block.columns, may_scale_rows,
                     needs_group_index, scale_suffix);
}

QuantizationConfig read_quantization_config(const JsonFields& json) {
  const std::string method = json.get_string("quant_method");
  const auto* found = std::ranges::find(kMethods, method, &Method::name);
  if (found != std::end(kMethods)) return found->read(json);
  std::vector<std::string_view> names;
  for (const Method& known : kMethods) names.push_back(known.name);
  json.refuse("quant_method", fmt::format("one of {}", fmt::join(names, ", ")));
}

std::string supported_quantizations() {
  std::string rows;
  for (const Method& method : kMethods)
    rows += fmt::format("| `{}` | {} |\n", method.name, method.what);
  return rows;
}

}  // namespace droidspeak
