#include "text/sentencepiece_model.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "formats/sentencepiece.h"
#include "text/bpe/score_merges.h"

namespace droidspeak {
namespace {

// Of a file that is read.
class Reader {
 public:
  Reader(const SentencePieceFile& file, const std::string& source) : file_(file), source_(source) {}

  void read_pieces(BpeParts& parts, std::vector<double>& scores) const {
    for (const SentencePiece& piece : file_.pieces) {
      auto kind = numbered_token_kind(piece.type);
      if (!kind) fail(fmt::format("pieces.type is {}; it must be 1 to 6", piece.type));
      parts.tokens.push_back({piece.text, *kind});
      scores.push_back(piece.score);
    }
  }

  void check_kind() const {
    if (file_.model_type != 2) {
      fail(fmt::format("trainer_spec.model_type is {}; only 2 (BPE) is supported",
                       file_.model_type));
    }
    if (!file_.character_map.empty())
      fail("normalizer_spec.precompiled_charsmap is not empty, which is not supported");
    if (file_.removes_extra_spaces)
      fail("normalizer_spec.remove_extra_whitespaces is true, which is not supported");
  }

  // -1: none.
  int32_t checked_id(const char* name, int64_t id) const {
    if (id < -1 || id >= static_cast<int64_t>(file_.pieces.size())) {
      fail(
          fmt::format("trainer_spec.{} is {}; there are {} tokens", name, id, file_.pieces.size()));
    }
    return static_cast<int32_t>(id);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: {}", source_, what));
  }

  const SentencePieceFile& file_;
  const std::string& source_;
};

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
  const SentencePieceFile file = parse_sentencepiece_file(bytes, source, kMaxVocabularySize);
  const Reader reader(file, source);
  SentencePieceModel model;
  BpeParts& parts = model.parts;
  std::vector<double> scores;
  reader.read_pieces(parts, scores);
  reader.check_kind();
  parts.unknown_id = reader.checked_id("unk_id", file.unknown_id);
  model.bos_id = reader.checked_id("bos_id", file.bos_id);
  model.eos_id = reader.checked_id("eos_id", file.eos_id);
  parts.has_byte_fallback = file.has_byte_fallback;
  parts.drops_leading_space = file.adds_dummy_prefix;
  parts.symbols = SymbolKind::kCharacters;
  parts.merges = merges_from_scores(parts.tokens, scores, source + ": pieces.score");
  parts.normalizer = sentencepiece_normalizer(parts.drops_leading_space ? DummyPrefix::kAdded
                                                                        : DummyPrefix::kNone);
  add_marked_tokens(parts);
  check_added_tokens(parts.added_tokens, source + ": pieces.type");
  return model;
}

}  // namespace droidspeak
