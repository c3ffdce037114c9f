#include "ops/cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "ops/cpu/kernels.h"
#include "tensor/dequantize.h"
#include "tensor/half.h"

namespace droidspeak::cpu {

Floats random_floats(std::mt19937& random, int64_t count, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  Floats values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<std::byte> random_matrix(std::mt19937& random,
                                     DType dtype,
                                     int64_t rows,
                                     int64_t columns) {
  std::vector<std::byte> bytes(bytes_of(dtype, rows * columns));
  std::uniform_real_distribution<float> scale(0.001f, 0.01f);
  auto store_f16 = [&](size_t at, float value) {
    const uint16_t bits = f16_from_float(value);
    std::memcpy(bytes.data() + at, &bits, sizeof bits);
  };
  if (!is_block_format(dtype)) {
    const Floats values = random_floats(random, rows * columns);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half =
          dtype == DType::kBF16 ? bf16_from_float(values[i]) : f16_from_float(values[i]);
      if (dtype == DType::kF32) std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      if (dtype != DType::kF32) std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
    return bytes;
  }
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const auto step = static_cast<size_t>(traits(dtype).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += step) {
    if (dtype == DType::kQ6_K) {
      store_f16(at + 208, scale(random) / 64);
      continue;
    }
    if (dtype == DType::kQ2_K) {
      store_f16(at + 80, scale(random));
      store_f16(at + 82, scale(random));
      continue;
    }
    if (dtype == DType::kQ3_K) {
      store_f16(at + 108, scale(random) / 16);
      continue;
    }
    if (dtype == DType::kMXFP4) {
      bytes[at] = static_cast<std::byte>(115 + random() % 8);
      continue;
    }
    if (dtype == DType::kAffine4 || dtype == DType::kAffine8) {
      const float scales[] = {scale(random), -8 * scale(random)};
      std::memcpy(bytes.data() + at, scales, sizeof scales);
      continue;
    }
    if (dtype == DType::kIQ4_NL || dtype == DType::kIQ4_XS) {
      store_f16(at, scale(random) / 64);
      continue;
    }
    store_f16(at, scale(random));
    const bool has_minimum =
        dtype != DType::kQ8_0 && dtype != DType::kQ4_0 && dtype != DType::kQ5_0;
    if (has_minimum) store_f16(at + 2, -8 * scale(random));
  }
  return bytes;
}

Floats dequantized(DType dtype, std::span<const std::byte> bytes, int64_t elements) {
  Floats values(static_cast<size_t>(elements));
  dequantize(dtype, bytes, values);
  return values;
}

TensorView view_of(Floats& values, int64_t rows, int64_t columns) {
  EXPECT_EQ(std::ssize(values), rows * columns);
  return {values.data(), DType::kF32, rows, columns, columns};
}

Floats through_int8(const Floats& rows, Precision precision) {
  Floats out(rows.size());
  for (size_t begin = 0; begin < rows.size(); begin += kQuantBlock) {
    float largest = 0;
    for (size_t i = begin; i < begin + kQuantBlock; ++i)
      largest = std::max(largest, std::abs(rows[i]));
    for (size_t i = begin; i < begin + kQuantBlock; ++i) {
      const float scaled = largest > 0 ? rows[i] * (127.0f / largest) : 0.0f;
      float quant = std::nearbyint(scaled);
      if (precision == Precision::kFine) quant += std::nearbyint((scaled - quant) * 128) / 128;
      out[i] = quant * (largest / 127.0f);
    }
  }
  return out;
}

Floats through_fp8(const Floats& rows, int64_t columns) {
  constexpr float kLargest = 448;
  Floats magnitudes;  // by code
  for (uint8_t code = 0; code < 127; ++code) magnitudes.push_back(float_from_e4m3(code));
  // Of two numbers that are as near the one with an even code.
  auto nearest = [&](float value) {
    const float magnitude = std::abs(value);
    size_t best = 0;
    auto distance = [&](size_t code) { return std::abs(magnitudes[code] - magnitude); };
    for (size_t code = 1; code < magnitudes.size(); ++code) {
      const bool is_even_tie = distance(code) == distance(best) && code % 2 == 0;
      if (distance(code) < distance(best) || is_even_tie) best = code;
    }
    return std::copysign(magnitudes[best], value);
  };
  Floats out;
  for (size_t begin = 0; begin < rows.size(); begin += static_cast<size_t>(columns)) {
    const auto row = std::span(rows).subspan(begin, static_cast<size_t>(columns));
    float largest = 0;
    for (float value : row) largest = std::max(largest, std::abs(value));
    const float inverse = largest >= 1e-35f ? kLargest / largest : 0;
    for (float value : row) out.push_back(nearest(value * inverse) * (largest / kLargest));
  }
  return out;
}

Floats multiply(const Floats& in, const Floats& weights, int64_t columns) {
  const int64_t rows = std::ssize(in) / columns;
  const int64_t outputs = std::ssize(weights) / columns;
  Floats out;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < outputs; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < columns; ++k) {
        sum += static_cast<double>(in[static_cast<size_t>(i * columns + k)]) *
               static_cast<double>(weights[static_cast<size_t>(j * columns + k)]);
      }
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

double gated(Activation activation, double gate, double up) {
  switch (activation) {
    case Activation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::kGelu:
      return 0.5 * gate *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
    case Activation::kClampedSwish:
      gate = std::min(gate, 7.0);
      return gate / (1 + std::exp(-1.702 * gate)) * (std::clamp(up, -7.0, 7.0) + 1);
  }
  return 0;
}

namespace {

// Of one query head on the keys [first, position].
std::vector<double> attention_weights(
    const AttentionCase& c, const float* query, const Floats& k, int64_t head, int64_t position) {
  const int64_t kv_columns = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  const int64_t first =
      c.sliding_window > 0 ? std::max<int64_t>(0, position - c.sliding_window + 1) : 0;
  const int64_t column = head / (c.num_heads / c.num_kv_heads) * c.head_dim;
  std::vector<double> weights(static_cast<size_t>(position + 1), 0.0);
  const auto seen = std::span(weights).subspan(static_cast<size_t>(first));
  for (int64_t key = first; key <= position; ++key) {
    double dot = 0;
    for (int64_t e = 0; e < c.head_dim; ++e) {
      dot += static_cast<double>(query[e]) *
             static_cast<double>(k[static_cast<size_t>(key * kv_columns + column + e)]);
    }
    double score = dot * static_cast<double>(c.scale);
    const auto cap = static_cast<double>(c.soft_cap);
    if (cap > 0) score = cap * std::tanh(score / cap);
    weights[static_cast<size_t>(key)] = score;
  }
  double largest = *std::ranges::max_element(seen);
  double total = 0;
  if (!c.sinks.empty()) {
    const auto sink = static_cast<double>(c.sinks[static_cast<size_t>(head)]);
    largest = std::max(largest, sink);
    total = std::exp(sink - largest);
  }
  for (double& weight : seen) total += weight = std::exp(weight - largest);
  for (double& weight : seen) weight /= total;
  return weights;
}

}  // namespace

Floats attention(const AttentionCase& c,
                 const Floats& q,
                 const Floats& k,
                 const Floats& v,
                 std::span<const int32_t> positions) {
  const int64_t q_columns = static_cast<int64_t>(c.num_heads) * c.head_dim;
  const int64_t kv_columns = static_cast<int64_t>(c.num_kv_heads) * c.head_dim;
  Floats out(q.size());
  for (int64_t row = 0; row < std::ssize(positions); ++row) {
    for (int64_t h = 0; h < c.num_heads; ++h) {
      const std::vector<double> weights =
          attention_weights(c, q.data() + row * q_columns + h * c.head_dim, k, h,
                            positions[static_cast<size_t>(row)]);
      const int64_t head = h / (c.num_heads / c.num_kv_heads) * c.head_dim;
      for (int64_t e = 0; e < c.head_dim; ++e) {
        double sum = 0;
        for (int64_t key = 0; key < std::ssize(weights); ++key) {
          sum += weights[static_cast<size_t>(key)] *
                 static_cast<double>(v[static_cast<size_t>(key * kv_columns + head + e)]);
        }
        out[static_cast<size_t>(row * q_columns + h * c.head_dim + e)] = static_cast<float>(sum);
      }
    }
  }
  return out;
}

Floats attention_mass(const AttentionCase& c, const Floats& q, const Floats& k, int32_t position) {
  std::vector<double> mass(static_cast<size_t>(position) + 1, 0.0);
  for (int64_t h = 0; h < c.num_heads; ++h) {
    const std::vector<double> weights =
        attention_weights(c, q.data() + h * c.head_dim, k, h, position);
    for (size_t key = 0; key < mass.size(); ++key) mass[key] += weights[key];
  }
  return {mass.begin(), mass.end()};
}

std::vector<int32_t> positions_from(int32_t first, int32_t count, int32_t step) {
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < count; ++i) positions.push_back(first + i * step);
  return positions;
}

Floats rotated(Floats qkv, const RopeReference& rope, std::span<const SequenceSlice> slices) {
  const int32_t heads = rope.num_heads + 2 * rope.num_kv_heads;
  const int32_t half = rope.rotary_dim / 2;
  auto turn = [&](float* head, const Floats& norm, const float* angles) {
    std::vector<double> x(head, head + rope.head_dim);
    if (!norm.empty()) {
      double squares = 0;
      for (double value : x) squares += value * value;
      const double factor = 1 / std::sqrt(squares / rope.head_dim + 1e-6);
      for (size_t i = 0; i < x.size(); ++i) x[i] *= factor * static_cast<double>(norm[i]);
    }
    std::ranges::transform(x, head, [](double value) { return static_cast<float>(value); });
    for (int32_t i = 0; i < half; ++i) {
      const double a = x[static_cast<size_t>(i)];
      const double b = x[static_cast<size_t>(i + half)];
      const double cosine = static_cast<double>(angles[i]);
      const double sine = static_cast<double>(angles[i + half]);
      head[i] = static_cast<float>(a * cosine - b * sine);
      head[i + half] = static_cast<float>(b * cosine + a * sine);
    }
  };
  for (const SequenceSlice& slice : slices) {
    for (int32_t i = 0; i < slice.num_rows; ++i) {
      float* row = qkv.data() + (slice.first_row + i) * heads * rope.head_dim;
      const float* angles = rope.table.data() + slice.position(i) * rope.rotary_dim;
      for (int32_t h = 0; h < rope.num_heads + rope.num_kv_heads; ++h)
        turn(row + h * rope.head_dim, h < rope.num_heads ? rope.q_norm : rope.k_norm, angles);
    }
  }
  return qkv;
}

std::vector<NamedOps> all_ops(Device& device, int num_threads) {
  std::vector<NamedOps> all;
  for (InstructionSet set : available_instruction_sets()) {
    all.push_back({set, make_ops(device, {.num_threads = num_threads, .instruction_set = set})});
  }
  return all;
}

void expect_near(std::span<const float> actual, std::span<const float> expected, float tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  float largest = 0;
  for (float value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::abs(actual[i] - expected[i]), tolerance * largest)
        << "element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

}  // namespace droidspeak::cpu
