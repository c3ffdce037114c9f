#include "model/gguf_adapter.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "model/row_order.h"

namespace droidspeak {
namespace {

// Tokenizers of models are a few MiB; those of adapters there are none.
constexpr uint64_t kLargestHeader = uint64_t{64} << 20;

// "{}" stands for the expert.
struct ModuleNames {
  std::string_view gguf;
  std::string_view module;
};

constexpr ModuleNames kModules[] = {
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_exps", "mlp.experts.{}.gate_proj"},
    {"ffn_up_exps", "mlp.experts.{}.up_proj"},
    {"ffn_down_exps", "mlp.experts.{}.down_proj"},
};

constexpr std::string_view kKnownKeys[] = {"adapter.type", "adapter.lora.alpha",
                                           "adapter.alora.invocation_tokens",
                                           "adapter.lora.task_name"};
// Nothing puts it before prompts.
constexpr std::string_view kPrefixKey = "adapter.lora.prompt_prefix";

[[noreturn]] void refuse(const GgufFile& file, const std::string& what) {
  throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file.path().string(), what));
}

// What is known of a tensor by its name alone.
struct TensorName {
  int32_t layer = 0;
  const ModuleNames* module = nullptr;
  AdapterPlace::Side side = AdapterPlace::Side::kDown;
};

// "blk.3.attn_q.weight.lora_a"
std::optional<TensorName> parse(std::string_view name) {
  TensorName parsed;
  if (!consume(name, "blk.")) return std::nullopt;
  const auto layer = consume_layer(name);
  if (!layer || !consume(name, ".")) return std::nullopt;
  parsed.layer = *layer;
  const size_t dot = name.find('.');
  const auto* module = std::ranges::find(kModules, name.substr(0, dot), &ModuleNames::gguf);
  if (dot == std::string_view::npos || module == std::end(kModules)) return std::nullopt;
  parsed.module = module;
  name.remove_prefix(dot);
  if (name == ".weight.lora_b") {
    parsed.side = AdapterPlace::Side::kUp;
  } else if (name != ".weight.lora_a") {
    return std::nullopt;
  }
  return parsed;
}

class TensorPlacer {
 public:
  TensorPlacer(const GgufFile& file,
               const Architecture& architecture,
               const ModelConfig& base,
               const std::vector<AdapterTarget>& targets)
      : file_(file), architecture_(architecture), base_(base), targets_(targets) {}

  void add(const FileTensor& tensor, std::vector<AdapterTensor>& out) const {
    const auto name = parse(tensor.name);
    if (!name) {
      out.push_back({tensor, std::nullopt});
    } else if (name->module->module.find("{}") == std::string_view::npos) {
      out.push_back({tensor, place(*name, module_of(*name)), row_order(*name)});
    } else {
      add_experts(tensor, *name, out);
    }
  }

 private:
  void add_experts(const FileTensor& tensor,
                   const TensorName& name,
                   std::vector<AdapterTensor>& out) const {
    const int32_t count = base_.experts.count;
    if (tensor.shape.size() != 3 || tensor.shape[0] != count) {
      refuse(file_, fmt::format("tensor {} has shape [{}]: expected one matrix for each of the "
                                "base's {} experts",
                                in_quotes(tensor.name), fmt::join(tensor.shape, ", "), count));
    }
    for (int32_t e = 0; e < count; ++e) {
      out.push_back(
          {tensor.slice(e), place(name, fmt::format(fmt::runtime(name.module->module), e))});
    }
  }

  // Files with gate and up in one tensor call it "ffn_up".
  std::string module_of(const TensorName& name) const {
    const bool is_fused = architecture_.fusion == Fusion::kFused && name.module->gguf == "ffn_up";
    return is_fused ? "mlp.gate_up_proj" : std::string(name.module->module);
  }

  std::optional<AdapterPlace> place(const TensorName& name, const std::string& module) const {
    auto target = std::ranges::find(targets_, module, &AdapterTarget::name);
    // Rows of a fused one would be in an order that no writer has settled.
    const bool is_joined = name.module->gguf == "attn_qkv" && architecture_.gguf_permutes_qk;
    if (target == targets_.end() || is_joined) return std::nullopt;
    return AdapterPlace{name.layer, &*target, name.side};
  }

  std::vector<int32_t> row_order(const TensorName& name) const {
    if (!architecture_.gguf_permutes_qk || name.side != AdapterPlace::Side::kUp) return {};
    if (name.module->gguf == "attn_q") return half_split_rows(base_.num_heads, base_.head_dim);
    if (name.module->gguf == "attn_k") return half_split_rows(base_.num_kv_heads, base_.head_dim);
    return {};
  }

  const GgufFile& file_;
  const Architecture& architecture_;
  const ModelConfig& base_;
  const std::vector<AdapterTarget>& targets_;
};

}  // namespace

bool is_gguf_adapter(const std::filesystem::path& path) {
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) return false;
  try {
    const GgufFile file(std::make_shared<InputFile>(path), kLargestHeader);
    return file.get_string_or("general.type", "model") == "adapter";
  } catch (const Failure&) {
    return false;
  }
}

const Architecture& check_gguf_adapter(const GgufFile& file, const ModelConfig& base) {
  auto expect = [&](std::string_view key, std::string_view wanted) {
    const std::string value = file.get_string(key);
    if (value != wanted)
      refuse(file, fmt::format("key \"{}\" is {}: expected \"{}\"", key, in_quotes(value), wanted));
  };
  expect("general.type", "adapter");
  expect("adapter.type", "lora");
  for (const auto& [key, value] : file.metadata()) {
    const bool is_known = std::ranges::find(kKnownKeys, key) != std::end(kKnownKeys) ||
                          (key == kPrefixKey && value == GgufValue(std::string()));
    if (key.starts_with("adapter.") && !is_known)
      refuse(file, fmt::format("key {} is not supported", in_quotes(key)));
  }
  const std::string name = file.get_string("general.architecture");
  for (const Architecture* architecture : all_architectures()) {
    if (std::ranges::count(architecture->gguf_architectures, name) == 0) continue;
    const bool is_of_base =
        std::ranges::any_of(all_architectures(), [&](const Architecture* other) {
          return other->name == base.architecture &&
                 (other == architecture || other->gguf_as == name);
        });
    if (is_of_base) return *architecture;
  }
  refuse(file, fmt::format("key \"general.architecture\" is {}: the base model is {}",
                           in_quotes(name), base.architecture));
}

std::vector<AdapterTensor> gguf_adapter_tensors(const GgufFile& file,
                                                const Architecture& architecture,
                                                const ModelConfig& base,
                                                const std::vector<AdapterTarget>& targets) {
  std::vector<AdapterTensor> tensors;
  const TensorPlacer placer(file, architecture, base, targets);
  for (const FileTensor& tensor : file.tensors()) placer.add(tensor, tensors);
  return tensors;
}

}  // namespace droidspeak
