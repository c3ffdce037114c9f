#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "codec/append.h"
#include "codec/kv_codec.h"
#include "codec/piece.h"
#include "codec/rows.h"
#include "codec/token_scale.h"

namespace droidspeak {
namespace {

// A larger one may round to infinity; the others have float's range.
float largest_value(DType dtype) {
  return dtype == DType::kF16 ? 65504.0f : 3e38f;
}

// K and V of a piece in steps from their means, [2, rows, row_channels].
struct Symbols {
  std::vector<int32_t> values;
  std::vector<uint8_t> scales;  // of V, [rows]
  bool are_codable = true;
};

class Quantiser {
 public:
  Quantiser(const CodecTables& tables,
            const KvLayout& layout,
            const PieceLabel& label,
            std::span<const std::byte> values)
      : tables_(tables), layout_(layout), label_(label), values_(values) {}

  Symbols quantise() {
    PieceShape shape(layout_, values_.size());
    Symbols symbols{std::vector<int32_t>(2 * shape.half_symbols), {}, true};
    std::vector<float> row(shape.channels);
    for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
      int32_t* out = symbols.values.data() + static_cast<size_t>(half) * shape.half_symbols;
      for (size_t r = 0; r < shape.num_blocks * kBlockTokens; ++r, out += shape.row_channels) {
        load_unturned(half, r, row);
        bool is_exact = r < exact_tokens_at(label_.first_position);
        const ChannelCodes& codes = tables_.codes(label_.layer, half);
        uint8_t scale = half == KvHalf::kKeys ? kUsualScale : scale_of_row(codes, row);
        if (half == KvHalf::kValues) symbols.scales.push_back(scale);
        if (is_exact) {
          symbols.are_codable = symbols.are_codable && are_finite(row);
          continue;
        }
        symbols.are_codable = symbols.are_codable &&
                              quantise_row(codes, token_scales()[scale], row, out) &&
                              fits_decoded(half, codes, token_scales()[scale], out);
      }
    }
    return symbols;
  }

 private:
  void load_unturned(KvHalf half, size_t row, std::span<float> channels) {
    load_row(layout_, values_, half, row, channels);
    if (half != KvHalf::kKeys || tables_.turned_pairs(label_.layer) == 0) return;
    size_t token = row % kBlockTokens;
    if (token == 0)
      tables_.turns().of_block(label_.first_position + static_cast<uint32_t>(row), turns_);
    turn_back(channels, static_cast<size_t>(layout_.head_dim), tables_.turns().row(turns_, token));
  }

  static bool are_finite(std::span<const float> row) {
    return std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); });
  }

  static bool quantise_row(const ChannelCodes& codes,
                           float scale,
                           std::span<const float> row,
                           int32_t* out) {
    for (size_t c = 0; c < row.size(); ++c) {
      float steps = (row[c] - codes.means[c]) / (codes.steps[c] * scale);
      if (!(std::abs(steps) < kLargestEscape)) return false;  // NaN too
      out[c] = static_cast<int32_t>(std::nearbyint(steps));
    }
    return true;
  }

  // Whether what is decoded is finite in the dtype. Each of a turned pair may get as large as both
  // together.
  bool fits_decoded(KvHalf half, const ChannelCodes& codes, float scale, const int32_t* symbols) {
    size_t pairs = half == KvHalf::kKeys ? tables_.turned_pairs(label_.layer) : 0;
    auto dim = static_cast<size_t>(layout_.head_dim);
    size_t channels = dim * static_cast<size_t>(layout_.num_kv_heads);
    auto decoded = [&](size_t c) {
      return double{codes.means[c]} + double{codes.steps[c]} * scale * symbols[c];
    };
    double largest = 0;
    for (size_t c = 0; c < channels; ++c) {
      bool is_first = c % dim < pairs;
      bool is_second = !is_first && c % dim < 2 * pairs;
      if (is_second) continue;
      double value = is_first ? std::hypot(decoded(c), decoded(c + pairs)) : std::abs(decoded(c));
      largest = std::max(largest, value);
    }
    return largest <= largest_value(layout_.dtype);
  }

  const CodecTables& tables_;
  const KvLayout& layout_;
  const PieceLabel& label_;
  std::span<const std::byte> values_;
  std::vector<float> turns_;
};

// The frequency and start of every symbol of every distribution.
class SymbolCoder {
 public:
  explicit SymbolCoder(std::span<const Distribution> distributions)
      : distributions_(distributions) {
    for (const Distribution& distribution : distributions) starts_.push_back(distribution.starts());
  }

  // rANS backwards: what is pushed last is read first.
  void push(int32_t value, uint8_t distribution, uint32_t& state, std::vector<uint16_t>& words) {
    size_t symbol = distributions_[distribution].symbol_of(value);
    uint32_t frequency = distributions_[distribution].frequencies[symbol];
    uint64_t limit = uint64_t{frequency} << (32 - kProbabilityBits);
    if (state >= limit) {
      words.push_back(static_cast<uint16_t>(state));
      state >>= 16;
    }
    state =
        (state / frequency << kProbabilityBits) + state % frequency + starts_[distribution][symbol];
  }

 private:
  std::span<const Distribution> distributions_;
  std::vector<std::array<uint16_t, kNumSymbols>> starts_;
};

struct Streams {
  std::array<std::vector<uint16_t>, kLanes> words;  // in the order of reading
  std::array<uint32_t, kLanes> states;
};

Streams write_streams(const CodecTables& tables, int32_t layer, std::span<const int32_t> symbols) {
  Streams streams;
  streams.states.fill(kLowestState);
  SymbolCoder coder(tables.contents().distributions);
  size_t channels = tables.row_channels();
  for (size_t i = symbols.size(); i-- > 0;) {
    KvHalf half = i < symbols.size() / 2 ? KvHalf::kKeys : KvHalf::kValues;
    size_t channel = i % channels;
    size_t lane = channel % kLanes;
    coder.push(symbols[i], tables.codes(layer, half).distributions[channel], streams.states[lane],
               streams.words[lane]);
  }
  for (auto& words : streams.words) std::reverse(words.begin(), words.end());
  return streams;
}

std::vector<Escape> find_escapes(const CodecTables& tables,
                                 int32_t layer,
                                 std::span<const int32_t> symbols) {
  std::vector<Escape> escapes;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (tables.distribution_at(layer, i, symbols.size()).symbol_of(symbols[i]) == kEscape)
      escapes.push_back({static_cast<uint32_t>(i), symbols[i]});
  }
  return escapes;
}

void append_exact(const KvLayout& layout,
                  std::span<const std::byte> values,
                  size_t tokens,
                  std::vector<std::byte>& piece) {
  size_t element = bytes_of(layout.dtype, 1);
  size_t head_bytes = static_cast<size_t>(layout.head_dim) * element;
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    for (size_t row = 0; row < tokens; ++row) {
      for (size_t head = 0; head < static_cast<size_t>(layout.num_kv_heads); ++head) {
        size_t first = element_of(layout, half, row, head) * element;
        append(piece, values.subspan(first, head_bytes));
      }
    }
  }
}

}  // namespace

std::optional<std::vector<std::byte>> encode_piece(const CodecTables& tables,
                                                   const KvLayout& layout,
                                                   const PieceLabel& label,
                                                   std::span<const std::byte> values) {
  check(tables.fit(layout) && label.layer >= 0 && label.layer < tables.num_layers() &&
            label.first_position % kBlockTokens == 0,
        "the tables are for this layer");
  PieceShape shape(layout, values.size());
  if (!shape.is_codable()) return std::nullopt;
  Symbols symbols = Quantiser(tables, layout, label, values).quantise();
  if (!symbols.are_codable) return std::nullopt;
  Streams streams = write_streams(tables, label.layer, symbols.values);
  std::vector<Escape> escapes = find_escapes(tables, label.layer, symbols.values);
  uint32_t exact_tokens = exact_tokens_at(label.first_position);
  PieceHeader header{.magic = kPieceMagic,
                     .version = kPieceVersion,
                     .layer = static_cast<uint16_t>(label.layer),
                     .tables = name_of_tables(tables.digest()),
                     .first_position = label.first_position,
                     .num_blocks = static_cast<uint16_t>(shape.num_blocks),
                     .num_exact_tokens = static_cast<uint8_t>(exact_tokens),
                     .dtype = dtype_code(layout.dtype),
                     .num_escapes = static_cast<uint32_t>(escapes.size()),
                     .reserved = 0,
                     .num_words = {}};
  for (size_t lane = 0; lane < kLanes; ++lane)
    header.num_words[lane] = static_cast<uint16_t>(streams.words[lane].size());
  std::vector<std::byte> piece;
  piece.reserve(values.size() / 4);
  append(piece, std::span<const PieceHeader>(&header, 1));
  for (const auto& words : streams.words) append(piece, std::span<const uint16_t>(words));
  append(piece, std::span<const uint32_t>(streams.states));
  for (size_t i = 0; i < symbols.scales.size(); i += 2)
    piece.push_back(static_cast<std::byte>(symbols.scales[i] | symbols.scales[i + 1] << 4));
  append(piece, std::span<const Escape>(escapes));
  append_exact(layout, values, exact_tokens, piece);
  return piece;
}

}  // namespace droidspeak
