#include "engine/answer.h"

#include <cmath>

namespace droidspeak {
namespace {

void report_prefill(Sequence& sequence, TimePoint now, MetricsBoard& metrics) {
  PrefillReport& report = sequence.report;
  report.ttft_ms = seconds_between(sequence.submitted, now) * 1e3;
  report.prefill_ms = seconds_between(sequence.admitted, now) * 1e3;
  sequence.stream->push(report);
  if (sequence.request.wants_prompt_logprobs)
    sequence.stream->push(std::move(sequence.prompt_logprobs));
  if (sequence.request.wants_embedding) {
    sequence.stream->push(sequence.embedding.result());
    return;
  }
  metrics.update([&](EngineMetrics& m) {
    m.count(sequence.variant->name,
            [&](RequestCounters& counters) { counters.ttft_seconds.add(report.ttft_ms * 1e-3); });
    // Of a plan that was asked for by name over a link that nobody had measured there is none.
    if (!std::isfinite(sequence.choice.predicted_seconds)) return;
    m.predicted_ttft_seconds += sequence.choice.predicted_seconds + report.queue_ms * 1e-3;
    m.measured_ttft_seconds += report.ttft_ms * 1e-3;
    ++m.predictions;
  });
}

bool finish(Sequence& sequence, Finished finished, TimePoint now, MetricsBoard& metrics) {
  metrics.update([&](EngineMetrics& m) {
    m.e2e_seconds.add(seconds_between(sequence.submitted, now));
    m.count(sequence.variant->name, [&](RequestCounters& counters) {
      ++(finished.reason == FinishReason::kStop ? counters.requests_finished_stop
                                                : counters.requests_finished_length);
    });
  });
  sequence.stream->push(finished);
  return true;
}

// True when the request is finished. `matcher` stands behind the token; null: nothing ends there.
bool add_token(Sequence& sequence,
               SampledToken token,
               GrammarMatcher* matcher,
               MetricsBoard& metrics) {
  TimePoint now = std::chrono::steady_clock::now();
  bool is_first = sequence.num_generated() == 0;
  int32_t id = token.token;
  bool has_ended = matcher != nullptr && matcher->has_ended();
  if (has_ended || sequence.request.stop_tokens->contains(id)) {
    return finish(sequence, {FinishReason::kStop, id}, now, metrics);
  }
  sequence.tokens.push_back(id);
  sequence.stream->push(std::move(token));
  metrics.update([&](EngineMetrics& m) {
    m.count(sequence.variant->name,
            [](RequestCounters& counters) { ++counters.generation_tokens; });
    if (!is_first) m.time_per_output_token_seconds.add(seconds_between(sequence.last_token, now));
  });
  sequence.last_token = now;
  if (matcher != nullptr && matcher->is_finished())
    return finish(sequence, {FinishReason::kStop, -1}, now, metrics);
  if (sequence.num_tokens() < sequence.max_tokens) return false;
  return finish(sequence, {FinishReason::kLength, -1}, now, metrics);
}

}  // namespace

bool answer(Sequence& sequence, std::vector<SampledToken> tokens, MetricsBoard& metrics) {
  TimePoint now = std::chrono::steady_clock::now();
  if (sequence.num_generated() == 0) report_prefill(sequence, now, metrics);
  if (tokens.empty()) return finish(sequence, {FinishReason::kLength, -1}, now, metrics);
  // The grammar has followed all of them, and none but the last can have ended it.
  for (SampledToken& token : tokens) {
    bool is_last = &token == &tokens.back();
    GrammarMatcher* matcher = is_last && sequence.matcher ? &*sequence.matcher : nullptr;
    if (add_token(sequence, std::move(token), matcher, metrics)) return true;
  }
  return false;
}

void abandon(Sequence& sequence, const Error& error, MetricsBoard& metrics) {
  sequence.release_blocks();
  metrics.update([&](EngineMetrics& m) {
    m.count(sequence.variant->name, [&](RequestCounters& counters) {
      ++(error.code == ErrorCode::kCancelled ? counters.requests_cancelled
                                             : counters.requests_failed);
    });
  });
  sequence.stream->push(error);
}

}  // namespace droidspeak
