// Where one answer is in its grammar. Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "grammar/compiled_grammar.h"

namespace droidspeak {

class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // One bit per token, lowest first, set where the token may come next; tokens that end an answer
  // are among them where the grammar may end. [(vocab_size + 31) / 32], valid until accept().
  std::span<const uint32_t> mask();
  bool allows(int32_t token);

  // `token` comes next. False, and nothing changes, when it may not.
  bool accept(int32_t token);

  // Tokens of the text that must come next, as the tokenizer cuts it; a model may cut it otherwise.
  // Empty where the text is not known.
  std::vector<int32_t> forced_tokens();

  // A token that ends an answer was accepted.
  bool has_ended() const;
  // Nothing can follow but the end of the answer.
  bool is_finished();
  // A step has taken so long that others had to wait: the answer should be given up.
  bool is_too_slow() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace droidspeak
