#include "codec/device_decoder.h"

#include <algorithm>

#include "base/check.h"
#include "codec/piece.h"
#include "codec/token_scale.h"

namespace droidspeak {
namespace {

static_assert(kPieceLanes == kLanes && kPieceDistributions == kNumDistributions &&
              kPieceSymbols == kNumSymbols && kPieceZero == kMaxSymbol &&
              kPieceSlots == kProbabilityTotal);
static_assert(std::size(PieceTables{}.scales) == kNumScales);

constexpr size_t kPieceAlignment = 16;
constexpr size_t kPiecesBytes = size_t{16} << 20;  // more than the largest piece
constexpr size_t kMostPieces = 512;                // at a time
// A family has one; others come when it learns anew.
constexpr size_t kMostTables = 2;

size_t aligned(size_t bytes) {
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

// Where the parts of tables lie in the device's memory.
struct TablesLayout {
  TablesLayout(const KvLayout& layout, size_t row_channels)
      : channels(2 * static_cast<size_t>(layout.num_layers) * row_channels) {
    size_t pairs = static_cast<size_t>(layout.head_dim) / 2;
    ranges = kNumDistributions * kProbabilityTotal;
    turns = ranges + kNumDistributions * kNumSymbols * sizeof(uint32_t);
    means = turns + 2 * kBlockTokens * pairs * sizeof(float);
    steps = means + channels * sizeof(float);
    distributions = steps + channels * sizeof(float);
    bytes = distributions + channels;
  }

  size_t channels;  // of K and V of all layers
  size_t ranges;
  size_t turns;
  size_t means;
  size_t steps;
  size_t distributions;
  size_t bytes;
};

template <class T>
const T* part(const Buffer& memory, size_t at) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(memory.data()) + at);
}

template <class T>
void put(std::vector<std::byte>& bytes, size_t at, std::span<const T> values) {
  check(at + values.size_bytes() <= bytes.size(), "tables fit their room");
  std::ranges::copy(std::as_bytes(values), bytes.begin() + static_cast<std::ptrdiff_t>(at));
}

void put_distributions(const CodecTables& tables,
                       const TablesLayout& places,
                       std::vector<std::byte>& bytes) {
  size_t slot = 0;
  std::vector<uint32_t> ranges;
  for (const Distribution& distribution : tables.contents().distributions) {
    auto starts = distribution.starts();
    for (size_t symbol = 0; symbol < kNumSymbols; ++symbol) {
      uint32_t frequency = distribution.frequencies[symbol];
      ranges.push_back(frequency << 16 | (frequency == 0 ? 0u : starts[symbol]));
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(slot), frequency, std::byte(symbol));
      slot += frequency;
    }
  }
  check(slot == places.ranges, "every slot belongs to a symbol");
  put<uint32_t>(bytes, places.ranges, ranges);
}

}  // namespace

DeviceDecoder::DeviceDecoder(Device& device,
                             std::unique_ptr<PieceKernel> kernel,
                             const KvLayout& layout)
    : layout_(layout),
      row_channels_(padded_channels(layout.num_kv_heads, layout.head_dim)),
      kernel_(std::move(kernel)),
      lane_(device.make_copy_lane()),
      places_(kMostTables),
      pieces_(device.allocate(kPiecesBytes)) {
  size_t turn_bytes = static_cast<size_t>(layout.head_dim) * sizeof(float);
  size_t task_bytes = kMostPieces * (sizeof(PieceTask) + turn_bytes);
  tasks_ = device.allocate(task_bytes);
  pinned_tasks_ = device.allocate_host(task_bytes);
  is_damaged_ = device.allocate_host(kMostPieces * sizeof(uint32_t));
  for (TablesPlace& place : places_)
    place.memory = device.allocate(TablesLayout(layout, row_channels_).bytes);
}

std::optional<size_t> DeviceDecoder::decode(int32_t layer,
                                            const KvLayerView& kv,
                                            std::span<const CodedBlock> blocks) {
  MutexLock lock(mutex_);
  for (size_t first = 0; first < blocks.size();) {
    size_t count = count_together(blocks.subspan(first));
    std::optional<size_t> damaged = decode_together(layer, kv, blocks.subspan(first, count));
    if (damaged) return first + *damaged;
    first += count;
  }
  return std::nullopt;
}

size_t DeviceDecoder::count_together(std::span<const CodedBlock> blocks) const {
  size_t bytes = 0;
  size_t count = 0;
  for (const CodedBlock& block : blocks) {
    bytes += aligned(block.piece.size());
    bool fits = bytes <= kPiecesBytes && count < kMostPieces;
    if (count > 0 && (!fits || block.tables != blocks.front().tables)) break;
    ++count;
  }
  return count;
}

std::optional<size_t> DeviceDecoder::decode_together(int32_t layer,
                                                     const KvLayerView& kv,
                                                     std::span<const CodedBlock> blocks) {
  if (!blocks.front().tables->fit(layout_)) return 0;
  TablesPlace& place = place_of(blocks.front().tables);
  size_t turn_values = 2 * place.tables->turned_pairs(layer);
  auto* tasks = static_cast<PieceTask*>(pinned_tasks_.data());
  auto* turns = reinterpret_cast<float*>(tasks + blocks.size());
  auto* is_damaged = static_cast<uint32_t*>(is_damaged_.data());
  size_t at = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::optional<PieceTask> task = make_task(layer, blocks[i], at);
    if (!task) {
      lane_->synchronize();  // with the copies of those before it
      return i;
    }
    tasks[i] = *task;
    put_first_turns(place, blocks[i], {turns + i * turn_values, turn_values});
    is_damaged[i] = 0;
    lane_->to_device(static_cast<std::byte*>(pieces_.data()) + at, blocks[i].piece.data(),
                     blocks[i].piece.size());
    at += aligned(blocks[i].piece.size());
  }
  size_t task_bytes = blocks.size() * (sizeof(PieceTask) + turn_values * sizeof(float));
  lane_->to_device(tasks_.data(), tasks, task_bytes);
  lane_->synchronize();
  kernel_->decode(tables_of(place, layer),
                  {.bytes = part<std::byte>(pieces_, 0),
                   .tasks = part<PieceTask>(tasks_, 0),
                   .first_turns = part<float>(tasks_, blocks.size() * sizeof(PieceTask)),
                   .is_damaged = is_damaged,
                   .num_pieces = static_cast<int32_t>(blocks.size())},
                  kv);
  auto* damaged = std::find(is_damaged, is_damaged + blocks.size(), 1u);
  if (damaged == is_damaged + blocks.size()) return std::nullopt;
  return static_cast<size_t>(damaged - is_damaged);
}

// The kernel trusts what stands here.
std::optional<PieceTask> DeviceDecoder::make_task(int32_t layer,
                                                  const CodedBlock& block,
                                                  size_t at) const {
  if (at + block.piece.size() > kPiecesBytes) return std::nullopt;
  Result<PieceParts> parts = parse_piece(*block.tables, layout_, {layer, block.first_position},
                                         block.piece, layout_.layer_bytes());
  if (!parts) return std::nullopt;
  auto place = [&](std::span<const std::byte> bytes) {
    return static_cast<uint32_t>(at + static_cast<size_t>(bytes.data() - block.piece.data()));
  };
  return PieceTask{
      .num_words_at = static_cast<uint32_t>(at + offsetof(PieceHeader, num_words)),
      .words_at = place(parts->words),
      .states_at = place(parts->states),
      .scales_at = place(parts->scales),
      .escapes_at = place(parts->escapes),
      .num_escapes = parts->header.num_escapes,
      .exact_at = place(parts->exact),
      .num_exact = parts->header.num_exact_tokens,
      .block = block.block,
  };
}

// Contexts are read from their start: what lies before a block is wanted as well.
void DeviceDecoder::put_first_turns(TablesPlace& place,
                                    const CodedBlock& block,
                                    std::span<float> turns) const {
  size_t number = block.first_position / kBlockTokens;
  while (!turns.empty() && place.first_turns.size() < (number + 1) * turns.size()) {
    size_t known = place.first_turns.size();
    place.first_turns.resize(known + turns.size());
    place.tables->turns().of_position(static_cast<uint32_t>(known / turns.size() * kBlockTokens),
                                      std::span(place.first_turns).subspan(known));
  }
  std::copy_n(place.first_turns.begin() + static_cast<ptrdiff_t>(number * turns.size()),
              turns.size(), turns.begin());
}

DeviceDecoder::TablesPlace& DeviceDecoder::place_of(
    const std::shared_ptr<const CodecTables>& tables) {
  auto is_here = [&](const TablesPlace& place) {
    return place.tables != nullptr && place.tables->digest() == tables->digest();
  };
  auto place = std::find_if(places_.begin(), places_.end(), is_here);
  if (place == places_.end()) {
    place = std::ranges::min_element(places_, {}, &TablesPlace::last_use);
    place->tables = nullptr;  // until they are whole
    place->first_turns.clear();
    upload(*tables, place->memory);
    place->tables = tables;
  }
  place->last_use = ++num_uses_;
  return *place;
}

void DeviceDecoder::upload(const CodecTables& tables, Buffer& memory) {
  TablesLayout places(layout_, row_channels_);
  std::vector<std::byte> bytes(places.bytes);
  put_distributions(tables, places, bytes);
  put<float>(bytes, places.turns, tables.turns().within_block());
  size_t channel = 0;
  for (const ChannelCodes& codes : tables.contents().halves) {
    put<float>(bytes, places.means + channel * sizeof(float), codes.means);
    put<float>(bytes, places.steps + channel * sizeof(float), codes.steps);
    put<uint8_t>(bytes, places.distributions + channel, codes.distributions);
    channel += row_channels_;
  }
  lane_->to_device(memory.data(), bytes.data(), bytes.size());
  lane_->synchronize();
}

PieceTables DeviceDecoder::tables_of(const TablesPlace& place, int32_t layer) const {
  TablesLayout places(layout_, row_channels_);
  size_t channel = 2 * static_cast<size_t>(layer) * row_channels_;
  PieceTables tables{
      .symbols = part<uint8_t>(place.memory, 0),
      .ranges = part<uint32_t>(place.memory, places.ranges),
      .distributions = part<uint8_t>(place.memory, places.distributions + channel),
      .means = part<float>(place.memory, places.means + channel * sizeof(float)),
      .steps = part<float>(place.memory, places.steps + channel * sizeof(float)),
      .turns = part<float>(place.memory, places.turns),
      .num_pairs = static_cast<int32_t>(place.tables->turned_pairs(layer)),
      .row_channels = static_cast<int32_t>(row_channels_),
      .scales = {},
  };
  std::ranges::copy(token_scales(), tables.scales);
  return tables;
}

std::shared_ptr<DeviceDecoder> make_device_decoder(Device& device, const KvLayout& layout) {
  if (layout.num_layers == 0 || layout.dtype == DType::kI8) return nullptr;
  auto row_channels = static_cast<int32_t>(padded_channels(layout.num_kv_heads, layout.head_dim));
  std::unique_ptr<PieceKernel> kernel = make_piece_kernel(device, row_channels);
  if (!kernel) return nullptr;
  return std::make_shared<DeviceDecoder>(device, std::move(kernel), layout);
}

}  // namespace droidspeak
