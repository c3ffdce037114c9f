// A tiny family whose members share, for tests of the whole engine.
#pragma once

#include <string>
#include <vector>

#include "engine/engine_fixture.h"

namespace droidspeak {

inline constexpr double kGood = 0.995;
inline constexpr double kPoor = 0.5;

// base -> alpha and base -> beta with E at layers 1 and 2.
class SharedFamily : public TinyFamily {
 public:
  SharedFamily() {
    for (const char* receiver : {"alpha", "beta"}) {
      add_book("base", receiver, {{{0, 0, 0}, kPoor}, {{0, 2, 3}, kGood}, {{0, 1, 4}, 0.999}});
    }
  }
};

inline GenerationRequest by_name(const std::string& model,
                                 std::vector<int32_t> prompt,
                                 const std::string& plan) {
  return {.model = model,
          .prompt = std::move(prompt),
          .max_tokens = 12,
          .sharing = {SharingRequest::Mode::kExplicit, "base", plan}};
}

// The same first tokens, then different questions.
inline std::vector<int32_t> question(uint32_t seed, int32_t context_tokens, int32_t own_tokens) {
  std::vector<int32_t> prompt = random_prompt(1000, context_tokens);
  std::vector<int32_t> rest = random_prompt(seed, own_tokens);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return prompt;
}

}  // namespace droidspeak
