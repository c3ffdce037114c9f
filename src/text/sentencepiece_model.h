// SentencePiece's tokenizer.model (a protocol buffer), BPE models only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/bpe/bpe_tokenizer.h"

namespace droidspeak {

struct SentencePieceModel {
  BpeParts parts;
  int32_t bos_id = -1;
  int32_t eos_id = -1;
};

// `source` names the file in errors. Throws Failure.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& source);

}  // namespace droidspeak
