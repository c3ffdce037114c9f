#include "profiler/prompt_trial.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "sharing/look.h"

namespace droidspeak {
namespace {

// Suffixes that must find room in the K/V memory beside the contexts.
constexpr int32_t kSideBySide = 32;
// A logit beside 0 that leaves a token no probability.
constexpr float kImpossible = -1e4f;

}  // namespace

PromptTrial::PromptTrial(TrialTools& tools, const QaPrompt& prompt)
    : tools_(tools),
      prompt_(prompt),
      context_(tools.pair,
               tools.scratch,
               std::span(prompt.tokens).first(static_cast<size_t>(shared_tokens(prompt)))) {}

bool PromptTrial::has_room() const {
  auto suffix =
      static_cast<int32_t>(std::max({suffix_.size(), gold_suffix_.size(), question().size()}));
  return tools_.pair.kv.pool().num_free() >=
         blocks_for(context_.num_tokens()) + kSideBySide * blocks_for(suffix);
}

std::span<const int32_t> PromptTrial::question() const {
  return std::span(prompt_.tokens).subspan(static_cast<size_t>(context_.num_tokens()));
}

std::vector<int32_t> PromptTrial::suffix_with(std::span<const int32_t> answer) const {
  std::vector<int32_t> suffix(question().begin(), question().end());
  suffix.insert(suffix.end(), answer.begin(), answer.end() - 1);
  return suffix;
}

SuffixRows PromptTrial::scored_rows(std::span<const int32_t> suffix) const {
  auto first = static_cast<int32_t>(question().size()) - 1;
  return {suffix, context_.num_tokens(), first};
}

void PromptTrial::set_answer(const std::vector<int32_t>& tokens) {
  answer_ = tokens;
  suffix_ = suffix_with(answer_);
}

void PromptTrial::set_reference_rows(TensorView hidden) {
  Ops& ops = tools_.pair.ops;
  Transformer& transformer = *tools_.pair.receiver->transformer;
  TensorView logits = tools_.reference.reshape(ops.device(), DType::kF32, hidden.rows,
                                               transformer.config().vocab_size);
  transformer.logits(hidden, logits);
  std::vector<RowDivergence> itself(static_cast<size_t>(hidden.rows));
  size_t bytes = itself.size() * sizeof(RowDivergence);
  TensorView out =
      tools_.compared.reshape(ops.device(), DType::kI8, 1, static_cast<int64_t>(bytes));
  ops.divergence(logits, logits, static_cast<RowDivergence*>(out.data));
  ops.device().to_host(itself.data(), out.data, bytes);
  for (const RowDivergence& row : itself) {
    if (!std::isfinite(row.kl))
      throw Failure(ErrorCode::kDataCorrupt,
                    "the receiver's own full prefill gives logits that are not finite");
  }
}

ReferenceAnswer PromptTrial::answer_in_full(const AnswerLimits& limits) {
  AnswerStart start{context_.full(), {}};
  ReferenceAnswer reference;
  reference.tokens =
      tools_.generator.generate(question(), context_.num_tokens(), std::span(&start, 1), limits)
          .front();
  set_answer(reference.tokens);
  TensorView hidden = tools_.scorer.run(scored_rows(suffix_), start.mixture);
  reference.rows.resize(bytes_of(hidden.dtype, hidden.rows * hidden.columns));
  tools_.pair.ops.device().to_host(reference.rows.data(), hidden.data, reference.rows.size());
  set_reference_rows(hidden);
  return reference;
}

void PromptTrial::set_reference(const ReferenceAnswer& reference) {
  Ops& ops = tools_.pair.ops;
  set_answer(reference.tokens);
  TensorView hidden =
      tools_.hidden.reshape(ops.device(), ops.activation_dtype(), std::ssize(answer_),
                            tools_.pair.receiver->transformer->config().d_model);
  check(reference.rows.size() == bytes_of(hidden.dtype, hidden.rows * hidden.columns),
        "reference rows of this model");
  ops.device().to_device(hidden.data, reference.rows.data(), reference.rows.size());
  set_reference_rows(hidden);
}

void PromptTrial::set_gold(std::vector<int32_t> tokens) {
  gold_ = std::move(tokens);
  gold_suffix_.clear();
  if (gold_.empty()) return;
  gold_suffix_ = suffix_with(gold_);
  auto width = static_cast<size_t>(tools_.pair.receiver->transformer->config().vocab_size);
  std::vector<float> logits(gold_.size() * width, kImpossible);
  for (size_t i = 0; i < gold_.size(); ++i) {
    auto token = static_cast<size_t>(gold_[i]);
    check(token < width, "a known answer of the model's tokens");
    logits[i * width + token] = 0;
  }
  Device& device = tools_.pair.ops.device();
  TensorView out =
      tools_.gold.reshape(device, DType::kF32, std::ssize(gold_), static_cast<int64_t>(width));
  device.to_device(out.data, logits.data(), logits.size() * sizeof(float));
}

std::vector<float> PromptTrial::scout(const TriedPlan& tried) {
  return tools_.look.scout(question(), context_.num_tokens(), context_.mixture(tried.layers()));
}

void PromptTrial::look(const TriedPlan& tried, std::span<const float> mass) {
  std::vector<int32_t> positions =
      choose_looked_at(mass, tried.plan.looked_at_tokens(context_.num_tokens()));
  tools_.look.read(context_.tokens(), positions, context_.copy_for_look(tried));
  context_.count_tokens(std::ssize(positions));
}

std::vector<Divergence> PromptTrial::compare(std::span<const ContextMixture> mixtures) {
  check(!answer_.empty(), "a reference to compare with");
  std::vector<RowDivergence> rows =
      tools_.scorer.compare(scored_rows(suffix_), mixtures, tools_.reference.view());
  std::vector<Divergence> result;
  for (size_t i = 0; i < mixtures.size(); ++i)
    result.push_back(summarise(std::span(rows).subspan(i * answer_.size(), answer_.size())));
  return result;
}

// The divergence from a distribution that is sure of one token is that token's -log probability.
std::vector<double> PromptTrial::gold_probabilities(std::span<const ContextMixture> mixtures) {
  check(has_gold(), "a known answer");
  std::vector<RowDivergence> rows =
      tools_.scorer.compare(scored_rows(gold_suffix_), mixtures, tools_.gold.view());
  std::vector<double> result;
  for (size_t i = 0; i < mixtures.size(); ++i) {
    auto of_mixture = std::span(rows).subspan(i * gold_.size(), gold_.size());
    result.push_back(std::exp(-summarise(of_mixture).kl));
  }
  return result;
}

std::vector<std::vector<int32_t>> PromptTrial::answers(std::span<const ContextMixture> mixtures,
                                                       std::span<const Divergence> divergences,
                                                       const AnswerLimits& limits) {
  std::vector<AnswerStart> starts;
  for (size_t i = 0; i < mixtures.size(); ++i) {
    AnswerStart start{mixtures[i], answer_};
    if (divergences[i].other_token >= 0) {
      start.known.resize(static_cast<size_t>(divergences[i].first_difference));
      start.known.push_back(divergences[i].other_token);
    }
    starts.push_back(std::move(start));
  }
  return tools_.generator.generate(question(), context_.num_tokens(), starts, limits);
}

std::string answer_text(const Tokenizer& tokenizer, std::vector<int32_t> tokens) {
  if (!tokens.empty() && std::ranges::find(tokenizer.end_of_turn_ids, tokens.back()) !=
                             tokenizer.end_of_turn_ids.end())
    tokens.pop_back();
  return tokenizer.decode(tokens, SpecialTokens::kParse);
}

}  // namespace droidspeak
