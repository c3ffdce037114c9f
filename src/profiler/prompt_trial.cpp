#include "profiler/prompt_trial.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {

PromptTrial::PromptTrial(const ModelPair& pair, const QaPrompt& prompt)
    : pair_(pair),
      prompt_(prompt),
      context_(pair, std::span(prompt.tokens).first(static_cast<size_t>(shared_tokens(prompt)))),
      scorer_(pair.ops, pair.kv, *pair.receiver),
      generator_(pair.ops, pair.kv, *pair.receiver) {}

std::span<const int32_t> PromptTrial::question() const {
  return std::span(prompt_.tokens).subspan(static_cast<size_t>(context_.num_tokens()));
}

SuffixRows PromptTrial::scored_rows() const {
  auto first = static_cast<int32_t>(question().size()) - 1;
  return {suffix_, context_.num_tokens(), first};
}

ReferenceAnswer PromptTrial::answer_in_full(const AnswerLimits& limits) {
  AnswerStart start{context_.full(), {}};
  ReferenceAnswer reference;
  reference.tokens =
      generator_.generate(question(), context_.num_tokens(), std::span(&start, 1), limits).front();
  answer_ = reference.tokens;
  suffix_.assign(question().begin(), question().end());
  suffix_.insert(suffix_.end(), answer_.begin(), answer_.end() - 1);
  scorer_.score(
      scored_rows(), std::span(&start.mixture, 1),
      [&](size_t, const SuffixScorer::ScoredRows& rows) {
        reference_.emplace(rows.logits, pair_.receiver->transformer->config().vocab_size);
        reference.rows.resize(bytes_of(rows.hidden.dtype, rows.hidden.rows * rows.hidden.columns));
        pair_.ops.device().to_host(reference.rows.data(), rows.hidden.data, reference.rows.size());
      });
  return reference;
}

void PromptTrial::set_reference(const ReferenceAnswer& reference) {
  const ModelConfig& config = pair_.receiver->transformer->config();
  answer_ = reference.tokens;
  suffix_.assign(question().begin(), question().end());
  suffix_.insert(suffix_.end(), answer_.begin(), answer_.end() - 1);
  Tensor hidden(pair_.ops.device(), pair_.ops.activation_dtype(), std::ssize(answer_),
                config.d_model);
  size_t bytes = bytes_of(hidden.view().dtype, hidden.rows() * hidden.columns());
  check(reference.rows.size() == bytes, "reference rows of this model");
  pair_.ops.device().to_device(hidden.view().data, reference.rows.data(), reference.rows.size());
  reference_.emplace(scorer_.logits(hidden.view()), config.vocab_size);
}

std::vector<Divergence> PromptTrial::compare(std::span<const ContextMixture> mixtures) {
  check(reference_.has_value(), "a reference to compare with");
  std::vector<Divergence> result(mixtures.size());
  scorer_.score(scored_rows(), mixtures, [&](size_t i, const SuffixScorer::ScoredRows& rows) {
    result[i] = reference_->compare(rows.logits);
  });
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
  return generator_.generate(question(), context_.num_tokens(), starts, limits);
}

std::string answer_text(const Tokenizer& tokenizer, std::vector<int32_t> tokens) {
  if (!tokens.empty() && std::ranges::find(tokenizer.end_of_turn_ids, tokens.back()) !=
                             tokenizer.end_of_turn_ids.end())
    tokens.pop_back();
  return tokenizer.decode(tokens, SpecialTokens::kParse);
}

}  // namespace droidspeak
