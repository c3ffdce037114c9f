// Slow, obvious versions of the operations in double precision, and random input for them. Tests
// compare every kernel of every instruction set with these.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "device/device.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/ops.h"

namespace droidspeak::cpu {

using Floats = std::vector<float>;

Floats random_floats(std::mt19937& random, int64_t count, float deviation = 1);
// A matrix as a file holds it: random quants under scales of ordinary size.
std::vector<std::byte> random_matrix(std::mt19937& random,
                                     DType dtype,
                                     int64_t rows,
                                     int64_t columns);
Floats dequantized(DType dtype, std::span<const std::byte> bytes, int64_t elements);

TensorView view_of(Floats& values, int64_t rows, int64_t columns);

// Every value through int8 with one scale for 32, as the kernels do with activations; kFine keeps
// 1/128 of an int8 step.
Floats through_int8(const Floats& rows, Precision precision);

// Every row through 8-bit floats (E4M3) by one scale, a 448th of its largest magnitude, as
// DType::kFp8 means it; rows below 1e-35 become zeros.
Floats through_fp8(const Floats& rows, int64_t columns);

// in [rows, columns] * weights [outputs, columns]^T
Floats multiply(const Floats& in, const Floats& weights, int64_t columns);

// What a gated FFN makes of a gate and of up.
double gated(Activation activation, double gate, double up);

// Rows of one sequence; q, k and v rows hold all their heads.
struct AttentionCase {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;
  int32_t sliding_window = 0;
  float soft_cap = 0;
  Floats sinks = {};  // empty: none
  Precision precision = Precision::kExact;

  // As long as this lives.
  AttentionOptions options() const {
    const float* sink = sinks.empty() ? nullptr : sinks.data();
    return {num_heads, scale, sliding_window, soft_cap, sink, precision};
  }
};

// Query rows at these positions over the keys [0, number of k rows).
Floats attention(const AttentionCase& c,
                 const Floats& q,
                 const Floats& k,
                 const Floats& v,
                 std::span<const int32_t> positions);
// Attention weights of one query row on the keys [0, position], summed over the heads.
Floats attention_mass(const AttentionCase& c, const Floats& q, const Floats& k, int32_t position);

// [first, first + step, ...).
std::vector<int32_t> positions_from(int32_t first, int32_t count, int32_t step = 1);

struct RopeReference {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  const Floats& table;
  Floats q_norm = {};  // empty: none
  Floats k_norm = {};
};

// Rows [q | k | v] with every q and k head normed, then rotated.
Floats rotated(Floats qkv, const RopeReference& rope, std::span<const SequenceSlice> slices);

// Ops of every instruction set of this machine; the portable one first.
struct NamedOps {
  InstructionSet set;
  std::unique_ptr<Ops> ops;
};

std::vector<NamedOps> all_ops(Device& device, int num_threads);

// Fails when an element is further than `tolerance` times the largest expected magnitude away.
void expect_near(std::span<const float> actual, std::span<const float> expected, float tolerance);

}  // namespace droidspeak::cpu
