#include "engine/batch_runner.h"

#include <algorithm>
#include <set>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr int64_t kLogitRows = 64;  // bounds the memory of prompt logits

// Where captures stop the layers in between, decoding does without: the next reader fills them in.
bool captures_inputs(const Sequence& sequence) {
  if (!sequence.writer) return false;
  return sequence.num_computed < sequence.prompt_tokens || sequence.writer->captures_at_once();
}

// Layers before which some sequence has something to do, and the end.
std::set<int32_t> stops_of(const Batch& batch) {
  int32_t num_layers = batch.transformer->config().num_layers;
  std::set<int32_t> stops = {num_layers};
  for (const Step::Work& work : batch.work) {
    if (work.sequence->reuse) {
      for (int32_t layer = 0; layer < num_layers; ++layer) stops.insert(layer);
    }
    if (!captures_inputs(*work.sequence)) continue;
    for (int32_t layer : work.sequence->writer->captured_layers()) stops.insert(layer);
  }
  return stops;
}

// Whether Transformer::forward_layers() may repeat what it did for other batches.
bool can_repeat(const Batch& batch) {
  return batch.transformer->config().experts.count == 0 &&
         std::ranges::all_of(batch.slices, &BatchSlice::is_decoded);
}

// What the row gives is its best logit, whatever came before.
bool takes_best(const Sequence& sequence) {
  if (sequence.request.max_tokens == 0 || sequence.is_looking(Looking::Stage::kScout)) return true;
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
    if (batch.work[i].sequence->request.wants_embedding)
      sampled[i].has_overflown = !add_states(batch, i, hidden);
  }
  sample(batch, hidden, sampled);
  return sampled;
}

TensorView BatchRunner::forward(const Batch& batch) {
  Transformer& transformer = *batch.transformer;
  const int64_t rows =
      can_repeat(batch) ? ops_.repeated_rows(batch.num_rows()) : int64_t{batch.num_rows()};
  TensorView hidden =
      hidden_.reshape(ops_.device(), ops_.activation_dtype(), rows, transformer.config().d_model);
  std::vector<int32_t> tokens = batch.tokens;
  tokens.resize(static_cast<size_t>(rows));  // what is behind the batch's is of any token
  transformer.embed(tokens, hidden);
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
    if (!captures_inputs(sequence)) continue;
    const std::vector<int32_t>& captured = sequence.writer->captured_layers();
    if (std::find(captured.begin(), captured.end(), layer) == captured.end()) continue;
    int64_t begin = batch.slices[i].sequence.first_row;
    sequence.writer->capture(layer, sequence.num_computed,
                             hidden.row_range(begin, begin + batch.work[i].num_tokens));
  }
}

// The final states that the work's sequence pools: of all its rows, or of the last one.
bool BatchRunner::add_states(const Batch& batch, size_t index, TensorView hidden) {
  const SequenceSlice& slice = batch.slices[index].sequence;
  Sequence& sequence = *batch.work[index].sequence;
  int64_t end = slice.first_row + slice.num_rows;
  int64_t begin = sequence.wants_every_state() ? slice.first_row : end - 1;
  if (!sequence.wants_every_state() && !batch.is_complete(index)) return true;
  for (int64_t row = begin; row < end; row += kLogitRows) {
    int64_t rows = std::min(kLogitRows, end - row);
    TensorView states = states_.reshape(ops_.device(), DType::kF32, rows, hidden.columns);
    batch.transformer->output_states(hidden.row_range(row, row + rows), states);
    std::span<const float> values = host_rows(states);
    auto columns = static_cast<size_t>(states.columns);
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i)
      sequence.embedding.add(values.subspan(i * columns, columns));
  }
  return sequence.embedding.is_finite();
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

// Those of the works that give a token, each followed by its drafts.
std::vector<BatchRunner::Row> BatchRunner::token_rows(const Batch& batch, const Sampled& sampled) {
  std::vector<Row> rows;
  size_t slice = batch.work.size();
  auto add = [&](Row row) {
    row.place = std::ssize(rows);
    rows.push_back(row);
  };
  for (size_t i = 0; i < batch.work.size(); ++i) {
    size_t num_drafts = batch.work[i].sequence->drafts.size();
    if (batch.gives_token(i) && !sampled[i].has_overflown) {
      add({.work = i, .slice = i});
      for (size_t j = 0; j < num_drafts; ++j)
        add({.work = i, .slice = slice + j, .num_before = j + 1});
    }
    slice += num_drafts;
  }
  return rows;
}

// Logits that nobody asked for tell whether what was read is worth keeping. In one go for the whole
// batch; but what a draft's token depends on is known when the one before it is.
void BatchRunner::sample(const Batch& batch, TensorView hidden, Sampled& sampled) {
  const std::vector<Row> rows = token_rows(batch, sampled);
  if (rows.empty()) return;
  TensorView logits = logits_of(*batch.transformer, last_rows(batch, rows, hidden));
  // The device still computes: time to find out what may come next.
  for (const Row& row : rows) batch.work[row.work].sequence->allowed_tokens();
  for (size_t round = 0;; ++round) {
    std::vector<Row> asked;
    std::vector<RowSampling> how;
    for (const Row& row : rows) {
      auto sampling = sampling_of(*batch.work[row.work].sequence, row, round, sampled[row.work]);
      if (!sampling) continue;
      asked.push_back(row);
      how.push_back(*sampling);
    }
    if (asked.empty()) return;
    std::vector<SampledToken> tokens(asked.size());
    ops_.sample(logits, how, tokens);
    for (size_t i = 0; i < asked.size(); ++i)
      take(*batch.work[asked[i].work].sequence, asked[i], std::move(tokens[i]),
           sampled[asked[i].work]);
  }
}

bool BatchRunner::counts(Sequence& sequence, const Row& row, const Sample& sample) {
  if (row.num_before == 0) return true;
  return sample.tokens.size() == row.num_before &&
         sample.tokens.back().token == sequence.drafts[row.num_before - 1] &&
         !(sequence.matcher && sequence.matcher->is_finished());
}

std::optional<RowSampling> BatchRunner::sampling_of(Sequence& sequence,
                                                    const Row& row,
                                                    size_t round,
                                                    Sample& sample) {
  if (takes_best(sequence)) {
    if (round > 0) return std::nullopt;
    return RowSampling{.row = row.place};
  }
  if (row.num_before != round || !counts(sequence, row, sample)) return std::nullopt;
  std::span<const uint32_t> allowed = sequence.allowed_tokens();
  sample.is_stuck =
      !allowed.empty() && std::ranges::all_of(allowed, [](uint32_t tokens) { return tokens == 0; });
  if (sample.is_stuck) return RowSampling{.row = row.place};  // only whether it is finite
  return sequence.sampler.next(row.place, sequence.request.num_top_logprobs, allowed);
}

void BatchRunner::take(Sequence& sequence, const Row& row, SampledToken token, Sample& sample) {
  if (!counts(sequence, row, sample)) return;
  if (token.token < 0) {
    sample.has_overflown = row.num_before == 0;  // a draft's is met again by the step that comes
    sample.is_stuck = false;
    return;
  }
  if (sequence.request.max_tokens == 0 || sample.is_stuck) return;
  if (!sequence.is_looking(Looking::Stage::kScout)) {
    sequence.sampler.accept(token.token);
    if (sequence.matcher) sample.is_stuck = !sequence.matcher->accept(token.token);
  }
  if (!sample.is_stuck) sample.tokens.push_back(std::move(token));
}

// The last row of each of these slices. Decode steps have no others, but for those that are
// computed for nothing.
TensorView BatchRunner::last_rows(const Batch& batch,
                                  std::span<const Row> rows,
                                  TensorView hidden) {
  auto count = static_cast<int64_t>(rows.size());
  auto row_of = [&](int64_t i) {
    const SequenceSlice& slice = batch.slices[rows[static_cast<size_t>(i)].slice].sequence;
    return slice.first_row + slice.num_rows - 1;
  };
  bool is_all = count == batch.num_rows();
  for (int64_t i = 0; is_all && i < count; ++i) is_all = row_of(i) == i;
  if (is_all) return hidden;
  TensorView last = last_rows_.reshape(ops_.device(), hidden.dtype, count, hidden.columns);
  for (int64_t i = 0; i < count; ++i)
    ops_.copy(hidden.row_range(row_of(i), row_of(i) + 1), last.row_range(i, i + 1));
  return last;
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
