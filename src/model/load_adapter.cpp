// PEFT LoRA folders: adapter_config.json and adapter_model.safetensors.
#include <cmath>
#include <regex>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/safetensors.h"
#include "model/digest_cache.h"
#include "model/json_fields.h"
#include "model/weights.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

// One linear layer as PEFT names it, and where its output lies in our fused one.
struct Target {
  std::string_view name;  // "q_proj"
  LoraLinear LoraLayer::*linear;
  int32_t first_column;
  int32_t rows;
  int32_t columns;
};

std::vector<Target> targets_of(const ModelConfig& c) {
  int32_t q = c.q_columns();
  int32_t kv = c.kv_columns();
  return {{"self_attn.q_proj", &LoraLayer::qkv, 0, q, c.d_model},
          {"self_attn.k_proj", &LoraLayer::qkv, q, kv, c.d_model},
          {"self_attn.v_proj", &LoraLayer::qkv, q + kv, kv, c.d_model},
          {"self_attn.qkv_proj", &LoraLayer::qkv, 0, q + 2 * kv, c.d_model},
          {"self_attn.o_proj", &LoraLayer::output, 0, c.d_model, q},
          {"mlp.gate_proj", &LoraLayer::gate_up, 0, c.ffn_dim, c.d_model},
          {"mlp.up_proj", &LoraLayer::gate_up, c.ffn_dim, c.ffn_dim, c.d_model},
          {"mlp.gate_up_proj", &LoraLayer::gate_up, 0, 2 * c.ffn_dim, c.d_model},
          {"mlp.down_proj", &LoraLayer::down, 0, c.d_model, c.ffn_dim}};
}

class AdapterLoader {
 public:
  AdapterLoader(Ops& ops,
                const std::filesystem::path& folder,
                const ModelConfig& base,
                Precision precision)
      : ops_(ops),
        base_(base),
        precision_(precision),
        json_(folder / "adapter_config.json"),
        file_(folder / "adapter_model.safetensors") {
    check_config();
  }

  std::shared_ptr<const Adapter> load() {
    auto adapter = std::make_shared<Adapter>();
    adapter->digest = digest();
    adapter->layers.resize(static_cast<size_t>(base_.num_layers));
    size_t used = 0;
    for (int32_t layer = 0; layer < base_.num_layers; ++layer)
      used += load_layer(layer, adapter->layers[static_cast<size_t>(layer)]);
    if (used != file_.tensors().size()) refuse_unknown_tensor();
    return adapter;
  }

 private:
  struct Pair {
    const Target* target;
    const FileTensor* a;  // [rank, columns]
    const FileTensor* b;  // [rows, rank]
    int32_t rank;
    float scale;
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file_.path().string(), what));
  }

  void check_config() const {
    if (std::string type = json_.get_string_or("peft_type", "LORA"); type != "LORA")
      json_.refuse("peft_type", "LORA");
    if (json_.get_bool_or("use_dora", false)) json_.refuse("use_dora", "false");
    if (json_.get_string_or("bias", "none") != "none") json_.refuse("bias", "\"none\"");
    if (json_.get_bool_or("fan_in_fan_out", false)) json_.refuse("fan_in_fan_out", "false");
    if (json_.has("modules_to_save") && !json_.get_strings("modules_to_save").empty())
      json_.refuse("modules_to_save", "null");
  }

  // The names of PEFT's patterns match at the end of a module path, as regular expressions.
  double from_pattern(std::string_view field, const std::string& module, double fallback) const {
    auto pattern = json_.find_object(field);
    if (!pattern) return fallback;
    for (const std::string& key : pattern->keys()) {
      if (module == key || module.ends_with("." + key)) return pattern->get_double(key);
      try {
        if (key.size() < 200 && std::regex_match(module, std::regex("(.*\\.)?(" + key + ")")))
          return pattern->get_double(key);
      } catch (const std::regex_error&) {
        json_.refuse(field, fmt::format("module names or regular expressions, not \"{}\"", key));
      }
    }
    return fallback;
  }

  const FileTensor* find(const std::string& module, std::string_view which) const {
    for (std::string_view form :
         {"base_model.model.{}.lora_{}.weight", "base_model.model.{}.lora_{}.default.weight",
          "{}.lora_{}.weight"}) {
      if (const FileTensor* tensor =
              file_.find_tensor(fmt::format(fmt::runtime(form), module, which)))
        return tensor;
    }
    return nullptr;
  }

  std::optional<Pair> find_pair(int32_t layer, const Target& target) const {
    std::string module = fmt::format("model.layers.{}.{}", layer, target.name);
    Pair pair{&target, find(module, "A"), find(module, "B"), 0, 0};
    if (pair.a == nullptr && pair.b == nullptr) return std::nullopt;
    if (pair.a == nullptr || pair.b == nullptr)
      refuse(fmt::format("module \"{}\" has lora_{} but no lora_{}", module, pair.a ? 'A' : 'B',
                         pair.a ? 'B' : 'A'));
    double rank =
        from_pattern("rank_pattern", module, static_cast<double>(json_.get_int("r", 1, 65536)));
    double alpha = from_pattern("alpha_pattern", module, json_.get_double_or("lora_alpha", 8));
    pair.rank = static_cast<int32_t>(rank);
    auto r = static_cast<int64_t>(pair.rank);
    expect_shape(*pair.a, {r, target.columns});
    expect_shape(*pair.b, {target.rows, r});
    pair.scale = static_cast<float>(json_.get_bool_or("use_rslora", false) ? alpha / std::sqrt(rank)
                                                                           : alpha / rank);
    return pair;
  }

  void expect_shape(const FileTensor& tensor, const std::vector<int64_t>& shape) const {
    if (tensor.shape == shape) return;
    refuse(fmt::format(
        "tensor \"{}\" has shape [{}]: the base model and adapter_config.json want [{}]",
        tensor.name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")));
  }

  // Returns the number of tensors used.
  size_t load_layer(int32_t layer, LoraLayer& out) {
    std::vector<Target> targets = targets_of(base_);
    size_t used = 0;
    for (LoraLinear LoraLayer::*linear :
         {&LoraLayer::qkv, &LoraLayer::output, &LoraLayer::gate_up, &LoraLayer::down}) {
      std::vector<Pair> pairs;
      for (const Target& target : targets) {
        if (target.linear != linear) continue;
        if (auto pair = find_pair(layer, target)) pairs.push_back(*pair);
      }
      used += 2 * pairs.size();
      if (!pairs.empty()) out.*linear = pack(pairs);
    }
    return used;
  }

  LoraLinear pack(const std::vector<Pair>& pairs) {
    LoraLinear linear;
    std::vector<MatrixPart> down;
    int32_t first_rank = 0;
    for (const Pair& pair : pairs) {
      down.push_back({pair.a->dtype, pair.rank, pair.target->columns, pair.a->bytes, {}});
      linear.parts.push_back({pack_up(pair), first_rank, pair.rank, pair.target->first_column});
      first_rank += pair.rank;
    }
    linear.down = ops_.pack(down, precision_);
    return linear;
  }

  // B with the adapter's scale, in 16 bits where the file has 16 and speed is wanted.
  std::unique_ptr<WeightMatrix> pack_up(const Pair& pair) {
    std::vector<float> up(static_cast<size_t>(pair.target->rows) * static_cast<size_t>(pair.rank));
    dequantize(pair.b->dtype, pair.b->bytes, up);
    for (float& value : up) value *= pair.scale;
    MatrixPart part{DType::kF32, pair.target->rows, pair.rank, std::as_bytes(std::span(up)), {}};
    std::vector<uint16_t> halves;
    if (precision_ == Precision::kFast && pair.b->dtype == DType::kF16) {
      for (float value : up) halves.push_back(f16_from_float(value));
      part.dtype = DType::kF16;
      part.bytes = std::as_bytes(std::span(halves));
    }
    return ops_.pack(std::span(&part, 1), precision_);
  }

  Digest digest() const {
    std::vector<const FileTensor*> tensors;
    for (const FileTensor& tensor : file_.tensors()) tensors.push_back(&tensor);
    Digest weights = digest_of_tensors(tensors);
    Sha256 hash;
    hash.add_field('w', std::as_bytes(std::span(weights.bytes)));
    for (std::string_view field : {"r", "lora_alpha"})
      hash.add_field('n', fmt::format("{}={}", field, json_.get_double_or(field, 0)));
    hash.add_field('r', json_.get_bool_or("use_rslora", false) ? "rslora" : "lora");
    for (std::string_view field : {"rank_pattern", "alpha_pattern"}) {
      auto pattern = json_.find_object(field);
      if (!pattern) continue;
      for (const std::string& key : pattern->keys())
        hash.add_field('p', fmt::format("{}:{}={}", field, key, pattern->get_double(key)));
    }
    return hash.finish();
  }

  [[noreturn]] void refuse_unknown_tensor() const {
    static const std::regex known(
        R"((base_model\.model\.)?model\.layers\.(\d+)\.(self_attn\.(q|k|v|qkv|o)_proj|mlp\.(gate|up|gate_up|down)_proj)\.lora_[AB](\.default)?\.weight)");
    for (const FileTensor& tensor : file_.tensors()) {
      std::smatch match;
      if (!std::regex_match(tensor.name, match, known) || match[2].length() > 6 ||
          std::stoi(match[2]) >= base_.num_layers) {
        refuse(fmt::format("tensor \"{}\" fits no linear layer of the base model ({} layers of {})",
                           tensor.name, base_.num_layers, base_.architecture));
      }
    }
    refuse("some tensors name the same linear layer twice");
  }

  Ops& ops_;
  const ModelConfig& base_;
  Precision precision_;
  JsonFields json_;
  SafetensorsFile file_;
};

size_t packed_bytes(const LoraLinear& linear) {
  size_t total = linear.down ? linear.down->bytes() : 0;
  for (const LoraLinear::Part& part : linear.parts) total += part.up->bytes();
  return total;
}

}  // namespace

size_t Adapter::bytes() const {
  size_t total = 0;
  for (const LoraLayer& layer : layers) {
    for (const LoraLinear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
      total += packed_bytes(*linear);
  }
  return total;
}

std::shared_ptr<const Adapter> load_adapter(Ops& ops,
                                            const std::filesystem::path& folder,
                                            const ModelConfig& base,
                                            Precision precision) {
  return AdapterLoader(ops, folder, base, precision).load();
}

}  // namespace droidspeak
