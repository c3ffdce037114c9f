// A coded piece's bytes, whatever they are, behind the header that the decoder asks for, and
// tables' bytes: values or an error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "codec/kv_codec.h"
#include "codec/piece.h"
#include "codec/test_values.h"

namespace {

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

const KvLayout kLayout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 32, .dtype = DType::kF16};
constexpr PieceLabel kLabel{0, 64};

const CodecTables& tables() {
  static const CodecTables tables = test_tables(kLayout, {1.0f, 0.1f});
  return tables;
}

void decode(std::span<const std::byte> piece) {
  // Memory of its own: a step outside is seen.
  std::vector<std::byte> copy(piece.begin(), piece.end());
  std::vector<std::byte> values(kLayout.layer_bytes());
  for (cpu::InstructionSet set : cpu::available_instruction_sets())
    (void)PieceDecoder(set).decode(tables(), kLayout, kLabel, copy, values);
}

// The same bytes with the fields of the header that anything else is refused for, and as many words
// as there is room, so that what lies behind these checks is reached as well.
std::vector<std::byte> with_right_header(std::span<const std::byte> piece) {
  std::vector<std::byte> fixed(piece.begin(), piece.end());
  PieceHeader header{};
  std::memcpy(&header, fixed.data(), sizeof header);
  header.magic = kPieceMagic;
  header.version = kPieceVersion;
  header.layer = 0;
  header.tables = name_of_tables(tables().digest());
  header.first_position = kLabel.first_position;
  header.num_blocks = 1;
  header.num_exact_tokens = 0;
  header.dtype = dtype_code(kLayout.dtype);
  header.num_escapes %= 8;
  header.reserved = 0;
  size_t rest = sizeof header + kLanes * sizeof(uint32_t) + kBlockTokens / 2 +
                header.num_escapes * sizeof(Escape);
  if (fixed.size() < rest) return fixed;
  size_t words = (fixed.size() - rest) / 2;
  for (uint16_t& count : header.num_words) {
    count = static_cast<uint16_t>(std::min<size_t>(count % 200, words));
    words -= count;
  }
  if (words > UINT16_MAX - 200) return fixed;
  header.num_words.back() = static_cast<uint16_t>(header.num_words.back() + words);
  std::memcpy(fixed.data(), &header, sizeof header);
  fixed.resize(fixed.size() - (fixed.size() - rest) % 2);
  return fixed;
}

// What is read as tables can be written and read again, and codes what fits it.
void parse_tables(std::span<const std::byte> bytes) {
  Result<CodecTables> parsed = CodecTables::parse(bytes);
  if (!parsed) return;
  std::vector<std::byte> written = parsed->serialise();
  if (!std::equal(written.begin(), written.end(), bytes.begin(), bytes.end())) std::abort();
  if (!parsed->fit(kLayout)) return;
  std::vector<std::byte> values(kLayout.layer_bytes());
  auto piece = encode_piece(*parsed, kLayout, kLabel, values);
  if (!piece) return;
  if (!PieceDecoder().decode(*parsed, kLayout, kLabel, *piece, values)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto bytes = std::as_bytes(std::span(data, size));
  parse_tables(bytes);
  decode(bytes);
  if (size >= sizeof(PieceHeader)) decode(with_right_header(bytes));
  return 0;
}
