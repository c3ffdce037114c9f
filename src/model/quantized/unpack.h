// Codes of quantised weights out of the 32-bit words that files pack them into, lowest bits first,
// and into the block formats that the engine takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace droidspeak {

// [rows, columns] codes from words [columns / codes of a word, rows].
std::vector<uint8_t> unpack_columns(std::span<const uint32_t> words, int bits, int64_t rows);
// The same from words [lines, words of a line], codes side by side along a line: [lines, width].
std::vector<uint8_t> unpack_lines(std::span<const uint32_t> words,
                                  int bits,
                                  int64_t lines,
                                  int64_t width);
// Eight codes of a word in AWQ's order: the even ones first, then the odd ones.
std::vector<uint8_t> unpack_awq_lines(std::span<const uint32_t> words);
// [columns, rows] of what is [rows, columns].
std::vector<uint8_t> transposed(std::span<const uint8_t> codes, int64_t rows, int64_t columns);

// Writes 32 codes of weights scale * (code - zero) as one block of q4_0, q8_0 (whose zero is 8 or
// 128), affine4 or affine8, or codes of floats as one of fp8.
void store_block(
    DType dtype, std::span<const uint8_t> codes, float scale, int32_t zero, std::byte* block);

}  // namespace droidspeak
