// A grammar over a tokenizer's tokens, ready to be followed. Immutable, shared by the requests that
// use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace droidspeak {

class Tokenizer;

class CompiledGrammar {
 public:
  struct Compiled;  // the library's

  // `tokenizer` outlives this.
  CompiledGrammar(std::unique_ptr<const Compiled> compiled,
                  const Tokenizer& tokenizer,
                  int32_t vocab_size);
  ~CompiledGrammar();

  const Compiled& compiled() const { return *compiled_; }

  const Tokenizer& tokenizer() const { return tokenizer_; }

  int32_t vocab_size() const { return vocab_size_; }

  size_t bytes() const;

 private:
  std::unique_ptr<const Compiled> compiled_;
  const Tokenizer& tokenizer_;
  int32_t vocab_size_;
};

}  // namespace droidspeak
