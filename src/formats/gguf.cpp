#include "formats/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "formats/gguf_tensor_type.h"

namespace droidspeak {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr uint32_t kMaxDimensions = 4;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxKeyBytes = 65535;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
// The least an entry can take: key length, one byte, type, one byte of value; name length, one
// byte, number of dimensions, one dimension, type, offset.
constexpr size_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr size_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

enum class ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};

uint64_t round_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// The entries of one file, in file order.
class GgufParser {
 public:
  GgufParser(std::shared_ptr<const InputFile> file, uint64_t max_header_bytes)
      : file_(std::move(file)), reader_(*file_, max_header_bytes) {}

  void read_header();
  std::pair<std::string, GgufValue> read_entry();
  void set_alignment(const GgufValue* value);
  FileTensor read_tensor();  // `bytes` is set by place_tensors
  void place_tensors(std::vector<FileTensor>& tensors);

  size_t num_keys() const { return num_keys_; }

  size_t num_tensors() const { return num_tensors_; }

  const ByteReader& reader() const { return reader_; }

 private:
  bool read_bool(const std::string& field);
  GgufValue read_scalar(ValueType type, const std::string& field);
  GgufValue read_array(const std::string& field);
  template <class Item, class Read>
  std::vector<Item> read_items(size_t item_bytes, const std::string& field, Read read);
  std::vector<int64_t> read_shape(const std::string& field);
  size_t checked_bytes(DType dtype, const std::vector<int64_t>& shape, const std::string& field);

  std::shared_ptr<const InputFile> file_;
  ByteReader reader_;
  size_t num_keys_ = 0;
  size_t num_tensors_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<uint64_t> offsets_;  // of each tensor, in the data section
  std::vector<size_t> tensor_bytes_;
};

void GgufParser::read_header() {
  std::span<const std::byte> magic = reader_.take(4, "magic");
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
    reader_.fail("not a GGUF file: it does not start with \"GGUF\"");
  }
  auto version = reader_.read<uint32_t>("version");
  if (version == 0x02000000u || version == 0x03000000u) {
    reader_.fail("big-endian GGUF file; only little-endian ones are read");
  }
  if (version != 2 && version != 3) {
    reader_.fail(fmt::format("GGUF version {}; versions 2 and 3 are read", version));
  }
  num_tensors_ = reader_.read_count(kMinTensorBytes, "tensor count");
  num_keys_ = reader_.read_count(kMinKeyBytes, "metadata count");
}

std::pair<std::string, GgufValue> GgufParser::read_entry() {
  std::string key = reader_.read_string("metadata key");
  if (key.empty() || key.size() > kMaxKeyBytes) {
    reader_.fail(fmt::format("metadata key {} has {} bytes; 1 to {} are allowed", in_quotes(key),
                             key.size(), kMaxKeyBytes));
  }
  std::string field = "metadata key " + in_quotes(key);
  auto type = static_cast<ValueType>(reader_.read<uint32_t>(field));
  GgufValue value = type == ValueType::kArray ? read_array(field) : read_scalar(type, field);
  return {std::move(key), std::move(value)};
}

bool GgufParser::read_bool(const std::string& field) {
  auto value = reader_.read<uint8_t>(field);
  if (value > 1) reader_.fail(fmt::format("{}: {} is no bool; 0 or 1 is", field, value));
  return value == 1;
}

GgufValue GgufParser::read_scalar(ValueType type, const std::string& field) {
  switch (type) {
    case ValueType::kUint8:
      return uint64_t{reader_.read<uint8_t>(field)};
    case ValueType::kInt8:
      return int64_t{reader_.read<int8_t>(field)};
    case ValueType::kUint16:
      return uint64_t{reader_.read<uint16_t>(field)};
    case ValueType::kInt16:
      return int64_t{reader_.read<int16_t>(field)};
    case ValueType::kUint32:
      return uint64_t{reader_.read<uint32_t>(field)};
    case ValueType::kInt32:
      return int64_t{reader_.read<int32_t>(field)};
    case ValueType::kFloat32:
      return double{reader_.read<float>(field)};
    case ValueType::kString:
      return reader_.read_string(field);
    case ValueType::kUint64:
      return reader_.read<uint64_t>(field);
    case ValueType::kInt64:
      return reader_.read<int64_t>(field);
    case ValueType::kFloat64:
      return reader_.read<double>(field);
    case ValueType::kBool:
      return read_bool(field);
    case ValueType::kArray:
      break;
  }
  reader_.fail(fmt::format("{}: value type {} is unknown; 0 to 12 are read", field,
                           static_cast<uint32_t>(type)));
}

template <class Item, class Read>
std::vector<Item> GgufParser::read_items(size_t item_bytes, const std::string& field, Read read) {
  std::vector<Item> items(reader_.read_count(item_bytes, field));
  for (Item& item : items) item = read();
  return items;
}

GgufValue GgufParser::read_array(const std::string& field) {
  auto type = static_cast<ValueType>(reader_.read<uint32_t>(field));
  auto ints = [&]<class T>(T) {
    return read_items<int64_t>(sizeof(T), field, [&] {
      T value = reader_.read<T>(field);
      if (std::cmp_greater(value, kMaxInt)) {
        reader_.fail(fmt::format("{}: {} is too large; at most {} is read", field, value, kMaxInt));
      }
      return static_cast<int64_t>(value);
    });
  };
  auto doubles = [&]<class T>(T) {
    return read_items<double>(sizeof(T), field, [&] { return double{reader_.read<T>(field)}; });
  };
  switch (type) {
    case ValueType::kUint8:
      return ints(uint8_t{});
    case ValueType::kInt8:
      return ints(int8_t{});
    case ValueType::kUint16:
      return ints(uint16_t{});
    case ValueType::kInt16:
      return ints(int16_t{});
    case ValueType::kUint32:
      return ints(uint32_t{});
    case ValueType::kInt32:
      return ints(int32_t{});
    case ValueType::kUint64:
      return ints(uint64_t{});
    case ValueType::kInt64:
      return ints(int64_t{});
    case ValueType::kBool:
      return read_items<int64_t>(1, field, [&] { return int64_t{read_bool(field)}; });
    case ValueType::kFloat32:
      return doubles(float{});
    case ValueType::kFloat64:
      return doubles(double{});
    case ValueType::kString:
      return read_items<std::string>(8, field, [&] { return reader_.read_string(field); });
    case ValueType::kArray:
      reader_.fail(field + ": an array of arrays is not supported");
  }
  reader_.fail(fmt::format("{}: array item type {} is unknown; 0 to 12 are read", field,
                           static_cast<uint32_t>(type)));
}

void GgufParser::set_alignment(const GgufValue* value) {
  if (value == nullptr) return;
  const auto* alignment = std::get_if<uint64_t>(value);
  if (alignment == nullptr) reader_.fail("metadata key 'general.alignment' is no unsigned integer");
  if (!std::has_single_bit(*alignment) || *alignment < 8 || *alignment > kMaxAlignment) {
    reader_.fail(
        fmt::format("metadata key 'general.alignment': {}; a power of two from 8 to {} is "
                    "needed",
                    *alignment, kMaxAlignment));
  }
  alignment_ = *alignment;
}

FileTensor GgufParser::read_tensor() {
  std::string name = reader_.read_string("tensor name");
  if (name.empty() || name.size() > kMaxNameBytes) {
    reader_.fail(fmt::format("tensor name {} has {} bytes; 1 to {} are allowed", in_quotes(name),
                             name.size(), kMaxNameBytes));
  }
  std::string field = "tensor " + in_quotes(name);
  std::vector<int64_t> shape = read_shape(field);
  auto number = reader_.read<uint32_t>(field);
  GgufTensorType type = gguf_tensor_type(number);
  if (!type.dtype) {
    reader_.fail(fmt::format("{}: type {} (number {}) is not supported; {} are", field, type.name,
                             number, supported_gguf_types()));
  }
  tensor_bytes_.push_back(checked_bytes(*type.dtype, shape, field));
  offsets_.push_back(reader_.read<uint64_t>(field));
  return {std::move(name), *type.dtype, std::move(shape), {}};
}

std::vector<int64_t> GgufParser::read_shape(const std::string& field) {
  auto num_dimensions = reader_.read<uint32_t>(field);
  if (num_dimensions < 1 || num_dimensions > kMaxDimensions) {
    reader_.fail(fmt::format("{}: {} dimensions; 1 to {} are allowed", field, num_dimensions,
                             kMaxDimensions));
  }
  std::vector<int64_t> shape(num_dimensions);
  int64_t elements = 1;
  for (size_t i = num_dimensions; i-- > 0;) {  // the file has the innermost first
    auto size = reader_.read<uint64_t>(field);
    if (size == 0) reader_.fail(field + ": a dimension of 0; at least 1 is needed");
    if (size > static_cast<uint64_t>(kMaxInt / elements)) {
      reader_.fail(fmt::format("{}: dimension {} makes more elements than 2^63 - 1", field, size));
    }
    shape[i] = static_cast<int64_t>(size);
    elements *= shape[i];
  }
  return shape;
}

size_t GgufParser::checked_bytes(DType dtype,
                                 const std::vector<int64_t>& shape,
                                 const std::string& field) {
  const DTypeTraits& type = traits(dtype);
  if (shape.back() % type.block_elements != 0) {
    reader_.fail(fmt::format("{}: rows of {} elements are no multiple of the {} block size {}",
                             field, shape.back(), type.name, type.block_elements));
  }
  int64_t blocks = 1;
  for (int64_t size : shape) blocks *= size;
  blocks /= type.block_elements;
  if (blocks > static_cast<int64_t>(file_->size()) / type.block_bytes) {
    reader_.fail(fmt::format("{}: shape [{}] needs more bytes than the file has ({})", field,
                             fmt::join(shape, ", "), file_->size()));
  }
  return static_cast<size_t>(blocks * type.block_bytes);
}

void GgufParser::place_tensors(std::vector<FileTensor>& tensors) {
  uint64_t begin = round_up(reader_.position(), alignment_);
  uint64_t available = file_->size() - std::min(begin, file_->size());
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    order[i] = i;
    std::string field = "tensor " + in_quotes(tensors[i].name);
    if (offsets_[i] % alignment_ != 0) {
      reader_.fail(fmt::format("{}: offset {} is no multiple of the alignment {}", field,
                               offsets_[i], alignment_));
    }
    if (offsets_[i] > available || tensor_bytes_[i] > available - offsets_[i]) {
      reader_.fail(
          fmt::format("{}: {} bytes at offset {} reach past the end of the file ({} bytes of "
                      "tensors); the file is truncated or damaged",
                      field, tensor_bytes_[i], offsets_[i], available));
    }
    tensors[i].bytes = {file_, begin + offsets_[i], tensor_bytes_[i]};
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return offsets_[a] < offsets_[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (offsets_[order[i]] < offsets_[order[i - 1]] + tensor_bytes_[order[i - 1]]) {
      reader_.fail(fmt::format("tensor {}: offset {} lies inside tensor {}",
                               in_quotes(tensors[order[i]].name), offsets_[order[i]],
                               in_quotes(tensors[order[i - 1]].name)));
    }
  }
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path)
    : GgufFile(std::make_shared<InputFile>(path)) {
  join_parts();
}

GgufFile::GgufFile(std::shared_ptr<const InputFile> file, uint64_t max_header_bytes)
    : files_{std::move(file)} {
  parse(max_header_bytes);
  if (int64_t count = get_int_or("split.count", 0); count > 1) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: it is split into {} parts: expected one file",
                              this->path().string(), count));
  }
}

GgufFile::GgufFile(std::shared_ptr<const InputFile> file) : files_{std::move(file)} {
  parse(ByteReader::kMaxHeaderBytes);
}

std::vector<const InputFile*> GgufFile::files() const {
  std::vector<const InputFile*> files;
  for (const auto& file : files_) files.push_back(file.get());
  return files;
}

void GgufFile::parse(uint64_t max_header_bytes) {
  GgufParser parser(files_.front(), max_header_bytes);
  parser.read_header();
  metadata_.reserve(parser.num_keys());
  for (size_t i = 0; i < parser.num_keys(); ++i) {
    auto [key, value] = parser.read_entry();
    auto [position, is_new] = metadata_.try_emplace(std::move(key), std::move(value));
    if (!is_new) {
      parser.reader().fail(
          fmt::format("metadata key {} appears twice", in_quotes(position->first)));
    }
  }
  parser.set_alignment(find("general.alignment"));
  tensors_.reserve(parser.num_tensors());
  for (size_t i = 0; i < parser.num_tensors(); ++i) {
    tensors_.push_back(parser.read_tensor());
    if (!tensor_index_.emplace(tensors_[i].name, i).second) {
      parser.reader().fail(fmt::format("tensor {} appears twice", in_quotes(tensors_[i].name)));
    }
  }
  parser.place_tensors(tensors_);
}

}  // namespace droidspeak
