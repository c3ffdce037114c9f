#include "support/gguf_writer.h"

#include <type_traits>

#include "base/check.h"
#include "base/file.h"

namespace droidspeak {
namespace {

// Numbers of the format, by alternative of GgufValue; arrays are written as arrays of these.
enum : uint32_t {
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12
};

class Content {
 public:
  template <class T>
  requires std::is_arithmetic_v<T>

  void add(T value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }

  void add(const std::string& text) {
    add(uint64_t{text.size()});
    bytes += text;
  }

  void add_value(const GgufValue& value) {
    std::visit([&](const auto& item) { add_item(item); }, value);
  }

  void pad() { bytes.resize((bytes.size() + 31) / 32 * 32); }

  std::string bytes;

 private:
  template <class T>
  static uint32_t type_of() {
    if constexpr (std::is_same_v<T, bool>) return kBool;
    if constexpr (std::is_same_v<T, uint64_t>) return kUint64;
    if constexpr (std::is_same_v<T, int64_t>) return kInt64;
    if constexpr (std::is_same_v<T, double>) return kFloat64;
    return kString;
  }

  template <class T>
  void add_item(const T& item) {
    add(type_of<T>());
    add(item);
  }

  template <class T>
  void add_item(const std::vector<T>& items) {
    add(uint32_t{kArray});
    add(type_of<T>());
    add(uint64_t{items.size()});
    for (const T& item : items) add(item);
  }
};

uint32_t number_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kQ4_0:
      return 2;
    case DType::kQ8_0:
      return 8;
    default:
      panic("tests write f32, f16, q4_0 and q8_0");
  }
}

}  // namespace

void write_gguf(const std::filesystem::path& path,
                const GgufEntries& entries,
                const std::vector<FileTensor>& tensors) {
  Content content;
  content.bytes = "GGUF";
  content.add(uint32_t{3});
  content.add(uint64_t{tensors.size()});
  content.add(uint64_t{entries.size()});
  for (const auto& [key, value] : entries) {
    content.add(key);
    content.add_value(value);
  }
  Content data;
  for (const FileTensor& tensor : tensors) {
    data.pad();
    content.add(tensor.name);
    content.add(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;)
      content.add(static_cast<uint64_t>(tensor.shape[i]));
    content.add(number_of(tensor.dtype));
    content.add(uint64_t{data.bytes.size()});
    std::vector<std::byte> bytes = tensor.read();
    data.bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  content.pad();
  write_file_atomically(path, content.bytes + data.bytes);
}

}  // namespace droidspeak
