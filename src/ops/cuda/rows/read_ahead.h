// Weights that a kernel which reads little brings into the cache of the device, for a product that
// comes later: between the products of a layer the memory would have nothing to do.
#pragma once

#include <algorithm>

#include "ops/cuda/products/cuda_matrix.h"

namespace droidspeak::cuda {

struct ReadAhead {
  static constexpr size_t kPiece = 4096;           // bytes of one request
  static constexpr size_t kMostBytes = 16u << 20;  // a third of an H200's cache
  static constexpr unsigned kBlocks = 64;          // that make the requests

  // What a product begins with: the first rows of both halves, if it has a gate.
  const std::byte* halves[2] = {nullptr, nullptr};
  size_t pieces = 0;  // of each half

  // Nothing of a matrix of several formats.
  static ReadAhead of(const CudaMatrix& matrix) {
    if (matrix.stacks().size() > 1) return {};
    const std::byte* first = nullptr;
    size_t bytes = 0;
    if (matrix.is_quantized()) {
      const StripStack& stack = matrix.stacks()[0];
      first = stack.low;
      bytes = stack.shape.bytes_of_strips(stack.shape.num_strips()).low;
    } else {
      first = static_cast<const std::byte*>(matrix.view().data);
      bytes = bytes_of(matrix.view().dtype, matrix.rows() * matrix.columns());
    }
    const size_t half = bytes / 2 / kPiece * kPiece;
    return {.halves = {first, first + half}, .pieces = std::min(half, kMostBytes / 2) / kPiece};
  }
};

}  // namespace droidspeak::cuda
