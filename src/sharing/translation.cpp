#include "sharing/translation.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "formats/safetensors.h"

namespace droidspeak {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", path.string(), what));
}

std::vector<float> read_floats(const SafetensorsFile& file,
                               const std::string& name,
                               std::vector<int64_t> shape) {
  const FileTensor* tensor = file.find_tensor(name);
  if (tensor == nullptr) refuse(file.path(), fmt::format("tensor \"{}\" is missing", name));
  if (tensor->dtype != DType::kF32 || tensor->shape != shape)
    refuse(file.path(),
           fmt::format("tensor \"{}\" has another shape or dtype than the plan book's pair", name));
  std::vector<float> values(tensor->bytes.size() / sizeof(float));
  std::copy_n(tensor->bytes.data(), tensor->bytes.size(),
              std::as_writable_bytes(std::span(values)).data());
  if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); }))
    refuse(file.path(), fmt::format("tensor \"{}\" holds a value that is not finite", name));
  return values;
}

LinearMap read_map(const SafetensorsFile& file, const std::string& prefix, int64_t columns) {
  const FileTensor* down = file.find_tensor(prefix + ".down");
  if (down == nullptr || down->shape.size() != 2 || down->shape[0] < 1 || down->shape[0] > columns)
    refuse(file.path(),
           fmt::format("tensor \"{}.down\" is missing or has another shape than [rank, {}]", prefix,
                       columns));
  int64_t rank = down->shape[0];
  return {static_cast<int32_t>(rank), read_floats(file, prefix + ".down", {rank, columns}),
          read_floats(file, prefix + ".up", {columns, rank}),
          read_floats(file, prefix + ".bias", {columns})};
}

void append_map(std::vector<FileTensor>& tensors, const std::string& prefix, const LinearMap& map) {
  auto columns = static_cast<int64_t>(map.bias.size());
  tensors.push_back(
      {prefix + ".down", DType::kF32, {map.rank, columns}, std::as_bytes(std::span(map.down))});
  tensors.push_back(
      {prefix + ".up", DType::kF32, {columns, map.rank}, std::as_bytes(std::span(map.up))});
  tensors.push_back({prefix + ".bias", DType::kF32, {columns}, std::as_bytes(std::span(map.bias))});
}

}  // namespace

TranslationMaps load_translation(const std::filesystem::path& path,
                                 int32_t num_layers,
                                 int32_t kv_columns,
                                 int32_t d_model) {
  SafetensorsFile file(path);
  TranslationMaps maps;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    std::string kv = fmt::format("kv.{}", layer);
    std::string input = fmt::format("input.{}", layer);
    if (file.find_tensor(kv + ".down") != nullptr)
      maps.kv[layer] = read_map(file, kv, 2 * kv_columns);
    if (file.find_tensor(input + ".down") != nullptr)
      maps.inputs[layer] = read_map(file, input, d_model);
  }
  if (3 * (maps.kv.size() + maps.inputs.size()) != file.tensors().size()) {
    refuse(path, fmt::format("tensors that belong to none of the {} layers", num_layers));
  }
  return maps;
}

void save_translation(const std::filesystem::path& path, const TranslationMaps& maps) {
  std::vector<FileTensor> tensors;
  for (const auto& [layer, map] : maps.kv) append_map(tensors, fmt::format("kv.{}", layer), map);
  for (const auto& [layer, map] : maps.inputs)
    append_map(tensors, fmt::format("input.{}", layer), map);
  write_safetensors(path, tensors, {{"format", "droidspeak translation 1"}});
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
