#include "server/generation.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/check.h"

namespace droidspeak {

namespace {

// With several streams to listen to, how long one of them may keep the others waiting.
constexpr std::chrono::milliseconds kTurn{2};
constexpr std::chrono::milliseconds kNoWait{0};
// A request with many choices must not fill the engine's queue: others want their turn too.
constexpr size_t kMaxRunning = 64;

}  // namespace

// A grammar means the tokens' bytes as they are, a space before the first word among them.
Generation::Choice::Choice(const Tokenizer& tokenizer,
                           const ChoiceOptions& options,
                           const GenerationRequest& request)
    : detokenizer(
          tokenizer, options.special, request.grammar ? *request.prompt : std::vector<int32_t>()),
      stop_strings(options.stop) {}

Generation::Generation(Submit submit,
                       const Tokenizer& tokenizer,
                       std::vector<GenerationRequest> requests,
                       const ChoiceOptions& options)
    : submit_(std::move(submit)),
      requests_(std::move(requests)),
      num_per_prompt_(static_cast<size_t>(options.num_per_prompt)),
      min_tokens_(options.min_tokens) {
  check(!requests_.empty() && options.num_per_prompt > 0, "generation without choices");
  for (size_t i = 0; i < requests_.size() * num_per_prompt_; ++i) {
    size_t prompt = i / num_per_prompt_;
    choices_.push_back(std::make_unique<Choice>(tokenizer, options, requests_[prompt]));
    choices_.back()->shares_prompt =
        i % num_per_prompt_ > 0 ||
        (prompt > 0 && requests_[prompt].prompt == requests_[prompt - 1].prompt);
  }
}

Generation::~Generation() {
  cancel_all();
}

void Generation::cancel_all() {
  for (auto& choice : choices_) {
    if (choice->stream) choice->stream->cancel();
    choice->stream.reset();
  }
}

Result<void> Generation::start() {
  return submit_waiting();
}

bool Generation::may_begin(size_t index) const {
  if (!choices_[index]->shares_prompt) return true;
  const Choice& before = *choices_[index - 1];
  return before.prefill.has_value() || before.is_finished;
}

GenerationRequest Generation::request_to_submit(size_t index) const {
  GenerationRequest request = requests_[index / num_per_prompt_];
  request.sampling.seed += index % num_per_prompt_;
  request.continues = index > 0;
  return request;
}

Result<void> Generation::submit_waiting() {
  while (next_to_submit_ < choices_.size() && num_running_ < kMaxRunning &&
         may_begin(next_to_submit_)) {
    Choice& choice = *choices_[next_to_submit_];
    auto stream = submit_(request_to_submit(next_to_submit_));
    bool is_let_in = next_to_submit_ > 0;
    if (!stream && stream.error().code == ErrorCode::kExhausted && is_let_in) return {};
    if (!stream) return stream.error();
    choice.stream = std::move(*stream);
    ++next_to_submit_;
    ++num_running_;
  }
  return {};
}

std::optional<GenerationEvent> Generation::next(std::chrono::milliseconds timeout) {
  auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!is_done()) {
    if (auto submitted = submit_waiting(); !submitted) return fail(submitted.error());
    for (size_t i = 0; i < choices_.size(); ++i) {
      size_t index = (next_to_ask_ + i) % choices_.size();
      if (auto event = take_item(index, kNoWait)) {
        next_to_ask_ = index + 1;
        return event;
      }
    }
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= kNoWait) return std::nullopt;
    if (num_running_ == 0) {  // the queue is full of others
      std::this_thread::sleep_for(std::min(left, kTurn));
      continue;
    }
    auto running = std::ranges::find_if(
        choices_, [](const auto& choice) { return choice->stream != nullptr; });
    check(running != choices_.end(), "generation waits although nothing runs");
    bool waits_for_place = next_to_submit_ < choices_.size();
    auto turn = num_running_ == 1 && !waits_for_place ? left : std::min(left, kTurn);
    if (auto event = take_item(static_cast<size_t>(running - choices_.begin()), turn)) return event;
  }
  return std::nullopt;
}

std::optional<GenerationEvent> Generation::take_item(size_t index,
                                                     std::chrono::milliseconds timeout) {
  // Items that bring no text yet are taken one after another, without waiting.
  while (choices_[index]->stream) {
    std::optional<StreamItem> item = choices_[index]->stream->next(timeout);
    if (!item) return std::nullopt;
    if (auto event = handle(index, std::move(*item))) return event;
    timeout = kNoWait;
  }
  return std::nullopt;
}

std::optional<GenerationEvent> Generation::handle(size_t index, StreamItem item) {
  Choice& choice = *choices_[index];
  if (auto* report = std::get_if<PrefillReport>(&item)) {
    choice.prefill = std::move(*report);
    return std::nullopt;
  }
  if (auto* logprobs = std::get_if<PromptLogprobs>(&item)) {
    choice.prompt_logprobs = std::move(logprobs->tokens);
    return std::nullopt;
  }
  if (auto* embedding = std::get_if<Embedding>(&item)) {
    choice.embedding = std::move(embedding->values);
    return std::nullopt;
  }
  if (auto* token = std::get_if<SampledToken>(&item)) return add_token(index, std::move(*token));
  if (auto* finished = std::get_if<Finished>(&item)) {
    StopStrings::Output last = choice.stop_strings.push(choice.detokenizer.finish());
    std::string text = std::move(last.text);
    if (!last.stopped) text += choice.stop_strings.finish();
    choice.stop = std::move(last.stop);
    return finish(index, std::move(text), last.stopped ? FinishReason::kStop : finished->reason);
  }
  return fail(std::get<Error>(std::move(item)));
}

std::optional<GenerationEvent> Generation::add_token(size_t index, SampledToken token) {
  Choice& choice = *choices_[index];
  ++completion_tokens_;
  int32_t id = token.token;
  choice.held_tokens.push_back(std::move(token));
  std::string text = choice.detokenizer.push(id);
  choice.held_offsets.push_back(choice.detokenizer.last_offset());
  StopStrings::Output output;
  if (++choice.num_tokens <= min_tokens_) {
    output.text = std::move(text);
  } else {
    output = choice.stop_strings.push(text);
  }
  if (output.stopped) {
    choice.stream->cancel();
    choice.stop = std::move(output.stop);
    return finish(index, std::move(output.text), FinishReason::kStop);
  }
  if (output.text.empty()) return std::nullopt;
  return ChoicePiece{static_cast<int32_t>(index),
                     std::move(output.text),
                     std::exchange(choice.held_tokens, {}),
                     std::nullopt,
                     {},
                     std::exchange(choice.held_offsets, {})};
}

GenerationEvent Generation::finish(size_t index, std::string text, FinishReason reason) {
  Choice& choice = *choices_[index];
  choice.stream.reset();
  choice.is_finished = true;
  ++num_finished_;
  --num_running_;
  return ChoicePiece{static_cast<int32_t>(index),
                     std::move(text),
                     std::exchange(choice.held_tokens, {}),
                     reason,
                     std::move(choice.stop),
                     std::exchange(choice.held_offsets, {})};
}

GenerationEvent Generation::fail(Error error) {
  has_failed_ = true;
  cancel_all();
  return error;
}

}  // namespace droidspeak
