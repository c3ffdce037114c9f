#include "profiler/fit_rows.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

// One head of one block: [kBlockTokens, head_dim] as stored.
void read_head(const KvLayout& layout,
               const std::byte* data,
               const float* scales,
               std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    switch (layout.dtype) {
      case DType::kF32:
        std::memcpy(&out[i], data + 4 * i, 4);
        break;
      case DType::kI8:
        out[i] = scales[i / static_cast<size_t>(layout.head_dim)] *
                 static_cast<float>(static_cast<int8_t>(data[i]));
        break;
      default: {
        uint16_t bits = 0;
        std::memcpy(&bits, data + 2 * i, 2);
        out[i] = layout.dtype == DType::kF16 ? float_from_f16(bits) : float_from_bf16(bits);
      }
    }
  }
}

// Turns a head's row back by its position's angles. Tables of scaled RoPE are not of unit length.
void unrotate(std::span<const float> table, int32_t rotary_dim, float* row) {
  int32_t half = rotary_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    float c = table[static_cast<size_t>(i)];
    float s = table[static_cast<size_t>(half + i)];
    float norm = 1 / (c * c + s * s);
    float x = row[i];
    float y = row[half + i];
    row[i] = (x * c + y * s) * norm;
    row[half + i] = (y * c - x * s) * norm;
  }
}

}  // namespace

Columns gather_kv(const KvRowSource& source,
                  int32_t layer,
                  const BlockTable& table,
                  int32_t tokens) {
  const KvLayout& layout = source.kv.layout();
  int64_t kv_columns = int64_t{layout.num_kv_heads} * layout.head_dim;
  Columns out(2 * kv_columns, tokens);
  auto lane = source.ops.device().make_copy_lane();
  std::vector<std::byte> bytes(layout.layer_bytes());
  std::vector<float> head_rows(static_cast<size_t>(kBlockTokens * layout.head_dim));
  source.ops.device().synchronize();
  size_t head_bytes = layout.half_bytes() / static_cast<size_t>(layout.num_kv_heads);
  for (int32_t first = 0; first < tokens; first += kBlockTokens) {
    source.kv.save(*lane, layer, table.blocks()[static_cast<size_t>(first / kBlockTokens)], bytes);
    lane->synchronize();
    const auto* scales = reinterpret_cast<const float*>(bytes.data() + 2 * layout.half_bytes());
    for (int32_t head = 0; head < 2 * layout.num_kv_heads; ++head) {
      read_head(layout, bytes.data() + static_cast<size_t>(head) * head_bytes,
                scales + head * kBlockTokens, head_rows);
      for (int32_t token = 0; token < kBlockTokens; ++token) {
        float* row = head_rows.data() + token * layout.head_dim;
        auto at = static_cast<size_t>(first + token) * static_cast<size_t>(source.rotary_dim);
        bool is_key = head < layout.num_kv_heads;
        if (is_key)
          unrotate(source.rope.subspan(at, static_cast<size_t>(source.rotary_dim)),
                   source.rotary_dim, row);
        for (int32_t i = 0; i < layout.head_dim; ++i)
          out.column(int64_t{head} * layout.head_dim + i)[first + token] = row[i];
      }
    }
  }
  return out;
}

Columns gather_hidden(Ops& ops, TensorView hidden) {
  Tensor plain;
  if (hidden.dtype != DType::kF32) {
    ops.copy(hidden, plain.reshape(ops.device(), DType::kF32, hidden.rows, hidden.columns));
    hidden = plain.view();
  }
  std::vector<float> rows(static_cast<size_t>(hidden.rows * hidden.columns));
  ops.device().to_host(rows.data(), hidden.data, rows.size() * sizeof(float));
  Columns out(hidden.columns, hidden.rows);
  constexpr int64_t kTile = 32;
  for (int64_t first = 0; first < hidden.rows; first += kTile) {
    for (int64_t i = 0; i < hidden.columns; ++i) {
      for (int64_t t = first; t < std::min(first + kTile, hidden.rows); ++t) {
        out.column(i)[t] = rows[static_cast<size_t>(t * hidden.columns + i)];
      }
    }
  }
  return out;
}

void accumulate(Ops& ops, const Columns& sender, const Columns& receiver, NormalEquations& sums) {
  check(sender.columns == receiver.columns && sender.tokens == receiver.tokens &&
            sender.columns == sums.columns,
        "rows of the same tokens");
  int64_t n = sender.columns;
  int64_t tokens = sender.tokens;
  Columns difference(n, tokens);
  for (int64_t i = 0; i < n; ++i) {
    const float* x = sender.column(i);
    const float* y = receiver.column(i);
    float* d = difference.column(i);
    double x_sum = 0;
    double d_sum = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      d[t] = y[t] - x[t];
      x_sum += static_cast<double>(x[t]);
      d_sum += static_cast<double>(d[t]);
    }
    sums.input_sum[static_cast<size_t>(i)] += x_sum;
    sums.difference_sum[static_cast<size_t>(i)] += d_sum;
    if (!std::isfinite(x_sum) || !std::isfinite(d_sum)) {
      throw Failure(ErrorCode::kDataCorrupt, "a model computes values that are not finite");
    }
  }
  // [x | d]^T as weights [2 n, tokens], x^T as rows [n, tokens]: one matrix product gives both
  // sums.
  MatrixPart parts[2] = {{DType::kF32, n, tokens, std::as_bytes(std::span(sender.values)), {}},
                         {DType::kF32, n, tokens, std::as_bytes(std::span(difference.values)), {}}};
  std::unique_ptr<WeightMatrix> weights = ops.pack(parts, Precision::kExact);
  Tensor rows(ops.device(), DType::kF32, n, tokens);
  Tensor out(ops.device(), DType::kF32, n, 2 * n);
  ops.device().to_device(rows.view().data, sender.values.data(),
                         sender.values.size() * sizeof(float));
  ops.linear(*weights, rows.view(), out.view());
  std::vector<float> products(sums.products.size());
  ops.device().to_host(products.data(), out.view().data, products.size() * sizeof(float));
  for (size_t i = 0; i < products.size(); ++i) sums.products[i] += products[i];
  sums.count += static_cast<double>(tokens);
}

}  // namespace droidspeak
