// The operations a transformer needs, one implementation per device. All tensors lie in the memory
// of the ops' device; rows are tokens. Operations are queued in order; on the CPU they are done
// when the call returns. Used by one thread at a time. Preconditions (shapes, dtypes) are checked:
// breaking one is a bug of the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kv/kv_view.h"
#include "ops/sampling.h"
#include "tensor/tensor.h"

namespace droidspeak {

// How weights and activations are kept for linear().
enum class Precision {
  kFast,   // quantised weights stay packed; activations: CPU int8 per 32, CUDA bf16
  kFine,   // as kFast, but CPU activations become int8 twice: the value and what rounding it lost
  kExact,  // f32 weights and activations
};

// Part of a weight matrix as it lies in a file, host memory.
struct MatrixPart {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  std::span<const std::byte> bytes;
  std::span<const int32_t>
      row_order;  // row i of the part is file row row_order[i]; empty: as they lie
};

// A matrix [rows, columns] packed for linear() and embed() of one Ops. Opaque, immutable,
// shareable.
class WeightMatrix {
 public:
  WeightMatrix(int64_t rows, int64_t columns) : rows_(rows), columns_(columns) {}

  virtual ~WeightMatrix() = default;
  WeightMatrix(const WeightMatrix&) = delete;
  WeightMatrix& operator=(const WeightMatrix&) = delete;

  int64_t rows() const { return rows_; }

  int64_t columns() const { return columns_; }

  virtual size_t bytes() const = 0;
  virtual std::string format() const = 0;  // "q4", "q8", "f16", ...

  // Whether products round the other side to 8-bit floats, as DType::kFp8 asks for.
  virtual bool rounds_input() const { return false; }

 private:
  int64_t rows_;
  int64_t columns_;
};

enum class Accumulate { kOverwrite, kAdd };

// What a gated FFN makes of gate and up.
enum class Activation {
  kSilu,         // silu(gate) * up
  kGelu,         // gelu(gate) * up
  kClampedSwish  // gate at most 7, up within 7: gate * sigmoid(1.702 gate) * (up + 1)
};

inline constexpr float kSwishLimit = 7.0f;
inline constexpr float kSwishSlope = 1.702f;

// What rotate_and_store() needs besides the tensors. Layout of a qkv row:
// [num_heads * head_dim | num_kv_heads * head_dim | num_kv_heads * head_dim].
struct RopeOptions {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;         // first rotary_dim elements of a head rotate, half-split pairs
  const float* table = nullptr;   // device memory, [max_positions, rotary_dim]: cosines then sines
  float attention_factor = 1;     // that the table's numbers were multiplied by
  const float* q_norm = nullptr;  // [head_dim] f32 RMS norm weights before RoPE, or null
  const float* k_norm = nullptr;
  float norm_epsilon = 1e-6f;
};

struct AttentionOptions {
  int32_t num_heads = 0;
  float scale = 1;
  int32_t sliding_window = 0;  // a row sees only the last `sliding_window` positions; 0: all
  float soft_cap = 0;  // scaled scores become soft_cap * tanh(score / soft_cap); 0: they stay
  // [num_heads] device memory: the score of something more that every row of a head looks at, which
  // has no value; null: nothing.
  const float* sinks = nullptr;
  // On the CPU prompts may be multiplied as integers of 16 bits where it is not exact, unless K/V
  // is f32: off by less than what f16 rounds of K/V
  // (docs/decisions/030-pairs-of-16-bits-on-the-cpu.md).
  Precision precision = Precision::kExact;
};

// How the logits of a router choose experts for a row.
struct ExpertChoice {
  enum class Weights {
    kOfAll,     // softmax over all experts
    kOfChosen,  // softmax over the chosen ones
  };

  int32_t per_row = 0;
  Weights weights = Weights::kOfChosen;
};

// An FFN that rows can be sent to.
struct ExpertMatrices {
  const WeightMatrix* gate_up = nullptr;  // [2 * its width, columns]: rows of gate, up
  const WeightMatrix* down = nullptr;     // [columns, its width]
};

struct ExpertLayer {
  const WeightMatrix* router = nullptr;     // [experts, columns]
  std::span<const ExpertMatrices> experts;  // of one width
  ExpertChoice choice;
  Activation activation = Activation::kSilu;
};

// Low-rank correction of reused K/V or E while it is loaded: x += ((x - 0) A) B + bias on rows
// whose K part is first un-rotated and afterwards rotated again. See sharing/translation.h.
struct LowRankMap {
  const WeightMatrix* down = nullptr;  // [rank, columns]
  const WeightMatrix* up = nullptr;    // [columns, rank]
  const float* bias = nullptr;         // [columns] device memory, or null
};

// How one row of logits differs from a reference row.
struct RowDivergence {
  float kl = 0;  // KL(reference || row) in nats; not clamped, so rounding may leave it below zero
  int32_t reference_choice = 0;  // index of the largest value, the first one on ties
  int32_t choice = 0;
};

// A fit of y - x on x from sums of add_normal_equations(), which are added up.
struct LowRankProblem {
  std::vector<TensorView> sums;  // at most 8 of [n + 1, 2 n] f32, device memory
  double count = 0;              // rows in all of them
  double lambda = 0;             // ridge penalty, times each input's variance
  int32_t max_rank = 0;
};

// y - x is about difference_mean + (x - input_mean) down^T directions. Host memory; with the first
// r rows of both matrices it is the correction of rank r.
struct LowRankFit {
  int32_t rank = 0;                     // the lesser of max_rank and n
  std::vector<double> input_mean;       // [n]
  std::vector<double> difference_mean;  // [n]
  std::vector<double> down;             // [rank, n]: the weights projected on each direction
  std::vector<double> directions;       // [rank, n] orthonormal, most moved ones first
};

// Low-rank correction of one fused linear layer: out += (in * down^T) * up^T for each part.
struct LoraLinear {
  struct Part {
    std::unique_ptr<WeightMatrix> up;  // [part columns, rank], scaled by alpha / rank
    int32_t first_rank = 0;            // columns of the down product that belong to this part
    int32_t rank = 0;
    int32_t first_column = 0;  // where the part lies in the fused output
  };

  std::unique_ptr<WeightMatrix> down;  // [sum of ranks, in]; null: nothing adapted here
  std::vector<Part> parts;
};

// Rows [begin, end) of a batch and their correction, whose `down` is not null.
struct LoraRows {
  int64_t begin = 0;
  int64_t end = 0;
  const LoraLinear* lora = nullptr;
};

class Ops {
 public:
  virtual ~Ops() = default;

  virtual Device& device() = 0;
  virtual DType activation_dtype() const = 0;  // f32 on the CPU, bf16 on CUDA (f32 with kExact)

  // Largest head size that attention() takes.
  virtual int32_t max_head_dim() const { return 1024; }

  // Rows that a pass over the layers should have to keep the device busy.
  virtual int32_t prefill_rows() const = 0;

  // Whether pack() takes fp8. What cannot be multiplied like that becomes floats there.
  virtual bool takes_fp8() const { return false; }

  // Packs the parts stacked by rows. Throws Failure when a scale or value is not finite.
  virtual std::unique_ptr<WeightMatrix> pack(std::span<const MatrixPart> parts,
                                             Precision precision) = 0;

  // out[i] = table[tokens[i]]; tokens in host memory, every one inside the table.
  virtual void embed(const WeightMatrix& table,
                     std::span<const int32_t> tokens,
                     TensorView out) = 0;

  // The next product will be that of `in` with these weights: rows that the next rms_norm() or
  // gated_activation() writes, and that nothing changes before. A device may prepare them while
  // they are written.
  virtual void expect_product(const WeightMatrix& /*weights*/, TensorView /*in*/) {}

  // out (+)= in * weights^T (+ bias). bias: [weights.rows()] f32 device memory or null.
  virtual void linear(const WeightMatrix& weights,
                      TensorView in,
                      TensorView out,
                      Accumulate accumulate = Accumulate::kOverwrite,
                      const float* bias = nullptr) = 0;

  // Corrects disjoint ranges of rows of `out`, the product of `in`. low: scratch of in's dtype,
  // [in.rows, at least the sum of ranks of every correction].
  virtual void add_lora(std::span<const LoraRows> ranges,
                        TensorView in,
                        TensorView low,
                        TensorView out);

  // out = in / rms(in) * weight; in == out is allowed. weight: [columns] f32 device memory.
  virtual void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) = 0;

  // out[i] of the gate in[i, :n] and of up in[i, n:], n = out.columns.
  virtual void gated_activation(TensorView in, Activation activation, TensorView out) = 0;

  // rows *= factor, then soft_cap * tanh(rows / soft_cap) unless soft_cap is 0; in place.
  virtual void scale(TensorView rows, float factor, float soft_cap) = 0;

  // out += factor * in.
  virtual void add_scaled(TensorView in, float factor, TensorView out) = 0;

  // The experts with the largest logits (f32) of every row, largest first, and what their results
  // count. experts: [rows * per_row] host memory; weights: [rows, per_row] f32. Waits. NaN counts
  // as the least logit.
  virtual void choose_experts(TensorView logits,
                              const ExpertChoice& choice,
                              std::span<int32_t> experts,
                              TensorView weights) = 0;

  // out[i] += what the experts that the router chooses for row i make of in[i], by weight: all from
  // the router's product to add_weighted_rows() at once, without waiting. False: nothing was done,
  // for these ops have no such way, or none for so many rows or such matrices.
  virtual bool add_experts(const ExpertLayer& /*layer*/, TensorView /*in*/, TensorView /*out*/) {
    return false;
  }

  // out[i] = in[rows[i]]; rows in host memory.
  virtual void gather_rows(TensorView in, std::span<const int32_t> rows, TensorView out) = 0;

  // out[i] += sum over j of weights[i, j] * in[places[i * n + j]], n = weights.columns; places in
  // host memory.
  virtual void add_weighted_rows(TensorView in,
                                 std::span<const int32_t> places,
                                 TensorView weights,
                                 TensorView out) = 0;

  // rows[i] *= sigmoid(gates[i]); gates: [rows, 1] f32.
  virtual void gate_rows(TensorView gates, TensorView rows) = 0;

  // Norms (optional) and rotates the q part of qkv in place; norms and rotates k, writes k and v of
  // every row into the cache. The rows of qkv are covered by the slices.
  virtual void rotate_and_store(TensorView qkv,
                                const RopeOptions& options,
                                std::span<const SequenceSlice> slices,
                                const KvLayerView& kv) = 0;

  // Causal attention of the q part of qkv over the cache, which already holds the rows' own k and
  // v. out: [rows, num_heads * head_dim].
  virtual void attention(TensorView qkv,
                         const AttentionOptions& options,
                         std::span<const SequenceSlice> slices,
                         const KvLayerView& kv,
                         TensorView out) = 0;

  // How much the last row of slices[which] looks at each of the leading positions: adds its
  // attention weights, summed over the heads, to sums [1, positions] f32. The rest as attention().
  virtual void add_attention_mass(TensorView qkv,
                                  const AttentionOptions& options,
                                  std::span<const SequenceSlice> slices,
                                  size_t which,
                                  const KvLayerView& kv,
                                  TensorView sums) = 0;

  // Applies a map to cached positions [begin, end) of one sequence, in place. A row of the map's
  // input is [K of all heads un-rotated | V of all heads].
  virtual void translate_kv(const LowRankMap& map,
                            const RopeOptions& rope,
                            const SequenceSlice& range,
                            const KvLayerView& kv) = 0;
  // rows += map(rows), in place.
  virtual void translate_rows(const LowRankMap& map, TensorView rows) = 0;

  virtual void copy(TensorView in,
                    TensorView out) = 0;  // same shape; converts between plain dtypes

  // Compares the softmax of every row of logits with that of row i % reference.rows of the
  // reference, both f32. out: [logits.rows] device memory.
  virtual void divergence(TensorView reference, TensorView logits, RowDivergence* out) = 0;

  // Rows as translate_kv() sees them, [K of all heads un-rotated | V of all heads], to f32 rows.
  virtual void read_kv(const RopeOptions& rope,
                       const SequenceSlice& range,
                       const KvLayerView& kv,
                       TensorView out) = 0;

  // Sums of a linear fit of y - x on x with intercept: sums += [x | 1]^T [x | y - x]. x and y are
  // [rows, n] activations or f32, sums [n + 1, 2 n] f32.
  virtual void add_normal_equations(TensorView x, TensorView y, TensorView sums) = 0;

  // Ridge regression with a free intercept, then the directions of the output that the correction
  // moves most; one result per problem. Waits. Sums that are not finite, or inputs that vary too
  // little, give an Error of kDataCorrupt.
  virtual std::vector<Result<LowRankFit>> fit_low_rank(
      std::span<const LowRankProblem> problems) = 0;

  // Index of the largest value of each row (the first one on ties), to host memory; waits. -1 for a
  // row with a value that is not finite.
  virtual void argmax(TensorView in, std::span<int32_t> out) = 0;

  // One token of each of these rows of logits (f32), which may be changed; waits. The token of a
  // row depends on its logits and its RowSampling, never on other rows; -1 for a row with a value
  // that is not finite. A device may order the candidates otherwise than sample_row() does, so that
  // a random number means another token there.
  virtual void sample(TensorView logits,
                      std::span<const RowSampling> rows,
                      std::span<SampledToken> out);

  // Rows that repeat() should be given where a step of single rows has `rows` of them. Those behind
  // belong to no slice: they are computed, mean nothing and touch no cache.
  virtual int64_t repeated_rows(int64_t rows) const { return rows; }

  // Runs the operations that `queue` queues on these ops, and nothing else. A device may keep what
  // it prepared for them until the same operations come again, on the same memory and with other
  // slices, corrections of other adapters, and as many rows. `queue` may be called more than once.
  virtual void repeat(const std::function<void()>& queue) { queue(); }
};

// `device` outlives the ops. num_threads 0: one per core.
std::unique_ptr<Ops> make_cpu_ops(Device& device, int num_threads);
// Activations are bf16 with kFast, f32 with kExact.
std::unique_ptr<Ops> make_cuda_ops(Device& device, Precision precision);

}  // namespace droidspeak
