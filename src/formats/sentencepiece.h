// What SentencePiece's tokenizer.model (a protocol buffer) says, as it says it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak {

struct SentencePiece {
  std::string text;
  float score = 0;
  uint64_t type = 1;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
};

struct SentencePieceFile {
  std::vector<SentencePiece> pieces;  // by id
  uint64_t model_type = 1;            // 2: BPE
  bool has_byte_fallback = false;
  int64_t unknown_id = 0;
  int64_t bos_id = 1;
  int64_t eos_id = 2;
  std::string character_map;
  bool adds_dummy_prefix = true;
  bool removes_extra_spaces = true;
};

// `source` names the file in errors. Throws Failure, also for more than `max_pieces`.
SentencePieceFile parse_sentencepiece_file(std::string_view bytes,
                                           const std::string& source,
                                           size_t max_pieces);

}  // namespace droidspeak
