#include "formats/sentencepiece.h"

#include <cstring>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

// Walks over the fields of one protocol buffer message.
class Message {
 public:
  Message(std::string_view content, const std::string& source) : rest_(content), source_(source) {}

  uint32_t number = 0;
  uint64_t value = 0;      // of a varint or fixed field
  std::string_view bytes;  // of a length-delimited field

  bool next() {
    if (rest_.empty()) return false;
    uint64_t tag = varint();
    number = static_cast<uint32_t>(tag >> 3);
    value = 0;
    bytes = {};
    switch (tag & 7) {
      case 0:
        value = varint();
        break;
      case 1:
        value = fixed(8);
        break;
      case 2:
        bytes = take(varint());
        break;
      case 5:
        value = fixed(4);
        break;
      default:
        fail(fmt::format("wire type {} of field {} is unknown", tag & 7, number));
    }
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", source_, what));
  }

 private:
  std::string_view take(uint64_t size) {
    if (size > rest_.size()) {
      fail(fmt::format("field {} has {} bytes, but {} are left", number, size, rest_.size()));
    }
    std::string_view taken = rest_.substr(0, static_cast<size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  uint64_t varint() {
    uint64_t result = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      auto byte = static_cast<uint8_t>(take(1)[0]);
      result |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return result;
    }
    fail("a number is longer than 64 bits");
  }

  uint64_t fixed(size_t size) {
    uint64_t result = 0;
    std::memcpy(&result, take(size).data(), size);
    return result;
  }

  std::string_view rest_;
  const std::string& source_;
};

SentencePiece read_piece(Message message) {
  SentencePiece piece;
  while (message.next()) {
    if (message.number == 1) piece.text = message.bytes;
    if (message.number == 2) {
      auto bits = static_cast<uint32_t>(message.value);
      std::memcpy(&piece.score, &bits, sizeof(piece.score));
    }
    if (message.number == 3) piece.type = message.value;
  }
  return piece;
}

void read_trainer(Message trainer, SentencePieceFile& file) {
  while (trainer.next()) {
    switch (trainer.number) {
      case 3:
        file.model_type = trainer.value;
        break;
      case 35:
        file.has_byte_fallback = trainer.value != 0;
        break;
      case 40:
        file.unknown_id = static_cast<int64_t>(trainer.value);
        break;
      case 41:
        file.bos_id = static_cast<int64_t>(trainer.value);
        break;
      case 42:
        file.eos_id = static_cast<int64_t>(trainer.value);
        break;
      default:
        break;
    }
  }
}

void read_normalizer(Message normalizer, SentencePieceFile& file) {
  while (normalizer.next()) {
    if (normalizer.number == 2) file.character_map = normalizer.bytes;
    if (normalizer.number == 3) file.adds_dummy_prefix = normalizer.value != 0;
    if (normalizer.number == 4) file.removes_extra_spaces = normalizer.value != 0;
  }
}

}  // namespace

SentencePieceFile parse_sentencepiece_file(std::string_view bytes,
                                           const std::string& source,
                                           size_t max_pieces) {
  SentencePieceFile file;
  std::string_view trainer;
  std::string_view normalizer;
  Message message(bytes, source);
  while (message.next()) {
    if (message.number == 1) file.pieces.push_back(read_piece(Message(message.bytes, source)));
    if (message.number == 2) trainer = message.bytes;
    if (message.number == 3) normalizer = message.bytes;
    if (file.pieces.size() > max_pieces) message.fail("too many pieces");
  }
  if (file.pieces.empty()) message.fail("has no pieces; it is not a SentencePiece model");
  read_trainer(Message(trainer, source), file);
  read_normalizer(Message(normalizer, source), file);
  return file;
}

}  // namespace droidspeak
