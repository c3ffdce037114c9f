#include "engine/batch_runner.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr int64_t kLogitRows = 64;  // bounds the memory of prompt logits

// Layers before which some sequence has something to do, and the end.
std::set<int32_t> stops_of(const Batch& batch) {
  int32_t num_layers = batch.transformer->config().num_layers;
  std::set<int32_t> stops = {num_layers};
  for (const StepPlan::Work& work : batch.work) {
    if (work.sequence->reuse) {
      for (int32_t layer = 0; layer < num_layers; ++layer) stops.insert(layer);
    }
    bool is_prompt = work.sequence->num_computed < work.sequence->prompt_tokens;
    if (!work.sequence->writer || !is_prompt) continue;
    for (int32_t layer : work.sequence->writer->captured_layers()) stops.insert(layer);
  }
  return stops;
}

bool samples_on_device(const Sequence& sequence) {
  return sequence.sampler.is_plain_greedy() && sequence.request.num_top_logprobs < 0 &&
         !sequence.is_restricted();
}

}  // namespace

BatchRunner::Sampled BatchRunner::run(const Batch& batch) {
  return finish(batch, forward(batch));
}

std::optional<BatchRunner::Sampled> BatchRunner::follow(const Batch& batch) {
  check(batch.work.size() == 1, "one sequence follows its loads");
  Sequence& sequence = *batch.work.front().sequence;
  Transformer& transformer = *batch.transformer;
  if (!sequence.pass) {
    sequence.pass = std::make_unique<LayerPass>();
    sequence.pass->num_tokens = batch.work.front().num_tokens;
    sequence.pass->hidden = Tensor(ops_.device(), ops_.activation_dtype(), batch.num_rows(),
                                   transformer.config().d_model);
    transformer.embed(batch.tokens, sequence.pass->hidden.view());
  }
  LayerPass& pass = *sequence.pass;
  TensorView hidden = pass.hidden.view();
  int32_t num_layers = transformer.config().num_layers;
  while (pass.next_layer < num_layers && sequence.reuse->is_layer_ready(pass.next_layer)) {
    prepare_layer(batch, pass.next_layer, hidden);
    transformer.forward_layers({pass.next_layer, pass.next_layer + 1}, batch.slices, kv_, hidden);
    ++pass.next_layer;
  }
  if (pass.next_layer < num_layers) return std::nullopt;
  Sampled sampled = finish(batch, hidden);
  sequence.pass.reset();
  return sampled;
}

BatchRunner::Sampled BatchRunner::finish(const Batch& batch, TensorView hidden) {
  Sampled sampled(batch.work.size());
  for (size_t i = 0; i < batch.work.size(); ++i) {
    if (batch.work[i].sequence->request.wants_prompt_logprobs)
      sampled[i].has_overflown = !add_prompt_logprobs(batch, i, hidden);
  }
  sample(batch, hidden, sampled);
  return sampled;
}

TensorView BatchRunner::forward(const Batch& batch) {
  Transformer& transformer = *batch.transformer;
  TensorView hidden = hidden_.reshape(ops_.device(), ops_.activation_dtype(), batch.num_rows(),
                                      transformer.config().d_model);
  transformer.embed(batch.tokens, hidden);
  int32_t done = 0;
  for (int32_t stop : stops_of(batch)) {
    if (stop > done) transformer.forward_layers({done, stop}, batch.slices, kv_, hidden);
    done = stop;
    if (stop < transformer.config().num_layers) prepare_layer(batch, stop, hidden);
  }
  return hidden;
}

void BatchRunner::prepare_layer(const Batch& batch, int32_t layer, TensorView hidden) {
  for (size_t i = 0; i < batch.work.size(); ++i) {
    Sequence& sequence = *batch.work[i].sequence;
    if (sequence.reuse) sequence.reuse->prepare_layer(layer);
    if (!sequence.writer || sequence.num_computed >= sequence.prompt_tokens) continue;
    const std::vector<int32_t>& captured = sequence.writer->captured_layers();
    if (std::find(captured.begin(), captured.end(), layer) == captured.end()) continue;
    int64_t begin = batch.slices[i].sequence.first_row;
    sequence.writer->capture(layer, sequence.num_computed,
                             hidden.row_range(begin, begin + batch.work[i].num_tokens));
  }
}

// Row p predicts the prompt's token p + 1. After a preemption the first ones are there already.
bool BatchRunner::add_prompt_logprobs(const Batch& batch, size_t index, TensorView hidden) {
  Sequence& sequence = *batch.work[index].sequence;
  std::vector<SampledToken>& known = sequence.prompt_logprobs.tokens;
  int32_t alternatives =
      std::max(sequence.request.num_top_logprobs, sequence.request.num_prompt_alternatives);
  int32_t end =
      std::min(sequence.num_computed + batch.work[index].num_tokens, sequence.prompt_tokens - 1);
  int64_t shift = batch.slices[index].sequence.first_row - sequence.num_computed;
  auto position = std::max(sequence.num_computed, static_cast<int32_t>(known.size()));
  while (position < end) {
    int64_t rows = std::min<int64_t>(kLogitRows, end - position);
    TensorView logits =
        logits_of(*batch.transformer, hidden.row_range(position + shift, position + shift + rows));
    std::vector<int32_t> best(static_cast<size_t>(rows));
    ops_.argmax(logits, best);
    std::span<float> values = host_rows(logits);
    for (int64_t row = 0; row < rows; ++row, ++position) {
      if (best[static_cast<size_t>(row)] < 0) return false;
      auto columns = static_cast<size_t>(logits.columns);
      std::span<const float> one = values.subspan(static_cast<size_t>(row) * columns, columns);
      int32_t token = sequence.tokens[static_cast<size_t>(position) + 1];
      known.push_back({token, token_logprob(one, token), top_logprobs(one, alternatives),
                       token_rank(one, token)});
    }
  }
  return true;
}

// Logits that nobody asked for tell whether what was read is worth keeping.
void BatchRunner::sample(const Batch& batch, TensorView hidden, Sampled& sampled) {
  std::vector<size_t> complete;
  for (size_t i = 0; i < batch.work.size(); ++i) {
    if (batch.gives_token(i) && !sampled[i].has_overflown) complete.push_back(i);
  }
  if (complete.empty()) return;
  TensorView logits = logits_of(*batch.transformer, last_rows(batch, complete, hidden));
  // The device still computes: time to find out what may come next.
  for (size_t work : complete) batch.work[work].sequence->allowed_tokens();
  std::vector<int32_t> best(complete.size());
  ops_.argmax(logits, best);
  for (size_t i = 0; i < complete.size(); ++i) {
    Sequence& sequence = *batch.work[complete[i]].sequence;
    Sample& sample = sampled[complete[i]];
    sample.has_overflown = best[i] < 0;
    if (sample.has_overflown || sequence.request.max_tokens == 0) continue;
    if (sequence.is_looking(Looking::Stage::kScout)) {
      sample.token = SampledToken{.token = best[i]};  // a draft
      continue;
    }
    if (samples_on_device(sequence)) {
      sequence.sampler.accept(best[i]);
      sample.token = SampledToken{.token = best[i]};
      continue;
    }
    auto row = static_cast<int64_t>(i);
    sample_on_host(sequence, logits.row_range(row, row + 1), sample);
  }
}

void BatchRunner::sample_on_host(Sequence& sequence, TensorView logits, Sample& sample) {
  std::span<const uint32_t> allowed = sequence.allowed_tokens();
  sample.is_stuck =
      !allowed.empty() && std::ranges::all_of(allowed, [](uint32_t tokens) { return tokens == 0; });
  if (sample.is_stuck) return;
  SampledToken token =
      sequence.sampler.sample(host_rows(logits), sequence.request.num_top_logprobs, allowed);
  if (sequence.matcher) sample.is_stuck = !sequence.matcher->accept(token.token);
  if (!sample.is_stuck) sample.token = std::move(token);
}

// The last row of each of these works. Decode steps have no other rows.
TensorView BatchRunner::last_rows(const Batch& batch,
                                  std::span<const size_t> works,
                                  TensorView hidden) {
  auto count = static_cast<int64_t>(works.size());
  if (count == hidden.rows) return hidden;
  TensorView rows = last_rows_.reshape(ops_.device(), hidden.dtype, count, hidden.columns);
  for (int64_t i = 0; i < count; ++i) {
    const SequenceSlice& slice = batch.slices[works[static_cast<size_t>(i)]].sequence;
    int64_t last = slice.first_row + slice.num_rows - 1;
    ops_.copy(hidden.row_range(last, last + 1), rows.row_range(i, i + 1));
  }
  return rows;
}

TensorView BatchRunner::logits_of(Transformer& transformer, TensorView rows) {
  TensorView logits =
      logits_.reshape(ops_.device(), DType::kF32, rows.rows, transformer.config().vocab_size);
  transformer.logits(rows, logits);
  return logits;
}

std::span<float> BatchRunner::host_rows(TensorView logits) {
  check(logits.row_stride == logits.columns, "logits are contiguous");
  host_logits_.resize(static_cast<size_t>(logits.rows * logits.columns));
  ops_.device().to_host(host_logits_.data(), logits.data, host_logits_.size() * sizeof(float));
  return host_logits_;
}

}  // namespace droidspeak
