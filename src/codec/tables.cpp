#include "codec/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "codec/append.h"

namespace droidspeak {
namespace {

constexpr std::array<char, 8> kMagic = {'D', 'S', 'T', 'A', 'B', 'L', 'E', '\n'};
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxChannels = 1 << 16;

struct TablesHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t num_layers;
  uint32_t num_kv_heads;
  uint32_t head_dim;
  uint32_t num_frequencies;
  uint32_t num_unturned;  // layers
};

static_assert(sizeof(TablesHeader) == 32);

Error bad_tables(std::string message) {
  return {ErrorCode::kDataCorrupt, "codec tables: " + std::move(message)};
}

// Reads one array after another; the sizes were checked before.
class ArrayReader {
 public:
  explicit ArrayReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <class T>
  void read(std::span<T> values) {
    check(values.size_bytes() <= bytes_.size(), "the file has the size its header says");
    if (values.empty()) return;
    std::memcpy(values.data(), bytes_.data(), values.size_bytes());
    bytes_ = bytes_.subspan(values.size_bytes());
  }

 private:
  std::span<const std::byte> bytes_;
};

Result<TablesHeader> parse_header(std::span<const std::byte> bytes) {
  TablesHeader header{};
  if (bytes.size() < sizeof header)
    return bad_tables(fmt::format("{} bytes, a header has {}", bytes.size(), sizeof header));
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) return bad_tables("do not start as tables do");
  if (header.version != kTablesVersion)
    return bad_tables(
        fmt::format("version {}, this program reads {}", header.version, kTablesVersion));
  bool is_in_range = header.num_layers - 1 < kMaxLayers && header.num_kv_heads - 1 < kMaxChannels &&
                     header.head_dim - 1 < kMaxChannels &&
                     uint64_t{header.num_kv_heads} * header.head_dim <= kMaxChannels &&
                     header.num_frequencies <= header.head_dim / 2 &&
                     header.num_unturned <= header.num_layers;
  if (!is_in_range) {
    return bad_tables(fmt::format(
        "{} layers, {} heads of {} channels, {} frequencies, {} layers without are out of range",
        header.num_layers, header.num_kv_heads, header.head_dim, header.num_frequencies,
        header.num_unturned));
  }
  return header;
}

uint64_t bytes_of_tables(const TablesHeader& header) {
  size_t channels = padded_channels(static_cast<int32_t>(header.num_kv_heads),
                                    static_cast<int32_t>(header.head_dim));
  return sizeof header + header.num_frequencies * sizeof(float) +
         header.num_unturned * sizeof(int32_t) + kNumDistributions * sizeof(Distribution) +
         uint64_t{2} * header.num_layers * (channels * (2 * sizeof(float) + 1) + sizeof(float));
}

bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

bool all_in_range(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float v) { return std::abs(v) <= kLargestTableValue; });  // no NaN
}

bool all_positive(std::span<const float> values) {
  return all_in_range(values) &&
         std::all_of(values.begin(), values.end(), [](float v) { return v > 0; });
}

bool are_layers(std::span<const int32_t> layers, size_t num_layers) {
  int32_t least = 0;
  for (int32_t layer : layers) {
    if (layer < least || static_cast<size_t>(layer) >= num_layers) return false;
    least = layer + 1;
  }
  return true;
}

Result<void> check_contents(const TableContents& contents) {
  if (!all_finite(contents.rotation.frequencies)) return bad_tables("a frequency is not finite");
  if (!are_layers(contents.rotation.unturned_layers, contents.halves.size() / 2))
    return bad_tables("layers that are not turned do not ascend, or are none");
  for (size_t i = 0; i < contents.distributions.size(); ++i) {
    const Distribution& distribution = contents.distributions[i];
    bool is_right =
        i == kZeros ? distribution == Distribution::of_zeros() : distribution.is_valid();
    if (!is_right) return bad_tables(fmt::format("frequencies of distribution {} are wrong", i));
  }
  auto channels =
      static_cast<size_t>(contents.num_kv_heads) * static_cast<size_t>(contents.head_dim);
  for (const ChannelCodes& half : contents.halves) {
    bool has_steps = all_positive(half.steps) && all_positive(std::span(&half.spread, 1));
    bool has_distributions = true;  // only what fills a row up is always zero
    for (size_t c = 0; c < half.distributions.size(); ++c) {
      has_distributions = has_distributions && half.distributions[c] < kNumDistributions &&
                          (half.distributions[c] == kZeros) == (c >= channels);
    }
    if (!all_in_range(half.means) || !has_steps || !has_distributions)
      return bad_tables("a channel's mean, step, distribution or spread is out of range");
  }
  return {};
}

std::vector<uint32_t> slot_starts(const TableContents& contents) {
  std::vector<uint32_t> starts;
  for (const ChannelCodes& half : contents.halves) {
    for (uint8_t distribution : half.distributions)
      starts.push_back(distribution * kProbabilityTotal);
  }
  return starts;
}

}  // namespace

size_t padded_channels(int32_t num_kv_heads, int32_t head_dim) {
  size_t channels = static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim);
  return (channels + kLanes - 1) / kLanes * kLanes;
}

CodecTables::CodecTables(TableContents contents)
    : contents_(std::move(contents)),
      row_channels_(padded_channels(contents_.num_kv_heads, contents_.head_dim)),
      turns_(contents_.rotation.frequencies),
      decode_slots_(make_decode_slots(contents_.distributions)),
      first_slots_(slot_starts(contents_)),
      digest_(sha256(serialise())) {
  check(contents_.distributions.size() == kNumDistributions, "all distributions are there");
  check(contents_.rotation.frequencies.size() * 2 <= static_cast<size_t>(contents_.head_dim),
        "a pair has two channels");
}

bool CodecTables::fit(const KvLayout& layout) const {
  bool is_float =
      layout.dtype == DType::kF32 || layout.dtype == DType::kF16 || layout.dtype == DType::kBF16;
  return is_float && layout.num_layers == num_layers() &&
         layout.num_kv_heads == contents_.num_kv_heads && layout.head_dim == contents_.head_dim;
}

std::span<const uint32_t> CodecTables::first_slots(int32_t layer, KvHalf half) const {
  size_t index = 2 * static_cast<size_t>(layer) + static_cast<size_t>(half);
  return std::span(first_slots_).subspan(index * row_channels_, row_channels_);
}

size_t CodecTables::turned_pairs(int32_t layer) const {
  bool is_turned = !std::ranges::binary_search(contents_.rotation.unturned_layers, layer);
  return is_turned ? turns_.num_pairs() : 0;
}

std::vector<std::byte> CodecTables::serialise() const {
  TablesHeader header{kMagic,
                      kTablesVersion,
                      static_cast<uint32_t>(num_layers()),
                      static_cast<uint32_t>(contents_.num_kv_heads),
                      static_cast<uint32_t>(contents_.head_dim),
                      static_cast<uint32_t>(contents_.rotation.frequencies.size()),
                      static_cast<uint32_t>(contents_.rotation.unturned_layers.size())};
  std::vector<std::byte> bytes;
  append(bytes, std::span<const TablesHeader>(&header, 1));
  append(bytes, std::span<const float>(contents_.rotation.frequencies));
  append(bytes, std::span<const int32_t>(contents_.rotation.unturned_layers));
  append(bytes, std::span<const Distribution>(contents_.distributions));
  for (const ChannelCodes& half : contents_.halves) {
    append(bytes, std::span<const float>(half.means));
    append(bytes, std::span<const float>(half.steps));
    append(bytes, std::span<const uint8_t>(half.distributions));
    append(bytes, std::span<const float>(&half.spread, 1));
  }
  return bytes;
}

Result<CodecTables> CodecTables::parse(std::span<const std::byte> bytes) {
  Result<TablesHeader> header = parse_header(bytes);
  if (!header) return header.error();
  if (bytes.size() != bytes_of_tables(*header)) {
    return bad_tables(
        fmt::format("{} bytes, the header says {}", bytes.size(), bytes_of_tables(*header)));
  }
  TableContents contents;
  contents.num_kv_heads = static_cast<int32_t>(header->num_kv_heads);
  contents.head_dim = static_cast<int32_t>(header->head_dim);
  contents.rotation.frequencies.resize(header->num_frequencies);
  contents.rotation.unturned_layers.resize(header->num_unturned);
  contents.distributions.resize(kNumDistributions);
  contents.halves.resize(2 * size_t{header->num_layers});
  size_t channels = padded_channels(contents.num_kv_heads, contents.head_dim);
  ArrayReader reader(bytes.subspan(sizeof(TablesHeader)));
  reader.read(std::span(contents.rotation.frequencies));
  reader.read(std::span(contents.rotation.unturned_layers));
  reader.read(std::span(contents.distributions));
  for (ChannelCodes& half : contents.halves) {
    half = {std::vector<float>(channels), std::vector<float>(channels),
            std::vector<uint8_t>(channels), 1.0f};
    reader.read(std::span(half.means));
    reader.read(std::span(half.steps));
    reader.read(std::span(half.distributions));
    reader.read(std::span(&half.spread, 1));
  }
  Result<void> checked = check_contents(contents);
  if (!checked) return checked.error();
  return CodecTables(std::move(contents));
}

}  // namespace droidspeak
