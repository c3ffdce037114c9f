#include "model/quantized/unpack.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/half.h"

namespace droidspeak {
namespace {

uint8_t code_of(uint32_t word, int bits, int index) {
  return static_cast<uint8_t>(word >> (bits * index) & ((1u << bits) - 1));
}

void store_nibbles(std::span<const uint8_t> codes, std::byte* out) {
  for (size_t i = 0; i < 16; ++i) out[i] = static_cast<std::byte>(codes[i] | codes[i + 16] << 4);
}

template <class T>
std::byte* store(T value, std::byte* out) {
  std::memcpy(out, &value, sizeof value);
  return out + sizeof value;
}

}  // namespace

std::vector<uint8_t> unpack_columns(std::span<const uint32_t> words, int bits, int64_t rows) {
  const int per_word = 32 / bits;
  const int64_t lines = std::ssize(words) / rows;
  const int64_t columns = lines * per_word;
  std::vector<uint8_t> codes(static_cast<size_t>(rows * columns));
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t row = 0; row < rows; ++row) {
      const uint32_t word = words[static_cast<size_t>(line * rows + row)];
      uint8_t* out = codes.data() + row * columns + line * per_word;
      for (int i = 0; i < per_word; ++i) out[i] = code_of(word, bits, i);
    }
  }
  return codes;
}

std::vector<uint8_t> unpack_lines(std::span<const uint32_t> words,
                                  int bits,
                                  int64_t lines,
                                  int64_t width) {
  const int per_word = 32 / bits;
  const int64_t words_each = std::ssize(words) / lines;
  std::vector<uint8_t> codes(static_cast<size_t>(lines * width));
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t i = 0; i < width; ++i) {
      const uint32_t word = words[static_cast<size_t>(line * words_each + i / per_word)];
      codes[static_cast<size_t>(line * width + i)] =
          code_of(word, bits, static_cast<int>(i % per_word));
    }
  }
  return codes;
}

std::vector<uint8_t> unpack_awq_lines(std::span<const uint32_t> words) {
  std::vector<uint8_t> codes(words.size() * 8);
  for (size_t w = 0; w < words.size(); ++w) {
    for (int i = 0; i < 8; ++i)
      codes[8 * w + static_cast<size_t>(i)] = code_of(words[w], 4, i / 2 + i % 2 * 4);
  }
  return codes;
}

std::vector<uint8_t> transposed(std::span<const uint8_t> codes, int64_t rows, int64_t columns) {
  std::vector<uint8_t> out(codes.size());
  constexpr int64_t kTile = 64;  // lines of both stay in the cache
  for (int64_t first = 0; first < rows; first += kTile) {
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = first; row < std::min(first + kTile, rows); ++row)
        out[static_cast<size_t>(column * rows + row)] =
            codes[static_cast<size_t>(row * columns + column)];
    }
  }
  return out;
}

void store_block(
    DType dtype, std::span<const uint8_t> codes, float scale, int32_t zero, std::byte* block) {
  switch (dtype) {
    case DType::kQ4_0:
      return store_nibbles(codes, store(f16_from_float(scale), block));
    case DType::kQ8_0:
      block = store(f16_from_float(scale), block);
      for (size_t i = 0; i < 32; ++i) block[i] = static_cast<std::byte>(codes[i] - 128);
      return;
    case DType::kAffine4:
      block = store(scale, block);
      return store_nibbles(codes, store(-scale * static_cast<float>(zero), block));
    case DType::kFp8:
      std::memcpy(store(scale, block), codes.data(), 32);
      return;
    default:
      check(dtype == DType::kAffine8, "a block format that holds codes");
      block = store(scale, block);
      block = store(-scale * static_cast<float>(zero), block);
      std::memcpy(block, codes.data(), 32);
  }
}

}  // namespace droidspeak
