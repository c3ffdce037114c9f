#include "model/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/safetensors.h"
#include "model/adapter_config.h"
#include "model/adapter_opener.h"
#include "model/digest_cache.h"
#include "model/expert_parameters.h"
#include "model/gguf_adapter.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

constexpr uint64_t kHeaderAllowance = uint64_t{1} << 20;
constexpr uint64_t kEntryBytes = 256;  // of a header; a tensor takes some 130
constexpr float kLargestHalf = 65504;

std::vector<float> floats_of(DType dtype, std::span<const std::byte> bytes, int64_t size) {
  std::vector<float> values(static_cast<size_t>(size));
  dequantize(dtype, bytes, values);
  return values;
}

bool all_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// Rows of a matrix; no order: they are in it.
void put_in_order(const std::vector<int32_t>& order, std::vector<float>& values) {
  if (order.empty()) return;
  const std::vector<float> stored = values;
  const size_t columns = values.size() / order.size();
  for (size_t row = 0; row < order.size(); ++row) {
    std::copy_n(stored.begin() + static_cast<std::ptrdiff_t>(columns) * order[row], columns,
                values.begin() + static_cast<std::ptrdiff_t>(columns * row));
  }
}

std::vector<std::byte> bytes_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::shared_ptr<const InputFile> check_size(std::shared_ptr<const InputFile> file, uint64_t limit) {
  if (file->size() > limit) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{} has {} bytes: an adapter of this base has at most {}",
                              file->path().string(), file->size(), limit));
  }
  return file;
}

// For lora_A and lora_B of every target, and for metadata.
uint64_t max_header_bytes(const ModelConfig& base, size_t num_targets) {
  return kEntryBytes * (num_targets * 2 * static_cast<uint64_t>(base.num_layers) + 256);
}

// What a PEFT folder or a GGUF file holds.
struct AdapterSource {
  std::filesystem::path path;  // of the file with the tensors
  AdapterConfig config;
  std::vector<AdapterTensor> tensors;  // in its order
};

// PEFT leaves out what its configuration does not name, and so answers as if it were not there.
void check_named(const SafetensorsFile& file,
                 const AdapterConfig& config,
                 const AdapterTensor& entry) {
  if (!entry.place) return;
  const std::string module = entry.place->module();
  const std::string why = config.why_no_module(module);
  if (why.empty()) return;
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: tensor \"{}\" {} of adapter_config.json, where PEFT leaves it out: "
                  "expected \"{}\" among the modules, or no such tensor",
                  file.path().string(), entry.tensor.name, why, module));
}

AdapterSource open_peft(const AdapterOpener& folder,
                        const ModelConfig& base,
                        const std::vector<AdapterTarget>& targets) {
  AdapterConfig config(*folder.open("adapter_config.json"), base);
  const SafetensorsFile file(
      check_size(folder.open("adapter_model.safetensors"), max_adapter_bytes(base)),
      max_header_bytes(base, targets.size()));
  for (const OtherTensor& other : file.others()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: tensor \"{}\" is {}: expected F32, F16 or BF16",
                              file.path().string(), other.name, other.dtype));
  }
  AdapterSource source{file.path(), std::move(config), {}};
  const ExpertParameters parameters(file, source.config, base, targets);
  for (const FileTensor& tensor : file.tensors()) {
    if (auto experts = parameters.split(tensor)) {
      std::ranges::move(*experts, std::back_inserter(source.tensors));
    } else {
      source.tensors.push_back({tensor, peft_place(tensor.name, targets)});
      parameters.check_module(source.tensors.back());
      check_named(file, source.config, source.tensors.back());
    }
  }
  return source;
}

AdapterSource open_gguf(std::shared_ptr<const InputFile> opened,
                        const ModelConfig& base,
                        const std::vector<AdapterTarget>& targets) {
  const GgufFile file(check_size(std::move(opened), max_adapter_bytes(base)),
                      max_header_bytes(base, targets.size()));
  const Architecture& architecture = check_gguf_adapter(file, base);
  return {file.path(), AdapterConfig(file, base.vocab_size),
          gguf_adapter_tensors(file, architecture, base, targets)};
}

AdapterSource open_adapter(const AdapterOpener& opener,
                           const ModelConfig& base,
                           const std::vector<AdapterTarget>& targets) {
  return opener.file() ? open_gguf(opener.file(), base, targets) : open_peft(opener, base, targets);
}

}  // namespace

// Reads the tensors of one folder or file into an AdapterFiles.
class AdapterReader {
 public:
  AdapterReader(const AdapterOpener& opener, const ModelConfig& base, Precision precision)
      : base_(base),
        precision_(precision),
        targets_(adapter_targets(base)),
        source_(open_adapter(opener, base, targets_)) {}

  void read(AdapterFiles& out) {
    place_tensors();
    check_overlaps();
    read_tensors();
    out.digest_ = digest();
    out.invocation_ = config().invocation();
    out.layers_.resize(static_cast<size_t>(base_.num_layers));
    for (const auto& [key, slot] : slots_)
      out.layers_[static_cast<size_t>(key.first)].push_back(read_pair(slot));
  }

 private:
  struct Slot {
    AdapterPlace place;
    std::optional<size_t> down;  // index of lora_A among the file's tensors
    std::optional<size_t> up;    // and of lora_B
  };

  [[noreturn]] void refuse(const std::string& what) const {
    throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", source_.path.string(), what));
  }

  const AdapterConfig& config() const { return source_.config; }

  const FileTensor& tensor(size_t index) const { return source_.tensors[index].tensor; }

  void place_tensors() {
    if (source_.tensors.empty()) refuse("it holds no tensors: expected lora_A and lora_B");
    uint64_t elements = 0;
    for (size_t i = 0; i < source_.tensors.size(); ++i) {
      place_tensor(i);
      uint64_t size = 1;
      for (int64_t length : tensor(i).shape) size *= static_cast<uint64_t>(length);
      elements += size;
    }
    // Block formats take less in the file than in memory.
    if (elements > max_adapter_bytes(base_) / sizeof(float)) {
      refuse(fmt::format("its tensors hold {} values: an adapter of this base has at most {}",
                         elements, max_adapter_bytes(base_) / sizeof(float)));
    }
  }

  void place_tensor(size_t index) {
    const std::string& name = tensor(index).name;
    const auto& place = source_.tensors[index].place;
    if (!place || place->layer >= base_.num_layers) {
      refuse(fmt::format("tensor \"{}\" fits no linear layer of the base model ({} layers of {})",
                         name, base_.num_layers, base_.architecture));
    }
    if (!config().has_layer(place->layer)) {
      refuse(fmt::format("tensor \"{}\" is for layer {}, which layers_to_transform leaves out",
                         name, place->layer));
    }
    Slot& slot = slots_[{place->layer, place->target - targets_.data()}];
    slot.place = *place;
    auto& side = place->side == AdapterPlace::Side::kDown ? slot.down : slot.up;
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
                             slot->second.place.module(), other->second.place.module()));
        }
      }
    }
  }

  // Each once, so that the digest is that of what is packed whatever happens to the file.
  void read_tensors() {
    for (const AdapterTensor& entry : source_.tensors) bytes_.push_back(entry.tensor.read());
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
    config().add_to(hash);
    return hash.finish();
  }

  AdapterFiles::Pair read_pair(const Slot& slot) {
    const AdapterTarget& target = *slot.place.target;
    const std::string module = slot.place.module();
    if (!slot.down || !slot.up) {
      refuse(fmt::format("module \"{}\" has lora_{} but no lora_{}", module, slot.down ? 'A' : 'B',
                         slot.down ? 'B' : 'A'));
    }
    AdapterFiles::Pair pair{.linear = target.linear,
                            .first_column = target.first_column,
                            .rows = target.rows,
                            .columns = target.columns,
                            .rank = rank_of(slot, module),
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
    pair.up =
        read_up(*slot.up, int64_t{target.rows} * pair.rank, config().scale(module, pair.rank));
    return pair;
  }

  // As adapter_config.json says it, or else as lora_A has it.
  int32_t rank_of(const Slot& slot, const std::string& module) const {
    if (const auto rank = config().rank(module)) return *rank;
    const FileTensor& down = tensor(*slot.down);
    const int64_t rank = down.shape.empty() ? 0 : down.shape[0];
    if (rank < 1 || rank > INT32_MAX)
      refuse(fmt::format("tensor \"{}\" has rank {}: expected at least 1", down.name, rank));
    return static_cast<int32_t>(rank);
  }

  void expect_shape(const FileTensor& tensor, const std::vector<int64_t>& shape) const {
    if (tensor.shape == shape) return;
    const std::string_view other = config().has_ranks() ? "adapter_config.json" : "its rank";
    refuse(fmt::format("tensor \"{}\" has shape [{}]: the base model and {} want [{}]", tensor.name,
                       fmt::join(tensor.shape, ", "), other, fmt::join(shape, ", ")));
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
    const std::vector<float> values = finite_floats(index, size);
    if (!is_block_format(tensor(index).dtype))
      return {tensor(index).dtype, std::move(bytes_[index])};
    return {DType::kF32, bytes_of(std::as_bytes(std::span(values)))};
  }

  // B with the adapter's scale, in 16 bits where the file has 16, speed is wanted and they suffice.
  AdapterFiles::Matrix read_up(size_t index, int64_t size, double scale) {
    std::vector<float> values = finite_floats(index, size);
    put_in_order(source_.tensors[index].row_order, values);
    for (float& value : values) value *= static_cast<float>(scale);
    if (!all_finite(values)) {
      refuse(fmt::format("tensor \"{}\" times its scale {} is not finite: expected a lesser alpha",
                         tensor(index).name, scale));
    }
    auto fits_half = [](float value) { return std::abs(value) <= kLargestHalf; };
    bool is_half = precision_ == Precision::kFast && tensor(index).dtype == DType::kF16 &&
                   std::ranges::all_of(values, fits_half);
    if (!is_half) return {DType::kF32, bytes_of(std::as_bytes(std::span(values)))};
    std::vector<uint16_t> halves;
    for (float value : values) halves.push_back(f16_from_float(value));
    return {DType::kF16, bytes_of(std::as_bytes(std::span(halves)))};
  }

  const ModelConfig& base_;
  Precision precision_;
  std::vector<AdapterTarget> targets_;
  AdapterSource source_;
  std::map<std::pair<int32_t, std::ptrdiff_t>, Slot> slots_;  // by layer and target
  std::vector<std::vector<std::byte>> bytes_;                 // of the file's tensors
};

AdapterFiles::AdapterFiles(const AdapterOpener& opener,
                           const ModelConfig& base,
                           Precision precision)
    : path_(opener.path()),
      precision_(precision),
      num_experts_(static_cast<size_t>(base.experts.count)) {
  AdapterReader(opener, base, precision).read(*this);
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

std::shared_ptr<const Adapter> AdapterFiles::pack(Ops& ops) const {
  auto adapter = std::make_shared<Adapter>(begin_adapter());
  for (int32_t layer = 0; layer < num_layers(); ++layer)
    adapter->layers.push_back(pack_layer(ops, layer));
  return adapter;
}

uint64_t max_adapter_bytes(const ModelConfig& base) {
  uint64_t elements = 0;
  for (const AdapterTarget& target : adapter_targets(base)) {
    if (!target.is_alias())
      elements += static_cast<uint64_t>(target.rows) * static_cast<uint64_t>(target.columns);
  }
  return elements * static_cast<uint64_t>(base.num_layers) * sizeof(float) + kHeaderAllowance;
}

}  // namespace droidspeak
