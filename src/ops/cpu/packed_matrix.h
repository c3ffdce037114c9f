// Weights of the CPU operations: the parts of a matrix packed into panels, each run of parts in the
// format that suits its file dtype.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/weight_arena.h"
#include "ops/ops.h"

namespace droidspeak::cpu {

class PackedMatrix final : public WeightMatrix {
 public:
  // Throws Failure when a scale or value is not finite.
  PackedMatrix(WeightArena& arena,
               ThreadPool& pool,
               std::span<const MatrixPart> parts,
               Precision precision);

  size_t bytes() const override;
  std::string format() const override;

  std::span<const Segment> segments() const { return segments_; }

  // Row `row` as floats; out: columns() values.
  void read_row(int64_t row, float* out) const;

 private:
  // A run of parts that share a format.
  void add_segment(WeightArena& arena,
                   ThreadPool& pool,
                   std::span<const MatrixPart> parts,
                   const PanelFormat& format);

  std::vector<Segment> segments_;
  std::vector<WeightMemory> memory_;  // panels of the segments
};

}  // namespace droidspeak::cpu
