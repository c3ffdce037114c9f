#include "model/adapter_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/safetensors.h"
#include "model/adapter_config.h"
#include "model/digest_cache.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

constexpr uint64_t kHeaderAllowance = uint64_t{1} << 20;
constexpr uint64_t kEntryBytes = 256;  // of a header; a tensor takes some 130
constexpr float kLargestHalf = 65504;

// One linear layer as PEFT names it, and where its output lies in our fused one.
struct Target {
  std::string name;  // "self_attn.q_proj"
  LinearPlace linear;
  int32_t first_column;
  int32_t rows;
  int32_t columns;

  bool overlaps(const Target& other) const {
    return linear == other.linear && first_column < other.first_column + other.rows &&
           other.first_column < first_column + rows;
  }
};

// gate, up and down of an FFN of this size.
struct FfnNames {
  std::string gate;
  std::string up;
  std::string down;
};

void add_ffn(const FfnNames& names,
             const LinearPlace& gate_up,
             const LinearPlace& down,
             std::pair<int32_t, int32_t> sizes,
             std::vector<Target>& out) {
  const auto [ffn_dim, d_model] = sizes;
  out.push_back({names.gate, gate_up, 0, ffn_dim, d_model});
  out.push_back({names.up, gate_up, ffn_dim, ffn_dim, d_model});
  out.push_back({names.down, down, 0, d_model, ffn_dim});
}

// Experts are called as Qwen or as Mixtral does it.
void add_experts(const ModelConfig& c, std::vector<Target>& out) {
  for (int32_t e = 0; e < c.experts.count; ++e) {
    const LinearPlace gate_up{.of_expert = &ExpertLora::gate_up, .expert = e};
    const LinearPlace down{.of_expert = &ExpertLora::down, .expert = e};
    const std::pair sizes{c.experts.ffn_dim, c.d_model};
    const std::string qwen = fmt::format("mlp.experts.{}.", e);
    add_ffn({qwen + "gate_proj", qwen + "up_proj", qwen + "down_proj"}, gate_up, down, sizes, out);
    const std::string mixtral = fmt::format("block_sparse_moe.experts.{}.", e);
    add_ffn({mixtral + "w1", mixtral + "w3", mixtral + "w2"}, gate_up, down, sizes, out);
  }
}

std::vector<Target> targets_of(const ModelConfig& c) {
  int32_t q = c.q_columns();
  int32_t kv = c.kv_columns();
  const LinearPlace qkv{.of_layer = &LoraLayer::qkv};
  const LinearPlace gate_up{.of_layer = &LoraLayer::gate_up};
  std::vector<Target> targets = {
      {"self_attn.q_proj", qkv, 0, q, c.d_model},
      {"self_attn.k_proj", qkv, q, kv, c.d_model},
      {"self_attn.v_proj", qkv, q + kv, kv, c.d_model},
      {"self_attn.qkv_proj", qkv, 0, q + 2 * kv, c.d_model},
      {"self_attn.o_proj", {.of_layer = &LoraLayer::output}, 0, c.d_model, q}};
  if (c.ffn_dim > 0) {
    const std::string module = c.parts.has_shared_expert ? "mlp.shared_expert." : "mlp.";
    add_ffn({module + "gate_proj", module + "up_proj", module + "down_proj"}, gate_up,
            {.of_layer = &LoraLayer::down}, {c.ffn_dim, c.d_model}, targets);
    targets.push_back({module + "gate_up_proj", gate_up, 0, 2 * c.ffn_dim, c.d_model});
  }
  add_experts(c, targets);
  return targets;
}

bool consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int32_t> consume_layer(std::string_view& text) {
  int32_t layer = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  auto length = static_cast<size_t>(end - text.data());
  bool is_number = error == std::errc() && layer >= 0 && (length == 1 || text.front() != '0');
  if (!is_number) return std::nullopt;
  text.remove_prefix(length);
  return layer;
}

struct TensorPlace {
  int32_t layer = 0;
  const Target* target = nullptr;
  enum class Side { kDown, kUp } side = Side::kDown;
};

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight", with or without PEFT's prefix
// and the name of its default adapter.
std::optional<TensorPlace> place_of(std::string_view name, const std::vector<Target>& targets) {
  TensorPlace place;
  consume(name, "base_model.model.");
  if (!consume(name, "model.layers.")) return std::nullopt;
  auto layer = consume_layer(name);
  if (!layer || !consume(name, ".")) return std::nullopt;
  place.layer = *layer;
  for (const Target& target : targets) {
    if (name.starts_with(target.name) && name.substr(target.name.size()).starts_with(".lora_"))
      place.target = &target;
  }
  if (place.target == nullptr) return std::nullopt;
  name.remove_prefix(place.target->name.size());
  if (consume(name, ".lora_B")) {
    place.side = TensorPlace::Side::kUp;
  } else if (!consume(name, ".lora_A")) {
    return std::nullopt;
  }
  consume(name, ".default");
  return name == ".weight" ? std::optional(place) : std::nullopt;
}

std::string module_of(const TensorPlace& place) {
  return fmt::format("model.layers.{}.{}", place.layer, place.target->name);
}

std::vector<float> floats_of(DType dtype, std::span<const std::byte> bytes, int64_t size) {
  std::vector<float> values(static_cast<size_t>(size));
  dequantize(dtype, bytes, values);
  return values;
}

bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

std::vector<std::byte> bytes_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::filesystem::path check_size(const std::filesystem::path& path, uint64_t limit) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return path;  // opening it says why not
  if (!std::filesystem::is_regular_file(path, error)) {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{} is no regular file", path.string()));
  }
  uint64_t size = std::filesystem::file_size(path, error);
  if (!error && size > limit) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} has {} bytes: an adapter of this base has at most {}",
                              path.string(), size, limit));
  }
  return path;
}

// For lora_A and lora_B of every target, and for metadata.
uint64_t max_header_bytes(const ModelConfig& base, size_t num_targets) {
  return kEntryBytes * (num_targets * 2 * static_cast<uint64_t>(base.num_layers) + 256);
}

}  // namespace

// Reads the tensors of one folder into an AdapterFiles.
class AdapterReader {
 public:
  AdapterReader(const std::filesystem::path& folder, const ModelConfig& base, Precision precision)
      : base_(base),
        precision_(precision),
        targets_(targets_of(base)),
        config_(folder / "adapter_config.json", base.vocab_size),
        file_(check_size(folder / "adapter_model.safetensors", max_adapter_bytes(base)),
              max_header_bytes(base, targets_.size())) {}

  void read(AdapterFiles& out) {
    place_tensors();
    check_overlaps();
    read_tensors();
    out.digest_ = digest();
    out.invocation_ = config_.invocation();
    out.layers_.resize(static_cast<size_t>(base_.num_layers));
    for (const auto& [key, slot] : slots_)
      out.layers_[static_cast<size_t>(key.first)].push_back(read_pair(slot));
  }

 private:
  struct Slot {
    TensorPlace place;
    std::optional<size_t> down;  // index of lora_A among the file's tensors
    std::optional<size_t> up;    // and of lora_B
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file_.path().string(), what));
  }

  const FileTensor& tensor(size_t index) const { return file_.tensors()[index]; }

  void place_tensors() {
    for (const auto& [name, dtype] : file_.unsupported())
      refuse(fmt::format("tensor \"{}\" is {}: expected F32, F16 or BF16", name, dtype));
    if (file_.tensors().empty()) refuse("it holds no tensors: expected lora_A and lora_B");
    for (size_t i = 0; i < file_.tensors().size(); ++i) place_tensor(i);
  }

  void place_tensor(size_t index) {
    const std::string& name = tensor(index).name;
    auto place = place_of(name, targets_);
    if (!place || place->layer >= base_.num_layers) {
      refuse(fmt::format("tensor \"{}\" fits no linear layer of the base model ({} layers of {})",
                         name, base_.num_layers, base_.architecture));
    }
    if (!config_.has_layer(place->layer)) {
      refuse(fmt::format("tensor \"{}\" is for layer {}, which layers_to_transform leaves out",
                         name, place->layer));
    }
    Slot& slot = slots_[{place->layer, place->target - targets_.data()}];
    slot.place = *place;
    auto& side = place->side == TensorPlace::Side::kDown ? slot.down : slot.up;
    if (side)
      refuse(fmt::format("tensors \"{}\" and \"{}\" are for one layer", tensor(*side).name, name));
    side = index;
  }

  // A fused layer and one of its parts cannot both be there.
  void check_overlaps() const {
    for (auto slot = slots_.begin(); slot != slots_.end(); ++slot) {
      const auto& [layer, target] = slot->first;
      for (auto other = std::next(slot); other != slots_.end() && other->first.first == layer;
           ++other) {
        if (slot->second.place.target->overlaps(*other->second.place.target)) {
          refuse(fmt::format("modules \"{}\" and \"{}\" are the same linear layer",
                             module_of(slot->second.place), module_of(other->second.place)));
        }
      }
    }
  }

  // Each once, so that the digest is that of what is packed whatever happens to the file.
  void read_tensors() {
    for (const FileTensor& tensor : file_.tensors()) bytes_.push_back(tensor.read());
  }

  Digest digest() const {
    std::vector<FileTensor> copies;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      copies.push_back({tensor(i).name, tensor(i).dtype, tensor(i).shape,
                        std::span<const std::byte>(bytes_[i])});
    }
    std::vector<const FileTensor*> tensors;
    for (const FileTensor& copy : copies) tensors.push_back(&copy);
    Digest weights = digest_of_tensors(tensors);
    Sha256 hash;
    hash.add_field('w', std::as_bytes(std::span(weights.bytes)));
    config_.add_to(hash);
    return hash.finish();
  }

  AdapterFiles::Pair read_pair(const Slot& slot) {
    const Target& target = *slot.place.target;
    std::string module = module_of(slot.place);
    if (!slot.down || !slot.up) {
      refuse(fmt::format("module \"{}\" has lora_{} but no lora_{}", module, slot.down ? 'A' : 'B',
                         slot.down ? 'B' : 'A'));
    }
    AdapterFiles::Pair pair{.linear = target.linear,
                            .first_column = target.first_column,
                            .rows = target.rows,
                            .columns = target.columns,
                            .rank = config_.rank(module),
                            .down = {},
                            .up = {}};
    if (pair.rank > std::max(target.rows, target.columns)) {
      refuse(fmt::format(
          "module \"{}\" has rank {}: the layer is {} x {}, and a rank over {} adds "
          "nothing",
          module, pair.rank, target.rows, target.columns, std::max(target.rows, target.columns)));
    }
    expect_shape(tensor(*slot.down), {pair.rank, target.columns});
    expect_shape(tensor(*slot.up), {target.rows, pair.rank});
    pair.down = read_down(*slot.down, int64_t{pair.rank} * target.columns);
    pair.up = read_up(*slot.up, int64_t{target.rows} * pair.rank, config_.scale(module));
    return pair;
  }

  void expect_shape(const FileTensor& tensor, const std::vector<int64_t>& shape) const {
    if (tensor.shape == shape) return;
    refuse(fmt::format(
        "tensor \"{}\" has shape [{}]: the base model and adapter_config.json want [{}]",
        tensor.name, fmt::join(tensor.shape, ", "), fmt::join(shape, ", ")));
  }

  std::vector<float> finite_floats(size_t index, int64_t size) const {
    std::vector<float> values = floats_of(tensor(index).dtype, bytes_[index], size);
    if (!all_finite(values)) {
      refuse(fmt::format("tensor \"{}\" has a value that is infinite or not a number",
                         tensor(index).name));
    }
    return values;
  }

  AdapterFiles::Matrix read_down(size_t index, int64_t size) {
    static_cast<void>(finite_floats(index, size));
    return {tensor(index).dtype, std::move(bytes_[index])};
  }

  // B with the adapter's scale, in 16 bits where the file has 16, speed is wanted and they suffice.
  AdapterFiles::Matrix read_up(size_t index, int64_t size, double scale) {
    std::vector<float> values = finite_floats(index, size);
    for (float& value : values) value *= static_cast<float>(scale);
    if (!all_finite(values)) {
      refuse(fmt::format("tensor \"{}\" times its scale {} is not finite: expected a lesser alpha",
                         tensor(index).name, scale));
    }
    auto fits_half = [](float value) { return std::abs(value) <= kLargestHalf; };
    bool is_half = precision_ == Precision::kFast && tensor(index).dtype == DType::kF16 &&
                   std::ranges::all_of(values, fits_half);
    bytes_[index].clear();
    if (!is_half) return {DType::kF32, bytes_of(std::as_bytes(std::span(values)))};
    std::vector<uint16_t> halves;
    for (float value : values) halves.push_back(f16_from_float(value));
    return {DType::kF16, bytes_of(std::as_bytes(std::span(halves)))};
  }

  const ModelConfig& base_;
  Precision precision_;
  std::vector<Target> targets_;
  AdapterConfig config_;
  SafetensorsFile file_;
  std::map<std::pair<int32_t, std::ptrdiff_t>, Slot> slots_;  // by layer and target
  std::vector<std::vector<std::byte>> bytes_;                 // of the file's tensors
};

AdapterFiles::AdapterFiles(const std::filesystem::path& folder,
                           const ModelConfig& base,
                           Precision precision)
    : precision_(precision), num_experts_(static_cast<size_t>(base.experts.count)) {
  AdapterReader(folder, base, precision).read(*this);
}

LoraLayer AdapterFiles::pack_layer(Ops& ops, int32_t layer) const {
  LoraLayer packed;
  // Parts of one linear layer lie in one LoraLinear.
  std::map<LoraLinear*, std::vector<MatrixPart>> downs;
  for (const Pair& pair : layers_[static_cast<size_t>(layer)]) {
    if (pair.linear.of_expert != nullptr) packed.experts.resize(num_experts_);
  }
  for (const Pair& pair : layers_[static_cast<size_t>(layer)]) {
    LoraLinear& out =
        pair.linear.of_expert != nullptr
            ? packed.experts[static_cast<size_t>(pair.linear.expert)].*pair.linear.of_expert
            : packed.*pair.linear.of_layer;
    const int32_t first_rank =
        out.parts.empty() ? 0 : out.parts.back().first_rank + out.parts.back().rank;
    downs[&out].push_back({pair.down.dtype, pair.rank, pair.columns, pair.down.bytes, {}});
    MatrixPart up{pair.up.dtype, pair.rows, pair.rank, pair.up.bytes, {}};
    out.parts.push_back(
        {ops.pack(std::span(&up, 1), precision_), first_rank, pair.rank, pair.first_column});
  }
  for (auto& [linear, parts] : downs) linear->down = ops.pack(parts, precision_);
  return packed;
}

uint64_t max_adapter_bytes(const ModelConfig& base) {
  uint64_t elements = 0;
  for (const Target& target : targets_of(base)) {
    bool is_alias = target.name.ends_with("qkv_proj") || target.name.ends_with("gate_up_proj") ||
                    target.name.starts_with("block_sparse_moe.");
    if (!is_alias)
      elements += static_cast<uint64_t>(target.rows) * static_cast<uint64_t>(target.columns);
  }
  return elements * static_cast<uint64_t>(base.num_layers) * sizeof(float) + kHeaderAllowance;
}

}  // namespace droidspeak
