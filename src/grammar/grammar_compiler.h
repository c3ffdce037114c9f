// From what a request wants to a grammar that can be followed. Thread-safe. What cannot be enforced
// exactly is refused with the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/compiled_grammar.h"
#include "grammar/output_format.h"
#include "text/tokenizer.h"

namespace droidspeak {

class GrammarCompiler {
 public:
  static constexpr size_t kAllBytes = size_t{128} << 20;
  static constexpr size_t kMostBytes = size_t{64} << 20;  // of one compiled grammar

  // `vocab_size` is the model's: ids that the tokenizer does not know are never allowed, nor are
  // special tokens but those that end an answer. `tokenizer` outlives this and the grammars, which
  // take `max_bytes` together, those in use and those that are kept for others.
  GrammarCompiler(const Tokenizer& tokenizer, int32_t vocab_size, size_t max_bytes = kAllBytes);
  ~GrammarCompiler();

  // From the cache when it was compiled of late for the same tenant: how long it takes tells nobody
  // what others ask for. Takes up to seconds of one core for the largest grammars that are let in.
  // kExhausted when those in use leave no room.
  Result<std::shared_ptr<const CompiledGrammar>> compile(const OutputFormat& format,
                                                         std::string_view tenant = {});

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

// The grammar that `format` means, as text. Throws Failure that says what in it cannot be had.
std::string grammar_of(const OutputFormat& format);

}  // namespace droidspeak
