#include "ops/cpu/packed_matrix.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "ops/cpu/quant_block.h"
#include "ops/cpu/super_block.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak::cpu {
namespace {

struct SourceRow {
  DType dtype;
  const std::byte* bytes;
};

int64_t total_rows(std::span<const MatrixPart> parts) {
  int64_t rows = 0;
  for (const MatrixPart& part : parts) {
    check(part.columns == parts.front().columns, "parts of a matrix have the same columns");
    rows += part.rows;
  }
  return rows;
}

int64_t columns_of(std::span<const MatrixPart> parts) {
  check(!parts.empty(), "a matrix has at least one part");
  return parts.front().columns;
}

std::vector<SourceRow> rows_of(std::span<const MatrixPart> parts) {
  std::vector<SourceRow> rows;
  for (const MatrixPart& part : parts) {
    check(part.columns % traits(part.dtype).block_elements == 0, "rows of whole blocks");
    check(part.bytes.size() >= bytes_of(part.dtype, part.rows * part.columns), "bytes of all rows");
    const bool is_ordered = part.row_order.empty();
    check(is_ordered || std::ssize(part.row_order) == part.rows, "an order of all rows");
    const size_t row_bytes = bytes_of(part.dtype, part.columns);
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t row = is_ordered ? i : part.row_order[static_cast<size_t>(i)];
      check(row >= 0 && row < part.rows, "row order inside the part");
      rows.push_back({part.dtype, part.bytes.data() + static_cast<size_t>(row) * row_bytes});
    }
  }
  return rows;
}

bool is_quantized(PanelKind kind) {
  return kind >= PanelKind::kU4;
}

// Bytes of 32 columns of a quantised panel.
int64_t block_bytes(const PanelFormat& format) {
  const int64_t arrays = format.has_minimum ? 2 : 1;
  return quant_block_bytes(format.kind) + arrays * kPanelWidth * scale_bytes(format.scales);
}

size_t panel_bytes(const PanelFormat& format, int64_t columns) {
  int64_t bytes = 0;
  if (format.scales == ScaleKind::kCodes)
    return static_cast<size_t>(columns / kSuperColumns * SuperLayout::of(format.kind).bytes());
  switch (format.kind) {
    case PanelKind::kF32:
      bytes = columns * kPanelWidth * 4;
      break;
    case PanelKind::kF16:
    case PanelKind::kBF16:
      bytes = columns * kPanelWidth * 2;
      break;
    case PanelKind::kU4:
    case PanelKind::kU5:
    case PanelKind::kU6:
    case PanelKind::kU8:
      bytes = columns / kQuantBlock * block_bytes(format);
      break;
  }
  return static_cast<size_t>((bytes + 63) / 64 * 64);
}

void store_scale(const PanelFormat& format, std::byte* scales, int64_t index, float value) {
  if (format.scales == ScaleKind::kF16) {
    reinterpret_cast<uint16_t*>(scales)[index] = f16_from_float(value);
  } else {
    reinterpret_cast<float*>(scales)[index] = value;
  }
}

float load_scale(const PanelFormat& format, const std::byte* scales, int64_t index) {
  return format.scales == ScaleKind::kF16
             ? float_from_f16(reinterpret_cast<const uint16_t*>(scales)[index])
             : reinterpret_cast<const float*>(scales)[index];
}

// Where the pieces of one block of a quantised panel lie.
struct PanelBlock {
  uint8_t* quants;
  std::byte* scales;
  std::byte* minima;

  PanelBlock(const PanelFormat& format, std::byte* panel, int64_t block) {
    std::byte* start = panel + block * block_bytes(format);
    quants = reinterpret_cast<uint8_t*>(start);
    scales = start + quant_block_bytes(format.kind);
    minima = scales + kPanelWidth * scale_bytes(format.scales);
  }
};

void store_block(const PanelFormat& format, const PanelBlock& to, int lane, const QuantBlock& in) {
  store_scale(format, to.scales, lane, in.scale);
  if (format.has_minimum) store_scale(format, to.minima, lane, in.minimum);
  uint8_t* quants = to.quants + 4 * lane;
  if (format.kind == PanelKind::kU8) {
    for (int k = 0; k < kQuantBlock; k += 4)
      std::memcpy(quants + k * kPanelWidth, in.quants + k, 4);
    return;
  }
  for (int k = 0; k < kQuantBlock; k += 8, quants += 4 * kPanelWidth) {
    for (int i = 0; i < 4; ++i) {
      quants[i] = static_cast<uint8_t>(in.quants[k + i] | in.quants[k + 4 + i] << 4);
    }
  }
}

// False when a scale is not finite.
bool pack_quants(const Segment& segment, std::span<const SourceRow> rows, std::byte* panel) {
  bool is_finite = true;
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    for (int64_t b = 0; b < segment.columns / kQuantBlock; ++b) {
      const QuantBlock block = read_block(rows[lane].dtype, rows[lane].bytes, b);
      const float scales[] = {block.scale, block.minimum};
      is_finite = is_finite && all_finite(scales);
      store_block(segment.format, PanelBlock(segment.format, panel, b), static_cast<int>(lane),
                  block);
    }
  }
  return is_finite;
}

// False when a unit of scales is not finite.
bool pack_supers(const Segment& segment, std::span<const SourceRow> rows, std::byte* panel) {
  std::memset(panel, 0, segment.panel_bytes);
  const int64_t step = SuperLayout::of(segment.format.kind).bytes();
  bool is_finite = true;
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    const DType dtype = rows[lane].dtype;
    for (int64_t i = 0; i < segment.columns / kSuperColumns; ++i) {
      const std::byte* super = rows[lane].bytes + i * traits(dtype).block_bytes;
      is_finite &= store_super_block(dtype, super, static_cast<int>(lane), panel + i * step);
    }
  }
  return is_finite;
}

// 16-bit rows keep their bits.
bool pack_halves(const Segment& segment, std::span<const SourceRow> rows, std::byte* panel) {
  const uint16_t exponent = segment.format.kind == PanelKind::kF16 ? 0x7c00 : 0x7f80;
  auto* to = reinterpret_cast<uint16_t*>(panel);
  bool is_finite = true;
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    for (int64_t k = 0; k < segment.columns; ++k) {
      uint16_t bits = 0;
      std::memcpy(&bits, rows[lane].bytes + 2 * k, sizeof bits);
      is_finite = is_finite && (bits & exponent) != exponent;
      to[k * kPanelWidth + static_cast<int64_t>(lane)] = bits;
    }
  }
  return is_finite;
}

bool pack_floats(const Segment& segment, std::span<const SourceRow> rows, std::byte* panel) {
  auto* to = reinterpret_cast<float*>(panel);
  std::vector<float> row(static_cast<size_t>(segment.columns));
  bool is_finite = true;
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    const SourceRow& source = rows[lane];
    dequantize(source.dtype, {source.bytes, bytes_of(source.dtype, segment.columns)}, row);
    is_finite = is_finite && all_finite(row);
    for (size_t k = 0; k < row.size(); ++k) to[k * kPanelWidth + lane] = row[k];
  }
  return is_finite;
}

bool pack_panel(const Segment& segment, std::span<const SourceRow> rows, std::byte* panel) {
  if (segment.format.scales == ScaleKind::kCodes) return pack_supers(segment, rows, panel);
  switch (segment.format.kind) {
    case PanelKind::kU4:
    case PanelKind::kU5:
    case PanelKind::kU6:
    case PanelKind::kU8:
      return pack_quants(segment, rows, panel);
    case PanelKind::kF16:
    case PanelKind::kBF16:
      return pack_halves(segment, rows, panel);
    case PanelKind::kF32:
      return pack_floats(segment, rows, panel);
  }
  return false;
}

std::string_view name_of(PanelKind kind) {
  switch (kind) {
    case PanelKind::kF32:
      return "f32";
    case PanelKind::kF16:
      return "f16";
    case PanelKind::kBF16:
      return "bf16";
    case PanelKind::kU4:
      return "q4";
    case PanelKind::kU5:
      return "q5";
    case PanelKind::kU6:
      return "q6";
    case PanelKind::kU8:
      return "q8";
  }
  return "";
}

void read_quants(const Segment& segment, std::byte* panel, int64_t lane, float* out) {
  const PanelFormat& format = segment.format;
  for (int64_t b = 0; b < segment.columns / kQuantBlock; ++b, out += kQuantBlock) {
    const PanelBlock from(format, panel, b);
    const float scale = load_scale(format, from.scales, lane);
    const float minimum = format.has_minimum ? load_scale(format, from.minima, lane) : 0.0f;
    const uint8_t* quants = from.quants + 4 * lane;
    for (int64_t k = 0; k < kQuantBlock; ++k) {
      const int quant = format.kind == PanelKind::kU8
                            ? quants[k / 4 * 4 * kPanelWidth + k % 4]
                            : quants[k / 8 * 4 * kPanelWidth + k % 4] >> (k % 8 / 4 * 4) & 15;
      out[k] = static_cast<float>(quant - format.zero_point) * scale + minimum;
    }
  }
}

void read_supers(const Segment& segment, const std::byte* panel, int64_t lane, float* out) {
  const int64_t step = SuperLayout::of(segment.format.kind).bytes();
  for (int64_t i = 0; i < segment.columns / kSuperColumns; ++i) {
    read_super_block(segment.format, panel + i * step, static_cast<int>(lane),
                     out + i * kSuperColumns);
  }
}

void read_floats(const Segment& segment, const std::byte* panel, int64_t lane, float* out) {
  for (int64_t k = 0; k < segment.columns; ++k) {
    const int64_t index = k * kPanelWidth + lane;
    switch (segment.format.kind) {
      case PanelKind::kF16:
        out[k] = float_from_f16(reinterpret_cast<const uint16_t*>(panel)[index]);
        break;
      case PanelKind::kBF16:
        out[k] = float_from_bf16(reinterpret_cast<const uint16_t*>(panel)[index]);
        break;
      default:
        out[k] = reinterpret_cast<const float*>(panel)[index];
    }
  }
}

}  // namespace

PackedMatrix::PackedMatrix(WeightArena& arena,
                           ThreadPool& pool,
                           std::span<const MatrixPart> parts,
                           Precision precision)
    : WeightMatrix(total_rows(parts), columns_of(parts)) {
  auto format_of = [&](const MatrixPart& part) {
    return precision == Precision::kExact ? PanelFormat{} : packed_format(part.dtype);
  };
  for (size_t begin = 0; begin < parts.size();) {
    const PanelFormat format = format_of(parts[begin]);
    size_t end = begin + 1;
    while (end < parts.size() && format_of(parts[end]) == format) ++end;
    add_segment(arena, pool, parts.subspan(begin, end - begin), format);
    if (precision == Precision::kFine && is_quantized(format.kind))
      segments_.back().input_parts = 2;
    begin = end;
  }
}

void PackedMatrix::add_segment(WeightArena& arena,
                               ThreadPool& pool,
                               std::span<const MatrixPart> parts,
                               const PanelFormat& format) {
  const std::vector<SourceRow> rows = rows_of(parts);
  Segment segment{.format = format,
                  .num_rows = std::ssize(rows),
                  .columns = columns(),
                  .panel_bytes = panel_bytes(format, columns())};
  if (!segments_.empty())
    segment.first_row = segments_.back().first_row + segments_.back().num_rows;
  WeightMemory memory = arena.take(static_cast<size_t>(segment.num_panels()) * segment.panel_bytes);
  std::byte* panels = memory.data();
  std::atomic<int64_t> bad_panel{-1};
  pool.for_each(segment.num_panels(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      const auto first = static_cast<size_t>(p) * kPanelWidth;
      const auto count = std::min<size_t>(kPanelWidth, rows.size() - first);
      std::byte* panel = panels + static_cast<size_t>(p) * segment.panel_bytes;
      if (!pack_panel(segment, std::span(rows).subspan(first, count), panel)) bad_panel = p;
    }
  });
  if (bad_panel >= 0) {
    const int64_t row = segment.first_row + bad_panel * kPanelWidth;
    throw Failure(
        ErrorCode::kDataCorrupt,
        fmt::format("weights: a value in rows {} to {} is infinite or not a number; all must "
                    "be finite",
                    row, row + kPanelWidth - 1));
  }
  segment.panels = panels;
  segments_.push_back(segment);
  memory_.push_back(std::move(memory));
}

size_t PackedMatrix::bytes() const {
  size_t bytes = 0;
  for (const WeightMemory& memory : memory_) bytes += memory.bytes();
  return bytes;
}

std::string PackedMatrix::format() const {
  std::string names;
  for (const Segment& segment : segments_) {
    const std::string_view name = name_of(segment.format.kind);
    if (names.find(name) == std::string::npos) names.append(names.empty() ? "" : "+").append(name);
  }
  return names;
}

void PackedMatrix::read_row(int64_t row, float* out) const {
  check(row >= 0 && row < rows(), "row inside the matrix");
  for (const Segment& segment : segments_) {
    const int64_t index = row - segment.first_row;
    if (index >= segment.num_rows) continue;
    std::byte* panel = const_cast<std::byte*>(segment.panels) +
                       static_cast<size_t>(index / kPanelWidth) * segment.panel_bytes;
    if (segment.format.scales == ScaleKind::kCodes)
      return read_supers(segment, panel, index % kPanelWidth, out);
    if (is_quantized(segment.format.kind))
      return read_quants(segment, panel, index % kPanelWidth, out);
    return read_floats(segment, panel, index % kPanelWidth, out);
  }
}

}  // namespace droidspeak::cpu
