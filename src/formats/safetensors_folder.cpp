// A Hugging Face folder: model.safetensors, or the shards of model.safetensors.index.json.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_scan.h"
#include "formats/byte_reader.h"
#include "formats/safetensors.h"

namespace droidspeak {
namespace {

using nlohmann::json;

constexpr size_t kMaxIndexBytes = size_t{16} << 20;
constexpr int kMaxIndexDepth = 16;
constexpr size_t kMaxShardNameBytes = 255;

[[noreturn]] void fail(const std::filesystem::path& file, std::string_view message) {
  throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", file.string(), message));
}

// A shard is a file of the same folder: its name cannot lead elsewhere.
void check_shard_name(const std::string& shard, const std::filesystem::path& index) {
  bool is_plain = shard.size() <= kMaxShardNameBytes && shard.ends_with(".safetensors") &&
                  !shard.starts_with(".") && std::all_of(shard.begin(), shard.end(), [](char c) {
                    return c > ' ' && c < 0x7f && c != '/' && c != '\\';
                  });
  if (!is_plain) {
    fail(index,
         fmt::format("shard {}: a file name without folders that ends in .safetensors is needed",
                     in_quotes(shard)));
  }
}

// Tensor name -> shard file name.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index) {
  std::string text = read_file(index, kMaxIndexBytes);
  if (auto excess = find_json_excess(text, {.depth = kMaxIndexDepth}))
    fail(index, "JSON " + *excess);
  json content;
  try {
    content = json::parse(text);
  } catch (const json::exception&) {
    fail(index, "not valid JSON");
  }
  auto map = content.is_object() ? content.find("weight_map") : content.end();
  if (map == content.end() || !map->is_object()) {
    fail(index, "\"weight_map\": an object of tensor names and shard files is needed");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string())
      fail(index, fmt::format("tensor {}: shard is no string", in_quotes(name)));
    check_shard_name(shard.get_ref<const std::string&>(), index);
    shard_of.emplace(name, shard.get<std::string>());
  }
  return shard_of;
}

}  // namespace

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) : path_(folder) {
  std::error_code ignored;
  if (std::filesystem::exists(folder / "model.safetensors", ignored)) {
    files_.emplace_back(folder / "model.safetensors");
  } else if (std::filesystem::exists(folder / "model.safetensors.index.json", ignored)) {
    open_shards();
  } else {
    throw Failure(
        ErrorCode::kNotFound,
        fmt::format("{}: neither model.safetensors nor model.safetensors.index.json is there",
                    folder.string()));
  }
}

void SafetensorsFolder::open_shards() {
  std::filesystem::path index = path_ / "model.safetensors.index.json";
  std::map<std::string, std::string> shard_of = read_weight_map(index);
  if (shard_of.empty()) fail(index, "\"weight_map\" names no tensor");
  std::map<std::string, size_t> file_of;  // shard file name -> position in files_
  for (const auto& [name, shard] : shard_of) file_of.emplace(shard, 0);
  for (auto& [shard, position] : file_of) {
    if (std::error_code ignored; !std::filesystem::exists(path_ / shard, ignored)) {
      throw Failure(ErrorCode::kNotFound, fmt::format("{}: shard {} is missing from the folder",
                                                      index.string(), in_quotes(shard)));
    }
    position = files_.size();
    files_.emplace_back(path_ / shard);
  }
  for (const auto& [name, shard] : shard_of) {
    if (!files_[file_of[shard]].contains(name)) {
      fail(index, fmt::format("tensor {} is not in shard {}", in_quotes(name), in_quotes(shard)));
    }
  }
  std::set<std::string_view> names;
  auto add = [&](const std::string& name) {
    if (!names.insert(name).second)
      fail(index, fmt::format("tensor {} is in two shards", in_quotes(name)));
  };
  for (const SafetensorsFile& file : files_) {
    for (const FileTensor& tensor : file.tensors()) add(tensor.name);
    for (const OtherTensor& tensor : file.others()) add(tensor.name);
  }
}

const FileTensor* SafetensorsFolder::find_tensor(std::string_view name) const {
  for (const SafetensorsFile& file : files_) {
    if (const FileTensor* tensor = file.find_tensor(name)) return tensor;
  }
  return nullptr;
}

std::vector<const FileTensor*> SafetensorsFolder::tensors() const {
  std::vector<const FileTensor*> all;
  for (const SafetensorsFile& file : files_) {
    for (const FileTensor& tensor : file.tensors()) all.push_back(&tensor);
  }
  return all;
}

}  // namespace droidspeak
