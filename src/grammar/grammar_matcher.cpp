#include "grammar/grammar_matcher.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <stdexcept>

#include <spdlog/spdlog.h>

#include "base/check.h"
#include "grammar/step_limit.h"
#include "grammar/xgrammar_types.h"
#include "text/tokenizer.h"

namespace droidspeak {
namespace {

// Everybody waits for a call of the library. What is in order takes a small part of a millisecond,
// and at first a few.
constexpr double kMostMs = 1000;  // in all, and what comes with each token
constexpr double kMostMsPerToken = 2;
// Steps of one call, up to half a second: what is in order takes a fifth at most. Those of tokens
// that were accepted stay in memory.
constexpr int64_t kMostCallSteps = 1'000'000;
constexpr int64_t kMostKeptSteps = 400'000;
constexpr int64_t kMostKeptStepsPerToken = 200;

// Of this thread: however busy the machine is, an answer does not suffer for it.
double processor_ms() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

}  // namespace

struct GrammarMatcher::State {
  explicit State(std::shared_ptr<const CompiledGrammar> followed)
      : grammar(std::move(followed)),
        matcher(grammar->compiled().grammar),
        mask(static_cast<size_t>((grammar->vocab_size() + 31) / 32), 0),
        stop_tokens(matcher.GetStopTokenIds()) {}

  bool holds(int32_t token) const {
    auto place = static_cast<size_t>(token);
    return (mask[place / 32] >> (place % 32) & 1) != 0;
  }

  // The library throws on states that it does not know; such an answer cannot go on.
  template <class Step>
  bool run(const Step& step) {
    const double begin = processor_ms();
    StepLimit limit(kMostCallSteps);
    bool result = false;
    try {
      result = step();
      last_steps = limit.num_taken();
    } catch (const std::length_error&) {
      is_broken = true;
      is_slow = true;
    } catch (const std::exception& exception) {
      spdlog::error("a grammar cannot be followed: {}", exception.what());
      is_broken = true;
    }
    spent_ms += processor_ms() - begin;
    if (spent_ms > kMostMs + kMostMsPerToken * num_tokens) is_slow = true;
    return result;
  }

  void fill() {
    if (has_mask) return;
    std::fill(mask.begin(), mask.end(), 0);
    has_mask = true;
    if (is_broken || matcher.IsTerminated()) return;
    int64_t shape = static_cast<int64_t>(mask.size());
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &shape;
    bool is_restricted = run([&] { return matcher.FillNextTokenBitmask(&tensor); });
    if (is_broken) return std::fill(mask.begin(), mask.end(), 0);
    if (!is_restricted) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
  }

  std::shared_ptr<const CompiledGrammar> grammar;  // shared with others that follow it
  xgrammar::GrammarMatcher matcher;
  std::vector<uint32_t> mask;
  std::vector<int> stop_tokens;
  bool has_mask = false;
  bool is_broken = false;
  bool is_slow = false;
  double spent_ms = 0;
  int32_t num_tokens = 0;
  int64_t last_steps = 0;
  int64_t kept_steps = 0;
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar)
    : state_(std::make_unique<State>(std::move(grammar))) {}

GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

std::span<const uint32_t> GrammarMatcher::mask() {
  state_->fill();
  return state_->mask;
}

bool GrammarMatcher::allows(int32_t token) {
  if (token < 0 || token >= state_->grammar->vocab_size()) return false;
  state_->fill();
  return state_->holds(token);
}

bool GrammarMatcher::accept(int32_t token) {
  if (state_->is_broken || !allows(token)) return false;
  bool is_accepted = state_->run([&] { return state_->matcher.AcceptToken(token); });
  if (is_accepted) {
    state_->has_mask = false;
    ++state_->num_tokens;
    state_->kept_steps += state_->last_steps;
    if (state_->kept_steps > kMostKeptSteps + kMostKeptStepsPerToken * state_->num_tokens)
      state_->is_slow = true;
  }
  return is_accepted;
}

std::vector<int32_t> GrammarMatcher::forced_tokens() {
  if (state_->is_broken || state_->matcher.IsTerminated()) return {};
  std::string text;
  state_->run([&] {
    text = state_->matcher.FindJumpForwardString();
    return true;
  });
  if (text.empty()) return {};
  const Tokenizer& tokenizer = state_->grammar->tokenizer();
  std::vector<int32_t> tokens = tokenizer.encode(text, SpecialTokens::kAsText);
  std::string written;  // some tokenizers put a blank in front
  for (int32_t token : tokens) written += tokenizer.bytes_of(token);
  return written == text ? tokens : std::vector<int32_t>();
}

bool GrammarMatcher::has_ended() const {
  return state_->matcher.IsTerminated();
}

bool GrammarMatcher::is_finished() {
  if (state_->is_broken) return false;
  if (state_->matcher.IsTerminated()) return true;
  if (!state_->matcher.IsCompleted()) return false;
  state_->fill();
  std::vector<uint32_t> others = state_->mask;
  for (int token : state_->stop_tokens)
    others[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
  return std::ranges::all_of(others, [](uint32_t bits) { return bits == 0; });
}

bool GrammarMatcher::is_too_slow() const {
  return state_->is_slow;
}

}  // namespace droidspeak
