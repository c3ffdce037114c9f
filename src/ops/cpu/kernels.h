// The table of inner kernels for one instruction set, and the plain structs they work on. A kernel
// runs on one thread over the part of the work it is given; the drivers in this folder split the
// work over threads. Kernels keep the order of the sums of an output element fixed, whatever the
// other rows of the call are: that makes a row's result independent of its batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv/kv_view.h"
#include "ops/cpu/instruction_set.h"
#include "ops/ops.h"

namespace droidspeak::cpu {

// Weights are packed in panels of 16 matrix rows (16 columns of the output).
inline constexpr int kPanelWidth = 16;
// Quantised weights and activations have one scale for 32 elements; weights of kU6 one for 16.
inline constexpr int kQuantBlock = 32;
// Columns that share the units of their scales where these are codes.
inline constexpr int kSuperColumns = 256;
inline constexpr int kSuperBlocks = kSuperColumns / kQuantBlock;
// Most input rows of one LinearTask.
inline constexpr int64_t kMaxTaskRows = 384;
// An input of at most so many rows waits for the weights to come from memory: kernels read them as
// they lie. More rows share a copy of a panel in the form that is fastest to compute with.
inline constexpr int64_t kFewRows = 16;

enum class PanelKind { kF32, kF16, kBF16, kU4, kU5, kU6, kU8 };
// kCodes: a scale is a small integer times a unit of 256 columns.
enum class ScaleKind { kF16, kF32, kCodes };

// weight = scale * (quant - zero_point) + minimum for quants. A format has a minimum or a zero
// point, never both; floats have neither. kU4 and kU8 have any scales, kU5 and kU6 codes.
struct PanelFormat {
  PanelKind kind = PanelKind::kF32;
  ScaleKind scales = ScaleKind::kF32;
  bool has_minimum = false;
  int32_t zero_point = 0;

  bool operator==(const PanelFormat&) const = default;
};

inline int64_t quant_block_bytes(PanelKind kind) {
  return kQuantBlock * kPanelWidth / (kind == PanelKind::kU4 ? 2 : 1);
}

inline int64_t scale_bytes(ScaleKind kind) {
  return kind == ScaleKind::kF16 ? 2 : 4;
}

// A panel's 256 columns in as many bits as in the file: [low bits | high bits | codes | units].
// Blocks are of 32 columns, quads of four, eight to a block.
//   low bits   [8 blocks][256 bytes] as kU4
//   high bits  kU5 [8][16][4] bytes: bit i of a byte is of quad i; kU6 [8][2][16][4]: of the first
//              64 bytes bits 2i and 2i + 1 are of quad i, of the second 64 of quad 4 + i
//   codes      kU6 [8][2][16] signed scales, each for 16 columns. Others [8][16]: six bits of the
//              block's scale, above them the upper two of its minimum; then [4][16] the lower four
//              bits of the minima of block 2i, above them those of block 2i + 1
//   units      [16] f16 of the scales; others than kU6 then [16] f16 of the minima, negative
struct SuperLayout {
  int high_bits;  // of a quant, above its low four
  int code_bytes;
  int unit_bytes;

  static constexpr SuperLayout of(PanelKind kind) {
    if (kind == PanelKind::kU6) return {2, 2 * kSuperBlocks * kPanelWidth, 64};  // half of it empty
    return {kind == PanelKind::kU5 ? 1 : 0, 3 * kSuperBlocks / 2 * kPanelWidth, 64};
  }

  constexpr int high_block_bytes() const { return 64 * high_bits; }

  constexpr int low_begin() const { return 0; }

  constexpr int high_begin() const { return kSuperColumns * kPanelWidth / 2; }

  constexpr int code_begin() const { return high_begin() + kSuperBlocks * high_block_bytes(); }

  constexpr int unit_begin() const { return code_begin() + code_bytes; }

  constexpr int bytes() const { return unit_begin() + unit_bytes; }
};

// Consecutive rows of a matrix in one format. A panel holds
//   floats: [columns][16]
//   codes:  [columns / 256] as SuperLayout says
//   other quants: [columns / 32] blocks of quants, 16 scales and, if the format has them, 16
//   minima; quants
//           kU8: [8][16][4]
//           kU4: [4][16][4] bytes; low nibbles are elements 0-3 of eight, high nibbles elements 4-7
struct Segment {
  PanelFormat format;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  int64_t columns = 0;
  size_t panel_bytes = 0;
  const std::byte* panels = nullptr;
  // Int8 parts of an input value: the value and, with two, what rounding it lost.
  int input_parts = 1;

  int64_t num_panels() const { return (num_rows + kPanelWidth - 1) / kPanelWidth; }
};

// Where the product of rows and a matrix goes.
struct LinearOutput {
  float* data = nullptr;  // row 0, column 0 of the whole product
  int64_t stride = 0;
  Accumulate accumulate = Accumulate::kOverwrite;
  const float* bias = nullptr;  // of column 0, or null
};

// Input tiles [tile_begin, tile_end) times weight panels [panel_begin, panel_end).
struct LinearTask {
  const Segment* weights = nullptr;
  const std::byte* tiles = nullptr;  // packed input, tile 0
  int64_t num_rows = 0;              // of the whole input
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  LinearOutput out;
  std::byte* scratch = nullptr;  // scratch_bytes of this thread
};

// Input rows of one tile before packing. A kernel may interleave an input of few rows more tightly
// than the tiles of a larger one, so it must know how many there are in all.
struct InputRows {
  const float* data = nullptr;
  int64_t stride = 0;
  int64_t num_rows = 0;    // at most a tile's
  int64_t total_rows = 0;  // of all tiles
  int64_t columns = 0;
  int parts = 1;
  int32_t zero_point = 0;  // of the weights the tile is for
};

// Size of the parts when `count` things are cut into as few even parts of at most `most` as
// possible.
inline int64_t even_part(int64_t count, int64_t most) {
  const int64_t parts = (count + most - 1) / most;
  return (count + parts - 1) / parts;
}

// One way to multiply: how rows are packed into tiles, and the product.
struct LinearKernel {
  int64_t (*tile_rows)(int64_t total_rows) = nullptr;
  size_t (*tile_bytes)(int64_t columns, int parts) = nullptr;
  size_t (*scratch_bytes)(int64_t columns) = nullptr;
  void (*pack_tile)(const InputRows& rows, std::byte* tile) = nullptr;
  void (*multiply)(const LinearTask& task) = nullptr;
};

// Rows [begin, end) of a slice.
struct StoreTask {
  TensorView qkv;
  const RopeOptions* options = nullptr;
  const SequenceSlice* slice = nullptr;
  const KvLayerView* kv = nullptr;
  int32_t begin = 0;
  int32_t end = 0;
};

// Positions [begin, end) of a sequence <-> rows [K un-rotated | V] of f32.
struct KvRowsTask {
  const RopeOptions* options = nullptr;
  std::span<const int32_t> blocks;
  const KvLayerView* kv = nullptr;
  int32_t begin = 0;
  int32_t end = 0;
  float* rows = nullptr;  // row of position `begin`
};

struct AttentionProblem {
  TensorView qkv;
  TensorView out;
  AttentionOptions options;
  KvLayerView kv;

  int32_t group() const { return options.num_heads / kv.num_kv_heads; }

  // First position that the query at `position` sees.
  int32_t first_key(int32_t position) const {
    int32_t window = options.sliding_window;
    return window > 0 && position >= window ? position - window + 1 : 0;
  }

  // What a head's scores begin with, in units of log2(e): its sink, or what nothing is below.
  float sink(int64_t head) const {
    constexpr float log2_of_e = 1.44269504f;
    return options.sinks == nullptr ? -1e30f : options.sinks[head] * log2_of_e;
  }
};

// Rows [begin, end) of a slice, all query heads of one K/V head.
struct PrefillTask {
  const SequenceSlice* slice = nullptr;
  int32_t kv_head = 0;
  int32_t begin = 0;
  int32_t end = 0;
  std::byte* scratch = nullptr;
};

// A query row of the batch over keys [key_begin, key_end) of one block of its sequence, all heads:
// a block's K and its V are read front to back.
struct DecodeTask {
  const SequenceSlice* slice = nullptr;
  int64_t row = 0;
  int32_t key_begin = 0;
  int32_t key_end = 0;
  int64_t partial_index = 0;
  float* scratch = nullptr;  // [num_heads][kBlockTokens], of this thread
  float* partial =
      nullptr;  // [num_heads][partial_stride(head_dim)]: sums, then maximum, then weight
};

inline int64_t partial_stride(int32_t head_dim) {
  return head_dim + 2;
}

// Partial results of one query head.
struct MergeTask {
  const float* partials = nullptr;
  int64_t stride = 0;
  int64_t count = 0;
  int64_t head_dim = 0;
  float sink = 0;  // AttentionProblem::sink()
};

struct Kernels {
  LinearKernel linear_float;
  LinearKernel linear_u4;
  LinearKernel linear_u6;
  LinearKernel linear_u8;  // kU5, too

  void (*rms_norm)(const float* in, const float* weight, float epsilon, int64_t size, float* out);
  void (*gated_activation)(const float* in, Activation activation, int64_t size, float* out);
  // As Ops::scale() and Ops::add_scaled(), of one row.
  void (*scale)(float* row, int64_t size, float factor, float soft_cap);
  void (*add_scaled)(const float* in, float factor, int64_t size, float* out);
  int64_t (*argmax)(const float* in, int64_t size);
  void (*to_float)(DType dtype, const void* in, int64_t size, float* out);
  void (*from_float)(DType dtype, const float* in, int64_t size, void* out);

  void (*rotate_and_store)(const StoreTask& task);
  void (*gather_kv)(const KvRowsTask& task);
  void (*scatter_kv)(const KvRowsTask& task);

  // Rows per PrefillTask that suit the kernel, and bytes of scratch for them.
  int32_t (*prefill_rows)(const AttentionProblem& problem);
  size_t (*prefill_scratch_bytes)(const AttentionProblem& problem);
  void (*prefill)(const AttentionProblem& problem, const PrefillTask& task);
  void (*decode)(const AttentionProblem& problem, const DecodeTask& task);
  // The first half of decode(): leaves the weights of the keys in the task's scratch, relative to
  // each head's maximum, which is in `partial` with their sum.
  void (*weigh)(const AttentionProblem& problem, const DecodeTask& task);
  // Merges partial results of one query head, in order, into its output row.
  void (*merge)(const MergeTask& task, float* out);

  explicit Kernels(InstructionSet set);
};

// Each fills its part of the table; one per file in kernels/.
void bind_linear_float(InstructionSet set, Kernels& kernels);
void bind_linear_int8(InstructionSet set, Kernels& kernels);
void bind_elementwise(InstructionSet set, Kernels& kernels);
void bind_kv_rows(InstructionSet set, Kernels& kernels);
void bind_attention_prefill(InstructionSet set, Kernels& kernels);
void bind_attention_decode(InstructionSet set, Kernels& kernels);

}  // namespace droidspeak::cpu
