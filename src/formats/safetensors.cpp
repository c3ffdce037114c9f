// One safetensors file: 64-bit header length, JSON header, tensor bytes without holes.
#include "formats/safetensors.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/error.h"
#include "base/json_scan.h"
#include "formats/byte_reader.h"

namespace droidspeak {
namespace {

using nlohmann::json;

constexpr int kMaxHeaderDepth = 3;  // header object, tensor object, shape array
constexpr std::string_view kMetadataKey = "__metadata__";

struct FileDType {
  std::string_view name;
  uint64_t element_bits;
  std::optional<DType> dtype;  // none: known, but not one we read
};

constexpr FileDType kFileDTypes[] = {
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"F64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
    {"C64", 64, {}},
    {"I32", 32, {}},
    {"U32", 32, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"I8", 8, {}},
    {"U8", 8, {}},
    {"BOOL", 8, {}},
    {"F8_E4M3", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F4", 4, {}},
};

const FileDType* find_dtype(std::string_view name) {
  for (const FileDType& entry : kFileDTypes) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// One entry of the header.
struct TensorEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the data section
  uint64_t end = 0;
};

// Parses the header; names that repeat and deep nesting are refused before.
json parse_header(std::string_view text, const ByteReader& reader) {
  if (auto excess = find_json_excess(text, {.depth = kMaxHeaderDepth}))
    reader.fail("header: JSON " + *excess);
  std::set<std::string> names;
  for_each_json_key(text, [&](int depth, const std::string& name) {
    if (depth == 1 && !names.insert(name).second)
      reader.fail(fmt::format("header: tensor {} appears twice", in_quotes(name)));
  });
  try {
    json header = json::parse(text);
    if (!header.is_object()) reader.fail("header: a JSON object is needed");
    return header;
  } catch (const json::exception&) {
    reader.fail("header is not valid JSON; the file is damaged or no safetensors file");
  }
}

uint64_t unsigned_of(const json& value, const std::string& field, const ByteReader& reader) {
  if (!value.is_number_unsigned()) {
    reader.fail(field + ": integers from 0 to 2^63 - 1 are needed");
  }
  auto number = value.get<uint64_t>();
  if (!std::in_range<int64_t>(number)) {
    reader.fail(fmt::format("{}: {} is too large; at most 2^63 - 1 is allowed", field, number));
  }
  return number;
}

const json& member(const json& object,
                   const char* key,
                   const std::string& field,
                   const ByteReader& reader) {
  auto found = object.find(key);
  if (found == object.end()) reader.fail(fmt::format("{}: \"{}\" is missing", field, key));
  return *found;
}

TensorEntry read_entry(const std::string& name, const json& value, const ByteReader& reader) {
  std::string field = "tensor " + in_quotes(name);
  if (!value.is_object()) reader.fail(field + ": a JSON object is needed");
  const json& dtype = member(value, "dtype", field, reader);
  if (!dtype.is_string()) reader.fail(field + ": \"dtype\" is no string");
  const json& shape = member(value, "shape", field, reader);
  if (!shape.is_array()) reader.fail(field + ": \"shape\" is no array");
  const json& offsets = member(value, "data_offsets", field, reader);
  if (!offsets.is_array() || offsets.size() != 2) {
    reader.fail(field + ": \"data_offsets\" is no array of two integers");
  }
  TensorEntry entry{.name = name, .dtype = dtype.get<std::string>(), .shape = {}};
  for (const json& size : shape) {
    entry.shape.push_back(static_cast<int64_t>(unsigned_of(size, field + ": \"shape\"", reader)));
  }
  entry.begin = unsigned_of(offsets[0], field + ": \"data_offsets\"", reader);
  entry.end = unsigned_of(offsets[1], field + ": \"data_offsets\"", reader);
  return entry;
}

// The bytes that dtype and shape ask for; nothing when that overflows.
std::optional<uint64_t> bytes_needed(const TensorEntry& entry, uint64_t element_bits) {
  uint64_t bits = element_bits;
  for (int64_t size : entry.shape) {
    if (size != 0 && bits > std::numeric_limits<uint64_t>::max() / static_cast<uint64_t>(size)) {
      return std::nullopt;
    }
    bits *= static_cast<uint64_t>(size);
  }
  return (bits + 7) / 8;
}

// Offsets follow each other without holes and end with the file; sizes agree with shapes.
void check_layout(const std::vector<TensorEntry>& entries,
                  uint64_t data_bytes,
                  const ByteReader& reader) {
  uint64_t expected = 0;
  for (const TensorEntry& entry : entries) {
    std::string field = "tensor " + in_quotes(entry.name);
    if (entry.begin > entry.end || entry.end > data_bytes) {
      reader.fail(
          fmt::format("{}: data_offsets [{}, {}] lie outside the file's {} bytes of tensors; "
                      "the file is truncated or damaged",
                      field, entry.begin, entry.end, data_bytes));
    }
    if (entry.begin != expected) {
      reader.fail(
          fmt::format("{}: data_offsets start at {} where {} is expected; tensors lie one "
                      "after the other",
                      field, entry.begin, expected));
    }
    const FileDType* dtype = find_dtype(entry.dtype);
    if (dtype != nullptr && bytes_needed(entry, dtype->element_bits) != entry.end - entry.begin) {
      reader.fail(fmt::format("{}: data_offsets span {} bytes, which is not the size of {} [{}]",
                              field, entry.end - entry.begin, entry.dtype,
                              fmt::join(entry.shape, ", ")));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    reader.fail(fmt::format("{} bytes of tensors where the header has {}", data_bytes, expected));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path, uint64_t max_header_bytes)
    : SafetensorsFile(std::make_shared<InputFile>(path), max_header_bytes) {}

SafetensorsFile::SafetensorsFile(std::shared_ptr<const InputFile> file, uint64_t max_header_bytes)
    : file_(std::move(file)) {
  parse(max_header_bytes);
}

void SafetensorsFile::parse(uint64_t max_header_bytes) {
  ByteReader reader(*file_);
  auto header_bytes = reader.read<uint64_t>("header length");
  if (header_bytes > max_header_bytes) {
    reader.fail(fmt::format("header length {}; at most {} is allowed (is it a safetensors file?)",
                            header_bytes, max_header_bytes));
  }
  std::span<const std::byte> text = reader.take(header_bytes, "header");
  json header = parse_header({reinterpret_cast<const char*>(text.data()), text.size()}, reader);
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadataKey) {
      entries.push_back(read_entry(name, value, reader));
      continue;
    }
    if (!value.is_object()) reader.fail("\"__metadata__\": a JSON object is needed");
    for (const auto& [key, item] : value.items()) {
      if (!item.is_string()) {
        reader.fail(fmt::format("\"__metadata__\": {} is no string", in_quotes(key)));
      }
      metadata_.emplace(key, item.get<std::string>());
    }
  }
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  const uint64_t data_begin = reader.position();
  check_layout(entries, file_->size() - data_begin, reader);
  for (TensorEntry& entry : entries) {
    const FileDType* dtype = find_dtype(entry.dtype);
    const TensorBytes bytes(file_, data_begin + entry.begin, entry.end - entry.begin);
    if (dtype == nullptr || !dtype->dtype) {
      other_index_.emplace(entry.name, others_.size());
      others_.push_back(
          {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), bytes});
      continue;
    }
    index_.emplace(entry.name, tensors_.size());
    tensors_.push_back({std::move(entry.name), *dtype->dtype, std::move(entry.shape), bytes});
  }
}

const FileTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  if (auto found = index_.find(std::string(name)); found != index_.end()) {
    return &tensors_[found->second];
  }
  if (auto found = other_index_.find(std::string(name)); found != other_index_.end()) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: tensor {}: dtype {} is not supported; F32, F16 and BF16 are",
                    path().string(), in_quotes(name), in_quotes(others_[found->second].dtype)));
  }
  return nullptr;
}

bool SafetensorsFile::contains(std::string_view name) const {
  return index_.contains(std::string(name)) || other_index_.contains(std::string(name));
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<FileTensor>& tensors,
                       const std::unordered_map<std::string, std::string>& metadata) {
  std::string header = "{";
  uint64_t offset = 0;
  std::unordered_set<std::string_view> names;
  auto add = [&](std::string_view name, const json& value) {
    header += header.size() > 1 ? "," : "";
    try {
      header += json(name).dump() + ":" + value.dump();
    } catch (const json::exception&) {
      throw Failure(ErrorCode::kInvalidArgument,
                    fmt::format("{}: {} or its value is not UTF-8 and cannot be written",
                                path.string(), in_quotes(name)));
    }
  };
  if (!metadata.empty()) add(kMetadataKey, json(metadata));
  for (const FileTensor& tensor : tensors) {
    check(names.insert(tensor.name).second && tensor.name != kMetadataKey,
          "tensor names are unique");
    const auto* dtype = std::find_if(std::begin(kFileDTypes), std::end(kFileDTypes),
                                     [&](const FileDType& d) { return d.dtype == tensor.dtype; });
    check(dtype != std::end(kFileDTypes), "dtype can be written");
    uint64_t end = offset + tensor.bytes.size();
    add(tensor.name,
        {{"dtype", dtype->name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  uint64_t header_bytes = header.size();
  std::string content(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  content.reserve(sizeof header_bytes + header.size() + offset);
  content += header;
  for (const FileTensor& tensor : tensors) {
    tensor.bytes.for_each_piece([&](std::span<const std::byte> piece) {
      content.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
  }
  write_file_atomically(path, content);
}

}  // namespace droidspeak
