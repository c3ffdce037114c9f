#include "engine/answer.h"

namespace droidspeak {
namespace {

void report_prefill(Sequence& sequence, TimePoint now, MetricsBoard& metrics) {
  PrefillReport& report = sequence.report;
  report.ttft_ms = seconds_between(sequence.submitted, now) * 1e3;
  report.prefill_ms = seconds_between(sequence.admitted, now) * 1e3;
  sequence.stream->push(report);
  if (sequence.request.wants_prompt_logprobs)
    sequence.stream->push(std::move(sequence.prompt_logprobs));
  metrics.update([&](EngineMetrics& m) {
    m.ttft_seconds.add(report.ttft_ms * 1e-3);
    m.predicted_ttft_seconds += sequence.choice.predicted_seconds + report.queue_ms * 1e-3;
    m.measured_ttft_seconds += report.ttft_ms * 1e-3;
    ++m.predictions;
  });
}

bool finish(Sequence& sequence, Finished finished, TimePoint now, MetricsBoard& metrics) {
  metrics.update([&](EngineMetrics& m) {
    m.e2e_seconds.add(seconds_between(sequence.submitted, now));
    ++(finished.reason == FinishReason::kStop ? m.requests_finished_stop
                                              : m.requests_finished_length);
  });
  sequence.stream->push(finished);
  return true;
}

}  // namespace

bool answer(Sequence& sequence, std::optional<SampledToken> token, MetricsBoard& metrics) {
  TimePoint now = std::chrono::steady_clock::now();
  bool is_first = sequence.num_generated() == 0;
  if (is_first) report_prefill(sequence, now, metrics);
  if (!token) return finish(sequence, {FinishReason::kLength, -1}, now, metrics);

  int32_t id = token->token;
  bool has_ended = sequence.matcher && sequence.matcher->has_ended();
  if (has_ended || sequence.request.stop_tokens->contains(id)) {
    return finish(sequence, {FinishReason::kStop, id}, now, metrics);
  }
  sequence.tokens.push_back(id);
  sequence.stream->push(std::move(*token));
  metrics.update([&](EngineMetrics& m) {
    ++m.generation_tokens;
    if (!is_first) m.time_per_output_token_seconds.add(seconds_between(sequence.last_token, now));
  });
  sequence.last_token = now;
  if (sequence.matcher && sequence.matcher->is_finished())
    return finish(sequence, {FinishReason::kStop, -1}, now, metrics);
  if (sequence.num_tokens() < sequence.max_tokens) return false;
  return finish(sequence, {FinishReason::kLength, -1}, now, metrics);
}

void abandon(Sequence& sequence, const Error& error, MetricsBoard& metrics) {
  sequence.release_blocks();
  metrics.update([&](EngineMetrics& m) {
    ++(error.code == ErrorCode::kCancelled ? m.requests_cancelled : m.requests_failed);
  });
  sequence.stream->push(error);
}

}  // namespace droidspeak
