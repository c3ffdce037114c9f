#include "codec/reference.h"

#include <cstring>

#include "codec/piece.h"
#include "codec/rows.h"
#include "codec/token_scale.h"

namespace droidspeak {
namespace {

struct Stream {
  const std::byte* next;
  const std::byte* end;
  uint32_t state;

  int read(const Distribution& distribution) {
    uint32_t slot = state % kProbabilityTotal;
    auto starts = distribution.starts();
    size_t symbol = 0;
    while (slot >= starts[symbol] + distribution.frequencies[symbol]) ++symbol;
    state = distribution.frequencies[symbol] * (state / kProbabilityTotal) + slot - starts[symbol];
    if (state < kLowestState && next < end) {
      uint16_t word = 0;
      std::memcpy(&word, next, sizeof word);
      state = state << 16 | word;
      next += sizeof word;
    }
    return symbol == kEscape ? kEscapeMark : static_cast<int>(symbol) - kMaxSymbol;
  }
};

void store_element(DType dtype, std::byte* values, size_t index, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(values + index * sizeof value, &value, sizeof value);
    return;
  }
  uint16_t bits = dtype == DType::kF16 ? f16_from_float(value) : bf16_from_float(value);
  std::memcpy(values + index * sizeof bits, &bits, sizeof bits);
}

std::vector<Stream> open_streams(const PieceParts& parts) {
  std::vector<Stream> streams;
  const std::byte* next = parts.words.data();
  for (size_t lane = 0; lane < kLanes; ++lane) {
    uint32_t state = 0;
    std::memcpy(&state, parts.states.data() + lane * sizeof state, sizeof state);
    const std::byte* end = next + 2 * size_t{parts.header.num_words[lane]};
    streams.push_back({next, end, state});
    next = end;
  }
  return streams;
}

std::optional<std::vector<int>> read_symbols(const CodecTables& tables,
                                             const PieceLabel& label,
                                             const PieceParts& parts,
                                             size_t num_symbols) {
  std::vector<Stream> streams = open_streams(parts);
  std::vector<int> symbols(num_symbols);
  for (size_t i = 0; i < num_symbols; ++i) {
    size_t channel = i % tables.row_channels();
    symbols[i] =
        streams[channel % kLanes].read(tables.distribution_at(label.layer, i, num_symbols));
  }
  for (const Stream& stream : streams) {
    if (stream.next != stream.end || stream.state != kLowestState) return std::nullopt;
  }
  size_t at = 0;
  for (size_t i = 0; i < num_symbols; ++i) {
    if (symbols[i] != kEscapeMark) continue;
    if (at == parts.escapes.size()) return std::nullopt;
    Escape escape{};
    std::memcpy(&escape, parts.escapes.data() + at, sizeof escape);
    const Distribution& distribution = tables.distribution_at(label.layer, i, num_symbols);
    bool is_small = distribution.symbol_of(escape.value) != kEscape;
    bool is_large = escape.value < -kLargestEscape || escape.value > kLargestEscape;
    if (escape.index != i || is_small || is_large) return std::nullopt;
    symbols[i] = escape.value;
    at += sizeof escape;
  }
  if (at != parts.escapes.size()) return std::nullopt;
  return symbols;
}

}  // namespace

std::optional<std::vector<std::byte>> reference_decode(const CodecTables& tables,
                                                       const KvLayout& layout,
                                                       const PieceLabel& label,
                                                       std::span<const std::byte> piece,
                                                       size_t value_bytes) {
  Result<PieceParts> parts = parse_piece(tables, layout, label, piece, value_bytes);
  if (!parts) return std::nullopt;
  PieceShape shape(layout, value_bytes);
  auto symbols = read_symbols(tables, label, *parts, 2 * shape.half_symbols);
  if (!symbols) return std::nullopt;
  std::vector<std::byte> values(value_bytes);
  size_t num_exact = 0;
  std::vector<float> block_turns;
  auto dim = static_cast<size_t>(layout.head_dim);
  for (size_t i = 0; i < symbols->size(); ++i) {
    KvHalf half = i < shape.half_symbols ? KvHalf::kKeys : KvHalf::kValues;
    size_t row = i % shape.half_symbols / shape.row_channels;
    size_t channel = i % shape.row_channels;
    if (channel >= shape.channels) continue;
    size_t head = channel / dim;
    size_t c = channel % dim;
    size_t element = element_of(layout, half, row, head) + c;
    if (row < parts->header.num_exact_tokens) {
      std::memcpy(values.data() + element * shape.element_bytes,
                  parts->exact.data() + num_exact++ * shape.element_bytes, shape.element_bytes);
      continue;
    }
    const ChannelCodes& codes = tables.codes(label.layer, half);
    auto both = static_cast<unsigned>(parts->scales[row / 2]);
    float scale =
        half == KvHalf::kKeys ? 1.0f : token_scales()[row % 2 == 1 ? both / 16 : both % 16];
    auto value_of = [&](size_t other) {
      size_t index = i - channel + other;
      float step = codes.steps[other] * scale;
      return codes.means[other] + step * static_cast<float>((*symbols)[index]);
    };
    float value = value_of(channel);
    size_t pairs = tables.turned_pairs(label.layer);
    if (half == KvHalf::kKeys && c < 2 * pairs) {
      tables.turns().of_block(
          label.first_position + static_cast<uint32_t>(row / kBlockTokens * kBlockTokens),
          block_turns);
      RowTurn turn = tables.turns().row(block_turns, row % kBlockTokens);
      float cosine = turn.cosines[c % pairs];
      float sine = turn.sines[c % pairs];
      value = c < pairs ? value * cosine - value_of(channel + pairs) * sine
                        : value * cosine + value_of(channel - pairs) * sine;
    }
    store_element(layout.dtype, values.data(), element, value);
  }
  return values;
}

}  // namespace droidspeak
