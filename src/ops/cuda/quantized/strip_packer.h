// A file's block formats to strips, in host memory.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ops/cuda/quantized/strips.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

// What a matrix of these parts is made of: rows of the same format that follow each other. Nothing
// when a row is of a format without strips, or there is none.
std::vector<StripShape> stacks_of(std::span<const MatrixPart> parts);

// Row `place` of a strip, which was zeroed, from a row as it lies in the file. False when a scale
// is not finite.
bool pack_strip_row(const StripShape& shape, const std::byte* row, int place, std::byte* strip);

}  // namespace droidspeak::cuda
