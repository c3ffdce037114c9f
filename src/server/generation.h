// Runs the choices of one API request on the engine and turns their tokens into text: n choices or
// many prompts are one engine request each. Used by one thread; the engine is reached through
// `Submit` only.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "base/shared.h"
#include "engine/request.h"
#include "text/detokenizer.h"

namespace droidspeak {

// What one choice gained. Text that may be the start of a stop string or of a character is held
// back, and tokens come with the text that they completed.
struct ChoicePiece {
  int32_t choice = 0;
  std::string text;
  std::vector<SampledToken> tokens;
  std::optional<FinishReason> finish;  // set in a choice's last piece
  std::string stop = {};               // the stop string that ended it; empty: none did
  // Where each token begins, in characters of the choice's text; of those in a stop string, where
  // that would be.
  std::vector<size_t> offsets = {};
};

using GenerationEvent = std::variant<ChoicePiece, Error>;

struct ChoiceOptions {
  int32_t num_per_prompt = 1;  // choice i of a prompt samples with the request's seed + i
  Shared<std::vector<std::string>> stop;
  int32_t min_tokens = 0;                         // before which no stop string counts
  SpecialTokens special = SpecialTokens::kParse;  // kParse leaves them out of the text
};

class Generation {
 public:
  using Submit = std::function<Result<std::shared_ptr<TokenStream>>(GenerationRequest)>;

  // One request per prompt; choices are all of the first prompt, then all of the second. Those with
  // the same prompt as their predecessor begin when it has been read, to find it in the cache. A
  // choice costs little memory until it is submitted. `tokenizer` outlives this.
  Generation(Submit submit,
             const Tokenizer& tokenizer,
             std::vector<GenerationRequest> requests,
             const ChoiceOptions& options);
  ~Generation();  // cancels what is running

  // Submits the first choice, and as many more as the queue takes. An error means that nothing
  // runs.
  Result<void> start();

  // Waits at most `timeout`; nothing when nothing happened. After an Error there is no further
  // event.
  std::optional<GenerationEvent> next(std::chrono::milliseconds timeout);

  bool is_done() const { return num_finished_ == choices_.size() || has_failed_; }

  size_t num_choices() const { return choices_.size(); }

  const GenerationRequest& request(int32_t choice) const {
    return requests_[static_cast<size_t>(choice) / num_per_prompt_];
  }

  // Empty until the choice's prompt has been read.
  const std::optional<PrefillReport>& prefill(int32_t choice) const { return at(choice).prefill; }

  const std::vector<SampledToken>& prompt_logprobs(int32_t choice) const {
    return at(choice).prompt_logprobs;
  }

  // Where the request wants one.
  const std::vector<float>& embedding(int32_t choice) const { return at(choice).embedding; }

  int64_t completion_tokens() const { return completion_tokens_; }

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer,
           const ChoiceOptions& options,
           const GenerationRequest& request);

    Detokenizer detokenizer;
    StopStrings stop_strings;
    std::shared_ptr<TokenStream> stream;  // null before submission and after the end
    std::optional<PrefillReport> prefill;
    std::vector<SampledToken> prompt_logprobs;
    std::vector<float> embedding;
    std::vector<SampledToken> held_tokens;  // their text is not out yet
    std::vector<size_t> held_offsets;
    std::string stop;  // the stop string that was found
    int32_t num_tokens = 0;
    bool shares_prompt = false;  // with the choice before
    bool is_finished = false;
  };

  const Choice& at(int32_t choice) const { return *choices_[static_cast<size_t>(choice)]; }

  // Submits waiting choices in order. A full queue refuses the first of them; once that is in, the
  // others wait for places, so that a request is answered whole or not at all.
  Result<void> submit_waiting();
  bool may_begin(size_t index) const;
  GenerationRequest request_to_submit(size_t index) const;
  std::optional<GenerationEvent> take_item(size_t index, std::chrono::milliseconds timeout);
  std::optional<GenerationEvent> handle(size_t index, StreamItem item);
  std::optional<GenerationEvent> add_token(size_t index, SampledToken token);
  GenerationEvent finish(size_t index, std::string text, FinishReason reason);
  GenerationEvent fail(Error error);
  void cancel_all();

  Submit submit_;
  const std::vector<GenerationRequest> requests_;
  const size_t num_per_prompt_;
  const int32_t min_tokens_;
  std::vector<std::unique_ptr<Choice>> choices_;
  size_t next_to_submit_ = 0;
  size_t next_to_ask_ = 0;
  size_t num_running_ = 0;
  size_t num_finished_ = 0;
  int64_t completion_tokens_ = 0;
  bool has_failed_ = false;
};

}  // namespace droidspeak
