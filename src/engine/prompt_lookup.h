// Prompt-lookup speculation: drafts the next tokens of an answer that quotes what stands before it.
// Where the sequence's last tokens have occurred earlier, what followed them there may follow them
// again. Drafts run as rows of the next step and are kept as far as they are what is sampled
// anyway, so they change how long an answer takes, never what it is: on the CPU bit for bit, on
// CUDA as far as an answer does not depend on its batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace droidspeak {

class PromptLookup {
 public:
  // At most `most` tokens that may follow `tokens`, which are those of the calls before and more.
  // None where the last tokens are new, or while drafts have been wrong of late.
  std::vector<int32_t> draft(std::span<const int32_t> tokens, int32_t most);
  // How many leading tokens of the last draft, which was not empty, were right.
  void judge(size_t num_right);

 private:
  void index(std::span<const int32_t> tokens);

  // By the hash of a few tokens: the position behind their last occurrence.
  std::unordered_map<uint64_t, int32_t> behind_;
  size_t num_indexed_ = 0;  // occurrences that end before this position are in `behind_`
  int32_t length_ = 0;      // of the next draft; 0: none has been made
  size_t num_drafted_ = 0;  // in the last one
  int32_t rest_ = 0;        // steps without a draft after the next failure
  int32_t resting_ = 0;     // of those, still to come
};

}  // namespace droidspeak
