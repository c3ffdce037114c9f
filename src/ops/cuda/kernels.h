// Launches of our own kernels, one function per operation; the meaning is that of ops/ops.h.
// Shapes and dtypes were checked by the caller.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/products/cuda_matrix.h"
#include "ops/cuda/steps/batch_layout.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

// tokens: [out.rows] device memory.
void embed(cudaStream_t stream, const CudaMatrix& table, const int32_t* tokens, TensorView out);

// From so many rows on the sum over a row is added up in another order.
inline constexpr int64_t kManyNormRows = 512;

void rms_norm(
    cudaStream_t stream, TensorView in, const float* weight, float epsilon, TensorView out);

void gated_activation(cudaStream_t stream, TensorView in, Activation activation, TensorView out);

void scale(cudaStream_t stream, TensorView rows, float factor, float soft_cap);

void add_scaled(cudaStream_t stream, TensorView in, float factor, TensorView out);

// experts: [logits.rows, choice.per_row] device memory.
void choose_experts(cudaStream_t stream,
                    TensorView logits,
                    const ExpertChoice& choice,
                    int32_t* experts,
                    TensorView weights);

// rows and places: device memory.
void gather_rows(cudaStream_t stream, TensorView in, const int32_t* rows, TensorView out);

void add_weighted_rows(
    cudaStream_t stream, TensorView in, const int32_t* places, TensorView weights, TensorView out);

void gate_rows(cudaStream_t stream, TensorView gates, TensorView rows);

// Rows that belong to no slice are left alone.
void rotate_and_store(cudaStream_t stream,
                      TensorView qkv,
                      const RopeOptions& options,
                      const BatchLayout& layout,
                      const KvLayerView& kv);

// scratch: [heads, 2 + positions that the row sees], device memory.
void add_attention_mass(cudaStream_t stream,
                        TensorView qkv,
                        const AttentionOptions& options,
                        const BatchLayout& layout,
                        size_t which,
                        const KvLayerView& kv,
                        float* scratch,
                        TensorView sums);

// Cached positions of the layout's rows to f32 rows [K of all heads un-rotated | V of all heads],
// and back.
void gather_kv(cudaStream_t stream,
               const RopeOptions& options,
               const BatchLayout& layout,
               const KvLayerView& kv,
               TensorView rows);
void scatter_kv(cudaStream_t stream,
                const RopeOptions& options,
                const BatchLayout& layout,
                const KvLayerView& kv,
                TensorView rows);

// Between f32, f16 and bf16, each with each.
void convert(cudaStream_t stream, TensorView in, TensorView out);
// out (+)= bias in every row.
void spread_bias(cudaStream_t stream, const float* bias, Accumulate accumulate, TensorView out);

// Blocks that look at one row.
inline constexpr int kArgmaxParts = 32;
// out: device memory, the first in.rows elements are the results; 2 * (1 + kArgmaxParts) * in.rows
// elements are written.
void argmax(cudaStream_t stream, TensorView in, int32_t* out);

// out (+)= in * weights^T (+ bias) for any shape and alignment; slow.
void multiply_plainly(cudaStream_t stream,
                      const CudaMatrix& weights,
                      TensorView in,
                      TensorView out,
                      Accumulate accumulate,
                      const float* bias);

}  // namespace droidspeak::cuda
