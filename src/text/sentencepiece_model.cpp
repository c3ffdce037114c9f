#include "text/sentencepiece_model.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "text/bpe/score_merges.h"

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

TokenKind kind_of(const Message& piece, uint64_t type) {
  if (auto kind = numbered_token_kind(type)) return *kind;
  piece.fail(fmt::format("pieces.type is {}; it must be 1 to 6", type));
}

void read_piece(Message piece, BpeParts& parts, std::vector<double>& scores) {
  VocabularyToken token{"", TokenKind::kNormal};
  float score = 0;
  while (piece.next()) {
    if (piece.number == 1) token.text = piece.bytes;
    if (piece.number == 2) {
      auto bits = static_cast<uint32_t>(piece.value);
      std::memcpy(&score, &bits, sizeof(score));
    }
    if (piece.number == 3) token.kind = kind_of(piece, piece.value);
  }
  parts.tokens.push_back(std::move(token));
  scores.push_back(score);
}

void read_trainer(Message trainer, SentencePieceModel& model) {
  uint64_t model_type = 1;
  int64_t unknown_id = 0;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  while (trainer.next()) {
    switch (trainer.number) {
      case 3:
        model_type = trainer.value;
        break;
      case 35:
        model.parts.has_byte_fallback = trainer.value != 0;
        break;
      case 40:
        unknown_id = static_cast<int64_t>(trainer.value);
        break;
      case 41:
        bos_id = static_cast<int64_t>(trainer.value);
        break;
      case 42:
        eos_id = static_cast<int64_t>(trainer.value);
        break;
      default:
        break;
    }
  }
  if (model_type != 2) {
    trainer.fail(
        fmt::format("trainer_spec.model_type is {}; only 2 (BPE) is supported", model_type));
  }
  auto checked = [&](const char* name, int64_t id) {
    if (id < -1 || id >= static_cast<int64_t>(model.parts.tokens.size())) {
      trainer.fail(fmt::format("trainer_spec.{} is {}; there are {} tokens", name, id,
                               model.parts.tokens.size()));
    }
    return static_cast<int32_t>(id);
  };
  model.parts.unknown_id = checked("unk_id", unknown_id);
  model.bos_id = checked("bos_id", bos_id);
  model.eos_id = checked("eos_id", eos_id);
}

void read_normalizer(Message normalizer, BpeParts& parts) {
  parts.drops_leading_space = true;
  bool removes_spaces = true;
  while (normalizer.next()) {
    if (normalizer.number == 2 && !normalizer.bytes.empty()) {
      normalizer.fail("normalizer_spec.precompiled_charsmap is not empty, which is not supported");
    }
    if (normalizer.number == 3) parts.drops_leading_space = normalizer.value != 0;
    if (normalizer.number == 4) removes_spaces = normalizer.value != 0;
  }
  if (removes_spaces) {
    normalizer.fail("normalizer_spec.remove_extra_whitespaces is true, which is not supported");
  }
}

void add_marked_tokens(BpeParts& parts) {
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    TokenKind kind = parts.tokens[id].kind;
    bool is_special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (!is_special && kind != TokenKind::kUserDefined) continue;
    AddedToken token;
    token.id = static_cast<int32_t>(id);
    token.content = parts.tokens[id].text;
    token.is_special = is_special;
    parts.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source) {
  SentencePieceModel model;
  BpeParts& parts = model.parts;
  std::vector<double> scores;
  std::string_view trainer;
  std::string_view normalizer;
  Message file(bytes, source);
  while (file.next()) {
    if (file.number == 1) read_piece(Message(file.bytes, source), parts, scores);
    if (file.number == 2) trainer = file.bytes;
    if (file.number == 3) normalizer = file.bytes;
    if (static_cast<int64_t>(parts.tokens.size()) > kMaxVocabularySize)
      file.fail("too many pieces");
  }
  if (parts.tokens.empty()) file.fail("has no pieces; it is not a SentencePiece model");
  read_trainer(Message(trainer, source), model);
  read_normalizer(Message(normalizer, source), parts);
  parts.symbols = SymbolKind::kCharacters;
  parts.merges = merges_from_scores(parts.tokens, scores, source + ": pieces.score");
  parts.normalizer = sentencepiece_normalizer(parts.drops_leading_space ? DummyPrefix::kAdded
                                                                        : DummyPrefix::kNone);
  add_marked_tokens(parts);
  check_added_tokens(parts.added_tokens, source + ": pieces.type");
  return model;
}

}  // namespace droidspeak
