#include "model/quantized/mxfp4_experts.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/byte_reader.h"

namespace droidspeak {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kCodeBytes = 16;  // of a block
constexpr int64_t kMostSize = 1 << 24;
constexpr int64_t kMostExperts = 1024;
constexpr uint8_t kNotANumber = 255;

[[noreturn]] void refuse(const std::filesystem::path& path,
                         const OtherTensor& tensor,
                         const std::string& expected) {
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: tensor {} is {} [{}]: expected U8 [{}]", path.string(),
                  in_quotes(tensor.name), tensor.dtype, fmt::join(tensor.shape, ", "), expected));
}

bool are_blocks(const OtherTensor& tensor) {
  const std::vector<int64_t>& shape = tensor.shape;
  return tensor.dtype == "U8" && shape.size() == 4 && shape[0] <= kMostExperts &&
         shape[3] == kCodeBytes &&
         std::ranges::all_of(shape, [](int64_t size) { return size >= 1 && size <= kMostSize; });
}

// One expert's part of both tensors.
struct Parts {
  TensorBytes codes;
  TensorBytes scales;
  std::string what;  // for messages
};

uint8_t code_of(const std::byte* codes, int64_t index) {
  const auto both = std::to_integer<unsigned>(codes[index / 2]);
  return static_cast<uint8_t>(index % 2 == 0 ? both & 15 : both >> 4);
}

// A block of GGUF has its second half in the upper bits.
void read_blocks(const Parts& parts, std::vector<std::byte>& out) {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  parts.codes.read(codes);
  parts.scales.read(scales);
  out.resize(scales.size() * (1 + kCodeBytes));
  std::byte* to = out.data();
  const std::byte* from = codes.data();
  for (std::byte scale : scales) {
    if (std::to_integer<uint8_t>(scale) == kNotANumber)
      throw Failure(ErrorCode::kDataCorrupt,
                    fmt::format("{}: a scale is not a number", parts.what));
    *to++ = scale;
    for (int64_t i = 0; i < kCodeBytes; ++i)
      *to++ = static_cast<std::byte>(code_of(from, i) | code_of(from, i + kBlock / 2) << 4);
    from += kCodeBytes;
  }
}

}  // namespace

std::vector<FileTensor> mxfp4_experts(const std::filesystem::path& path,
                                      const std::string& parameter,
                                      const OtherTensor& blocks,
                                      const OtherTensor& scales) {
  if (!are_blocks(blocks)) refuse(path, blocks, "experts, rows, columns / 32, 16");
  const std::vector<int64_t>& shape = blocks.shape;
  const std::vector<int64_t> grid(shape.begin(), shape.end() - 1);
  if (scales.dtype != "U8" || scales.shape != grid)
    refuse(path, scales, fmt::format("{}", fmt::join(grid, ", ")));
  const int64_t experts = shape[0];
  const auto codes_of_expert = blocks.bytes.size() / static_cast<uint64_t>(experts);
  const auto scales_of_expert = scales.bytes.size() / static_cast<uint64_t>(experts);
  std::vector<FileTensor> made;
  for (int64_t e = 0; e < experts; ++e) {
    const auto index = static_cast<uint64_t>(e);
    Parts parts{blocks.bytes.part(index * codes_of_expert, codes_of_expert),
                scales.bytes.part(index * scales_of_expert, scales_of_expert),
                fmt::format("{}: tensor {}", path.string(), in_quotes(scales.name))};
    made.push_back({fmt::format("{}[{}]", parameter, e),
                    DType::kMXFP4,
                    {shape[1], shape[2] * kBlock},
                    {scales_of_expert * (1 + kCodeBytes),
                     [parts](std::vector<std::byte>& out) { read_blocks(parts, out); }}});
  }
  return made;
}

}  // namespace droidspeak
