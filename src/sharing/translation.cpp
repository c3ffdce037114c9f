#include "sharing/translation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/file.h"
#include "formats/safetensors.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", path.string(), what));
}

const FileTensor& find_floats(const SafetensorsFile& file,
                              const std::string& name,
                              const std::vector<int64_t>& shape) {
  const FileTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) refuse(file.path(), fmt::format("tensor \"{}\" is missing", name));
  bool is_float = tensor->dtype == DType::kF32 || tensor->dtype == DType::kF16;
  if (!is_float || tensor->shape != shape)
    refuse(file.path(),
           fmt::format("tensor \"{}\" has another shape or dtype than the plan book's pair", name));
  return *tensor;
}

std::vector<float> read_floats(const SafetensorsFile& file, const FileTensor& tensor) {
  std::vector<float> values = tensor.read_floats();
  if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); }))
    refuse(file.path(), fmt::format("tensor \"{}\" holds a value that is not finite", tensor.name));
  return values;
}

// One map as it lies in the file.
struct StoredMap {
  bool is_kv = false;
  int32_t layer = 0;
  int64_t rank = 0;
  const FileTensor* down = nullptr;  // [rank, columns]
  const FileTensor* up = nullptr;    // [columns, rank]
  const FileTensor* bias = nullptr;  // [columns]
};

StoredMap find_map(const SafetensorsFile& file, const std::string& prefix, int64_t columns) {
  const FileTensor* down = file.find_tensor(prefix + ".down");
  if (down == nullptr || down->shape.size() != 2 || down->shape[0] < 1 || down->shape[0] > columns)
    refuse(file.path(),
           fmt::format("tensor \"{}.down\" is missing or has another shape than [rank, {}]", prefix,
                       columns));
  int64_t rank = down->shape[0];
  return {.rank = rank,
          .down = &find_floats(file, prefix + ".down", {rank, columns}),
          .up = &find_floats(file, prefix + ".up", {columns, rank}),
          .bias = &find_floats(file, prefix + ".bias", {columns})};
}

std::vector<StoredMap> find_maps(const SafetensorsFile& file,
                                 int32_t num_layers,
                                 int32_t kv_columns,
                                 int32_t d_model) {
  std::vector<StoredMap> maps;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (bool is_kv : {true, false}) {
      std::string prefix = fmt::format("{}.{}", is_kv ? "kv" : "input", layer);
      if (file.find_tensor(prefix + ".down") == nullptr) continue;
      StoredMap& map = maps.emplace_back(find_map(file, prefix, is_kv ? 2 * kv_columns : d_model));
      map.is_kv = is_kv;
      map.layer = layer;
    }
  }
  if (3 * maps.size() != file.tensors().size()) {
    refuse(file.path(), fmt::format("tensors that belong to none of the {} layers", num_layers));
  }
  return maps;
}

// Tensors of a file and the halves they are written as.
class MapFile {
 public:
  void add(const std::string& prefix, const LinearMap& map) {
    auto columns = static_cast<int64_t>(map.bias.size());
    add_factor(prefix + ".down", {map.rank, columns}, map.down);
    add_factor(prefix + ".up", {columns, map.rank}, map.up);
    tensors_.push_back(
        {prefix + ".bias", DType::kF32, {columns}, std::as_bytes(std::span(map.bias))});
  }

  const std::vector<FileTensor>& tensors() const { return tensors_; }

 private:
  // Halves are precise enough by far for a fitted map, unless a value does not fit.
  void add_factor(const std::string& name,
                  const std::vector<int64_t>& shape,
                  const std::vector<float>& values) {
    constexpr float kLargestHalf = 65504;
    if (std::ranges::any_of(values, [](float v) { return std::abs(v) > kLargestHalf; })) {
      tensors_.push_back({name, DType::kF32, shape, std::as_bytes(std::span(values))});
      return;
    }
    std::vector<uint16_t>& halves = halves_.emplace_back();
    std::ranges::transform(values, std::back_inserter(halves), f16_from_float);
    tensors_.push_back({name, DType::kF16, shape, std::as_bytes(std::span(halves))});
  }

  std::vector<FileTensor> tensors_;
  std::deque<std::vector<uint16_t>> halves_;
};

}  // namespace

TranslationMaps load_translation(const std::filesystem::path& path,
                                 int32_t num_layers,
                                 int32_t kv_columns,
                                 int32_t d_model) {
  SafetensorsFile file(path);
  TranslationMaps maps;
  for (const StoredMap& map : find_maps(file, num_layers, kv_columns, d_model)) {
    (map.is_kv ? maps.kv : maps.inputs)[map.layer] = {
        static_cast<int32_t>(map.rank), read_floats(file, *map.down), read_floats(file, *map.up),
        read_floats(file, *map.bias)};
  }
  return maps;
}

void check_translation(const std::filesystem::path& path,
                       int32_t num_layers,
                       int32_t kv_columns,
                       int32_t d_model) {
  (void)find_maps(SafetensorsFile(path), num_layers, kv_columns, d_model);
}

Digest digest_of_maps(const std::filesystem::path& path) {
  return digest_of_maps(std::make_shared<InputFile>(path));
}

Digest digest_of_maps(const std::shared_ptr<const InputFile>& file) {
  Sha256 hash;
  TensorBytes(file, 0, file->size()).for_each_piece([&](auto piece) { hash.add(piece); });
  return hash.finish();
}

void save_translation(const std::filesystem::path& path, const TranslationMaps& maps) {
  MapFile file;
  for (const auto& [layer, map] : maps.kv) file.add(fmt::format("kv.{}", layer), map);
  for (const auto& [layer, map] : maps.inputs) file.add(fmt::format("input.{}", layer), map);
  write_safetensors(path, file.tensors(), {{"format", "droidspeak translation 1"}});
}

struct Translator::Packed {
  std::unique_ptr<WeightMatrix> down;
  std::unique_ptr<WeightMatrix> up;
  Tensor bias;
  LowRankMap view;
};

Translator::Translator(Ops& ops, const TranslationMaps& maps) {
  for (const auto& [layer, map] : maps.kv) kv_[layer] = pack(ops, map);
  for (const auto& [layer, map] : maps.inputs) inputs_[layer] = pack(ops, map);
}

Translator::~Translator() = default;

std::unique_ptr<Translator::Packed> Translator::pack(Ops& ops, const LinearMap& map) {
  auto packed = std::make_unique<Packed>();
  auto columns = static_cast<int64_t>(map.bias.size());
  MatrixPart down{DType::kF32, map.rank, columns, std::as_bytes(std::span(map.down)), {}};
  MatrixPart up{DType::kF32, columns, map.rank, std::as_bytes(std::span(map.up)), {}};
  packed->down = ops.pack(std::span(&down, 1), Precision::kExact);
  packed->up = ops.pack(std::span(&up, 1), Precision::kExact);
  packed->bias = Tensor(ops.device(), DType::kF32, 1, columns);
  ops.device().to_device(packed->bias.view().data, map.bias.data(),
                         map.bias.size() * sizeof(float));
  ops.device().synchronize();
  packed->view = {packed->down.get(), packed->up.get(), packed->bias.view().f32()};
  return packed;
}

const LowRankMap* Translator::kv(int32_t layer) const {
  auto found = kv_.find(layer);
  return found == kv_.end() ? nullptr : &found->second->view;
}

const LowRankMap* Translator::input(int32_t layer) const {
  auto found = inputs_.find(layer);
  return found == inputs_.end() ? nullptr : &found->second->view;
}

}  // namespace droidspeak
