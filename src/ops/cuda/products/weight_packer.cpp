#include "ops/cuda/products/weight_packer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/quantized/strip_packer.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak::cuda {
namespace {

constexpr size_t kPieceBytes = size_t{16} << 20;
constexpr int64_t kChunkElements = 1 << 16;  // a worker's share

std::vector<SourceRow> rows_of(std::span<const MatrixPart> parts) {
  std::vector<SourceRow> rows;
  for (const MatrixPart& part : parts) {
    check(part.columns == parts.front().columns, "parts of one width");
    check(part.row_order.empty() || std::ssize(part.row_order) == part.rows,
          "an order for every row");
    const size_t row_bytes = bytes_of(part.dtype, part.columns);
    for (int64_t i = 0; i < part.rows; ++i) {
      const int64_t row = part.row_order.empty() ? i : part.row_order[static_cast<size_t>(i)];
      rows.push_back(
          {part.dtype, part.bytes.subspan(static_cast<size_t>(row) * row_bytes, row_bytes)});
    }
  }
  return rows;
}

bool is_finite_bf16(std::span<const std::byte> bytes) {
  constexpr uint16_t exponent = 0x7f80;
  bool is_finite = true;
  for (size_t i = 0; i < bytes.size(); i += 2) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    is_finite &= (bits & exponent) != exponent;
  }
  return is_finite;
}

// False when a value is not finite. `values` is scratch of a row's size.
bool convert_row(const SourceRow& row, DType dtype, std::span<float> values, std::byte* out) {
  if (row.dtype == DType::kBF16 && dtype == DType::kBF16) {
    std::memcpy(out, row.bytes.data(), row.bytes.size());
    return is_finite_bf16(row.bytes);
  }
  dequantize(row.dtype, row.bytes, values);
  if (dtype == DType::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
  } else {
    auto* halves = reinterpret_cast<uint16_t*>(out);
    for (size_t i = 0; i < values.size(); ++i) halves[i] = bf16_from_float(values[i]);
  }
  return all_finite(values);
}

[[noreturn]] void refuse_row(int64_t row) {
  throw Failure(
      ErrorCode::kDataCorrupt,
      fmt::format("weights: a value in row {} is infinite or not a number; all must be finite",
                  row));
}

// Codes of a row side by side, and its scale. False when a value is not finite.
bool split_fp8_row(const SourceRow& row, std::byte* codes, float& scale) {
  const DTypeTraits& block = traits(row.dtype);
  const auto step = static_cast<size_t>(block.block_bytes);
  const auto elements = static_cast<size_t>(block.block_elements);
  std::memcpy(&scale, row.bytes.data(), sizeof scale);
  bool is_finite = all_finite({&scale, 1});
  for (size_t at = 0; at < row.bytes.size(); at += step, codes += elements) {
    check(std::memcmp(row.bytes.data() + at, &scale, sizeof scale) == 0, "a scale for a row");
    std::memcpy(codes, row.bytes.data() + at + sizeof scale, elements);
    for (size_t i = 0; i < elements; ++i)
      is_finite &= (std::to_integer<int>(codes[i]) & 0x7f) != 0x7f;
  }
  return is_finite;
}

// Planes of the strips of a piece, one behind the other.
struct PiecePlanes {
  StripPlanes bytes;
  std::byte* low;

  std::byte* high() const { return low + bytes.low; }

  std::byte* scales() const { return high() + bytes.high; }

  std::byte* supers() const { return scales() + bytes.scales; }
};

}  // namespace

WeightPacker::Piece& WeightPacker::next_piece(size_t bytes) {
  Piece& piece = pieces_[next_];
  next_ = (next_ + 1) % pieces_.size();
  piece.is_copied.wait();
  if (bytes > piece.host.bytes()) piece.host = device_.allocate_host(std::max(bytes, kPieceBytes));
  return piece;
}

std::unique_ptr<CudaMatrix> WeightPacker::pack(std::span<const MatrixPart> parts, DType dtype) {
  const std::vector<SourceRow> rows = rows_of(parts);
  const int64_t columns = parts.front().columns;
  auto matrix = std::make_unique<CudaMatrix>(device_, dtype, std::ssize(rows), columns);
  const size_t row_bytes = bytes_of(dtype, columns);
  const auto piece_rows =
      std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / std::max<size_t>(1, row_bytes)));
  const int64_t grain = std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, columns));
  std::atomic<int64_t> bad_row{-1};
  for (int64_t first = 0; first < std::ssize(rows); first += piece_rows) {
    const int64_t count = std::min(piece_rows, std::ssize(rows) - first);
    Piece& piece = next_piece(static_cast<size_t>(count) * row_bytes);
    auto* host = static_cast<std::byte*>(piece.host.data());
    pool_.for_each(count, grain, [&](int64_t begin, int64_t end, int) {
      std::vector<float> values(static_cast<size_t>(columns));
      for (int64_t i = begin; i < end; ++i) {
        std::byte* out = host + static_cast<size_t>(i) * row_bytes;
        if (!convert_row(rows[static_cast<size_t>(first + i)], dtype, values, out))
          bad_row = first + i;
      }
    });
    device_.to_device(matrix->view().row_range(first, first + count).data, host,
                      static_cast<size_t>(count) * row_bytes);
    piece.is_copied.record(device_.stream());
  }
  if (bad_row >= 0) refuse_row(bad_row);
  return matrix;
}

std::unique_ptr<CudaMatrix> WeightPacker::pack_fp8(std::span<const MatrixPart> parts) {
  const std::vector<SourceRow> rows = rows_of(parts);
  const int64_t columns = parts.front().columns;
  auto matrix = CudaMatrix::of_fp8(device_, std::ssize(rows), columns);
  const Fp8Rows to = matrix->fp8();
  const auto row_bytes = static_cast<size_t>(columns);
  const auto piece_rows =
      std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / (row_bytes + sizeof(float))));
  const int64_t grain = std::max<int64_t>(1, kChunkElements / columns);
  std::atomic<int64_t> bad_row{-1};
  for (int64_t first = 0; first < std::ssize(rows); first += piece_rows) {
    const int64_t count = std::min(piece_rows, std::ssize(rows) - first);
    const size_t scale_bytes = static_cast<size_t>(count) * sizeof(float);
    Piece& piece = next_piece(scale_bytes + static_cast<size_t>(count) * row_bytes);
    auto* scales = static_cast<float*>(piece.host.data());
    auto* codes = static_cast<std::byte*>(piece.host.data()) + scale_bytes;
    pool_.for_each(count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        if (!split_fp8_row(rows[static_cast<size_t>(first + i)],
                           codes + static_cast<size_t>(i) * row_bytes, scales[i]))
          bad_row = first + i;
      }
    });
    device_.to_device(const_cast<float*>(to.scales) + first, scales, scale_bytes);
    device_.to_device(const_cast<uint8_t*>(to.codes) + first * columns, codes,
                      static_cast<size_t>(count) * row_bytes);
    piece.is_copied.record(device_.stream());
  }
  if (bad_row >= 0) refuse_row(bad_row);
  return matrix;
}

std::unique_ptr<CudaMatrix> WeightPacker::pack_strips(std::span<const MatrixPart> parts) {
  const std::vector<SourceRow> rows = rows_of(parts);
  auto matrix = std::make_unique<CudaMatrix>(device_, stacks_of(parts));
  for (const StripStack& stack : matrix->stacks()) {
    const auto first = static_cast<size_t>(stack.first_row);
    const int64_t bad_row =
        fill_strips(stack, std::span(rows).subspan(first, static_cast<size_t>(stack.shape.rows)));
    if (bad_row >= 0) refuse_row(stack.first_row + bad_row);
  }
  return matrix;
}

int64_t WeightPacker::fill_strips(const StripStack& stack, std::span<const SourceRow> rows) {
  const StripShape& shape = stack.shape;
  const StripPlanes each = shape.bytes_of_strips(1);
  const auto piece_strips =
      std::max<int64_t>(1, static_cast<int64_t>(kPieceBytes / std::max<size_t>(1, each.total())));
  const int64_t grain =
      std::max<int64_t>(1, kChunkElements / std::max<int64_t>(1, kStripRows * shape.columns));
  const int64_t num_strips = (shape.rows + kStripRows - 1) / kStripRows;  // that have rows
  std::atomic<int64_t> bad_row{-1};
  for (int64_t first = 0; first < num_strips; first += piece_strips) {
    const int64_t count = std::min(piece_strips, num_strips - first);
    const StripPlanes bytes = shape.bytes_of_strips(count);
    Piece& piece = next_piece(bytes.total());
    const PiecePlanes planes{bytes, static_cast<std::byte*>(piece.host.data())};
    std::memset(planes.low, 0, bytes.total());
    pool_.for_each(count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin * kStripRows; row < end * kStripRows; ++row) {
        const int64_t of_stack = first * kStripRows + row;
        if (of_stack >= shape.rows) break;
        const auto strip = static_cast<size_t>(row / kStripRows);
        const StripTarget target{.low = planes.low + strip * each.low,
                                 .high = planes.high() + strip * each.high,
                                 .scales = planes.scales() + strip * each.scales,
                                 .supers = planes.supers() + strip * each.supers};
        if (!pack_strip_row(shape, rows[static_cast<size_t>(of_stack)].bytes.data(),
                            static_cast<int>(row % kStripRows), target))
          bad_row = of_stack;
      }
    });
    const auto at = static_cast<size_t>(first);
    device_.to_device(stack.low + at * each.low, planes.low, bytes.low);
    device_.to_device(stack.high + at * each.high, planes.high(), bytes.high);
    device_.to_device(stack.scales + at * each.scales, planes.scales(), bytes.scales);
    device_.to_device(stack.supers + at * each.supers, planes.supers(), bytes.supers);
    piece.is_copied.record(device_.stream());
  }
  return bad_row;
}

}  // namespace droidspeak::cuda
