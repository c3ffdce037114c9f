#include <algorithm>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/error.h"
#include "codec/kernels/decode.h"
#include "codec/kv_codec.h"
#include "codec/piece.h"
#include "codec/rows.h"
#include "codec/token_scale.h"

namespace droidspeak {
namespace {

Error corrupt(const char* message) {
  return {ErrorCode::kDataCorrupt, std::string("coded K/V: ") + message};
}

cpu::SymbolStreams open_streams(const CodecTables& tables, const PieceParts& parts) {
  cpu::SymbolStreams streams{};
  streams.words = parts.words.data();
  streams.decode_slots = tables.decode_slots().data();
  std::memcpy(streams.states.data(), parts.states.data(), parts.states.size());
  int32_t at = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    streams.at[lane] = at;
    at += 2 * parts.header.num_words[lane];
    streams.last[lane] = at;
  }
  return streams;
}

// A coder that took in every word and is back where the encoder began has seen what it wrote.
bool are_finished(const cpu::SymbolStreams& streams) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (streams.at[lane] != streams.last[lane] || streams.states[lane] != kLowestState)
      return false;
  }
  return true;
}

// Each escape stands for one mark; their order is checked.
Result<void> apply_escapes(std::span<const std::byte> escapes, std::span<int16_t> symbols) {
  auto num_marks = std::count(symbols.begin(), symbols.end(), int16_t{kEscapeMark});
  if (static_cast<size_t>(num_marks) != escapes.size() / sizeof(Escape))
    return corrupt("has other than as many escapes as its streams say");
  for (size_t i = 0; i < escapes.size() / sizeof(Escape); ++i) {
    Escape escape = load_escape(escapes, i);
    if (symbols[escape.index] != kEscapeMark) return corrupt("an escape is in a wrong place");
    symbols[escape.index] = static_cast<int16_t>(escape.value);
  }
  return {};
}

class Dequantiser {
 public:
  // `scales` are those of V.
  Dequantiser(const cpu::DecodeKernels& kernels,
              const CodecTables& tables,
              const KvLayout& layout,
              std::span<const std::byte> scales)
      : kernels_(kernels),
        tables_(tables),
        layout_(layout),
        scales_(scales),
        head_dim_(static_cast<size_t>(layout.head_dim)) {}

  void fill(const PieceLabel& label,
            std::span<const int16_t> symbols,
            std::span<std::byte> values) {
    size_t num_rows = symbols.size() / 2 / tables_.row_channels();
    bool is_turned = tables_.turned_pairs(label.layer) > 0;
    for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
      const ChannelCodes& codes = tables_.codes(label.layer, half);
      for (size_t row = 0; row < num_rows; ++row) {
        RowTurn turn;
        if (half == KvHalf::kKeys && is_turned) turn = turn_of(label, row);
        fill_row(codes, {half, row, turn}, symbols.data(), values);
        symbols = symbols.subspan(tables_.row_channels());
      }
    }
  }

 private:
  struct Row {
    KvHalf half;
    size_t number;
    RowTurn turn;  // nothing: the row is not turned
  };

  RowTurn turn_of(const PieceLabel& label, size_t row) {
    if (row % kBlockTokens == 0)
      tables_.turns().of_block(label.first_position + static_cast<uint32_t>(row), turns_);
    return tables_.turns().row(turns_, row % kBlockTokens);
  }

  void fill_row(const ChannelCodes& codes,
                const Row& row,
                const int16_t* symbols,
                std::span<std::byte> values) const {
    cpu::HeadShape shape{head_dim_, row.turn.cosines.size(), layout_.dtype};
    size_t element_bytes = bytes_of(layout_.dtype, 1);
    float scale = scale_of(row.half, row.number);
    for (size_t head = 0; head < static_cast<size_t>(layout_.num_kv_heads); ++head) {
      size_t channel = head * head_dim_;
      size_t first_byte = element_of(layout_, row.half, row.number, head) * element_bytes;
      kernels_.dequantise_head({.symbols = symbols + channel,
                                .means = codes.means.data() + channel,
                                .steps = codes.steps.data() + channel,
                                .scale = scale,
                                .cosines = row.turn.cosines.data(),
                                .sines = row.turn.sines.data(),
                                .values = values.data() + first_byte},
                               shape);
    }
  }

  float scale_of(KvHalf half, size_t row) const {
    if (half == KvHalf::kKeys) return 1.0f;
    auto both = static_cast<uint8_t>(scales_[row / 2]);
    return token_scales()[row % 2 == 0 ? both & 15 : both >> 4];
  }

  const cpu::DecodeKernels& kernels_;
  const CodecTables& tables_;
  const KvLayout& layout_;
  std::span<const std::byte> scales_;
  size_t head_dim_;
  std::vector<float> turns_;
};

void copy_exact(const KvLayout& layout,
                size_t tokens,
                std::span<const std::byte> exact,
                std::span<std::byte> values) {
  size_t element_bytes = bytes_of(layout.dtype, 1);
  size_t head_bytes = static_cast<size_t>(layout.head_dim) * element_bytes;
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    for (size_t row = 0; row < tokens; ++row) {
      for (size_t head = 0; head < static_cast<size_t>(layout.num_kv_heads); ++head) {
        size_t first_byte = element_of(layout, half, row, head) * element_bytes;
        std::memcpy(values.data() + first_byte, exact.data(), head_bytes);
        exact = exact.subspan(head_bytes);
      }
    }
  }
}

}  // namespace

PieceDecoder::PieceDecoder(cpu::InstructionSet set) : kernels_(set) {}

Result<void> PieceDecoder::decode(const CodecTables& tables,
                                  const KvLayout& layout,
                                  const PieceLabel& label,
                                  std::span<const std::byte> piece,
                                  std::span<std::byte> values) const {
  check(tables.fit(layout) && label.layer >= 0 && label.layer < tables.num_layers(),
        "the tables are for this layer");
  Result<PieceParts> parts = parse_piece(tables, layout, label, piece, values.size());
  if (!parts) return parts.error();
  PieceShape shape(layout, values.size());
  auto memory = std::make_unique_for_overwrite<int16_t[]>(2 * shape.half_symbols);
  std::span<int16_t> symbols(memory.get(), 2 * shape.half_symbols);
  cpu::SymbolStreams streams = open_streams(tables, *parts);
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    kernels_.decode_symbols(
        streams, {.symbols = symbols.data() + static_cast<size_t>(half) * shape.half_symbols,
                  .first_slots = tables.first_slots(label.layer, half).data(),
                  .num_rows = shape.half_symbols / shape.row_channels,
                  .num_channels = shape.row_channels});
  }
  if (!are_finished(streams)) return corrupt("its streams do not end where they should");
  Result<void> escaped = apply_escapes(parts->escapes, symbols);
  if (!escaped) return escaped;
  Dequantiser(kernels_, tables, layout, parts->scales).fill(label, symbols, values);
  copy_exact(layout, parts->header.num_exact_tokens, parts->exact, values);
  return {};
}

}  // namespace droidspeak
