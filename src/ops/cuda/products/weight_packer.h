// Brings weights from a file's formats into device memory: worker threads convert rows into pinned
// memory, piece by piece, while the piece before is copied.
#pragma once

#include <array>
#include <span>

#include "device/cuda/cuda_device.h"
#include "device/thread_pool.h"
#include "ops/cuda/products/cuda_matrix.h"

namespace droidspeak::cuda {

// A row of a matrix as it lies in a file.
struct SourceRow {
  DType dtype;
  std::span<const std::byte> bytes;
};

class WeightPacker {
 public:
  explicit WeightPacker(CudaDevice& device) : device_(device) {}

  // Throws Failure when a value is not finite. The parts may go when it returns; the copies are in
  // order with the compute stream.
  std::unique_ptr<CudaMatrix> pack(std::span<const MatrixPart> parts, DType dtype);
  // The same as they lie. All parts are fp8.
  std::unique_ptr<CudaMatrix> pack_fp8(std::span<const MatrixPart> parts);
  // The same as strips. stacks_of(parts) are some.
  std::unique_ptr<CudaMatrix> pack_strips(std::span<const MatrixPart> parts);

 private:
  struct Piece {
    Buffer host;
    Marker is_copied;
  };

  Piece& next_piece(size_t bytes);
  // Fills strips of a stack with its rows. Returns a row that is not finite, or -1.
  int64_t fill_strips(const StripStack& stack, std::span<const SourceRow> rows);

  CudaDevice& device_;
  ThreadPool pool_;
  std::array<Piece, 3> pieces_;
  size_t next_ = 0;
};

}  // namespace droidspeak::cuda
