#include <filesystem>
#include <fstream>
#include <set>

#include <unistd.h>

#include "server/handlers.h"
#include "server/prometheus.h"
#include "server/store_metrics.h"

namespace droidspeak {

namespace {

using Kind = PrometheusText::Kind;

double count(uint64_t value) {
  return static_cast<double>(value);
}

// Counters of each variant, as clients call it.
struct NamedCounters {
  std::string model;
  RequestCounters counters;
};

std::vector<NamedCounters> counters_by_model(const Service& service, const EngineMetrics& engine) {
  std::vector<NamedCounters> named;
  std::set<std::string> seen;  // the base may have several names
  for (const Service::Model& model : service.models()) {
    auto found = engine.variants.find(model.variant->name);
    if (found != engine.variants.end() && seen.insert(found->first).second)
      named.push_back({model.id, found->second});
  }
  return named;
}

void write_variant_metrics(PrometheusText& text, const std::vector<NamedCounters>& variants) {
  auto write = [&](const char* name, const char* help, uint64_t RequestCounters::*value) {
    text.metric(name, Kind::kCounter, help);
    for (const NamedCounters& variant : variants)
      text.sample(count(variant.counters.*value), {{"model_name", variant.model}});
  };
  write("vllm:prefix_cache_queries_total", "Prompt tokens looked up in caches.",
        &RequestCounters::prefix_cache_queries);
  write("vllm:prefix_cache_hits_total", "Prompt tokens found in caches.",
        &RequestCounters::prefix_cache_hits);
  write("vllm:prompt_tokens_total", "Prompt tokens processed.", &RequestCounters::prompt_tokens);
  write("vllm:generation_tokens_total", "Tokens generated.", &RequestCounters::generation_tokens);
  text.metric("vllm:request_success_total", Kind::kCounter, "Requests that ended, by reason.");
  for (const auto& [model, counters] : variants) {
    text.sample(count(counters.requests_finished_stop),
                {{"model_name", model}, {"finished_reason", "stop"}});
    text.sample(count(counters.requests_finished_length),
                {{"model_name", model}, {"finished_reason", "length"}});
    text.sample(count(counters.requests_cancelled),
                {{"model_name", model}, {"finished_reason", "abort"}});
    text.sample(count(counters.requests_failed),
                {{"model_name", model}, {"finished_reason", "error"}});
  }
  text.metric("vllm:time_to_first_token_seconds", Kind::kHistogram,
              "From arrival to the first token.");
  for (const auto& [model, counters] : variants)
    text.histogram(counters.ttft_seconds, {{"model_name", model}});
}

void write_vllm_metrics(PrometheusText& text, const EngineMetrics& engine) {
  text.metric("vllm:num_requests_running", Kind::kGauge, "Requests in the running batch.")
      .sample(engine.running);
  text.metric("vllm:num_requests_waiting", Kind::kGauge, "Requests that wait for their turn.")
      .sample(engine.waiting);
  text.metric("vllm:kv_cache_usage_perc", Kind::kGauge,
              "Share of paged K/V memory in use, 1 is all.")
      .sample(engine.kv_usage);
  text.metric("vllm:num_preemptions_total", Kind::kCounter,
              "Requests put back for lack of K/V memory.")
      .sample(count(engine.preemptions));
  text.metric("vllm:time_per_output_token_seconds", Kind::kHistogram,
              "Between tokens of one request.")
      .histogram(engine.time_per_output_token_seconds);
  text.metric("vllm:e2e_request_latency_seconds", Kind::kHistogram,
              "From arrival to the last token.")
      .histogram(engine.e2e_seconds);
  text.metric("vllm:request_queue_time_seconds", Kind::kHistogram,
              "From arrival to the first step.")
      .histogram(engine.queue_seconds);
  text.metric("vllm:spec_decode_num_draft_tokens_total", Kind::kCounter,
              "Tokens drafted ahead of decoding.")
      .sample(count(engine.drafted_tokens));
  text.metric("vllm:spec_decode_num_accepted_tokens_total", Kind::kCounter,
              "Drafted tokens that were what is sampled anyway.")
      .sample(count(engine.accepted_tokens));
}

void write_sharing_metrics(PrometheusText& text, const EngineMetrics& engine) {
  text.metric("droidspeak_share_hits_total", Kind::kCounter,
              "Contexts taken from another variant.");
  for (const auto& [pair, counters] : engine.pairs) {
    text.sample(count(counters.hits), {{"sender", pair.first}, {"receiver", pair.second}});
  }
  text.metric("droidspeak_share_tokens_reused_total", Kind::kCounter, "Context tokens taken over.");
  for (const auto& [pair, counters] : engine.pairs) {
    text.sample(count(counters.tokens_reused), {{"sender", pair.first}, {"receiver", pair.second}});
  }
  text.metric("droidspeak_cache_hits_total", Kind::kCounter,
              "Contexts found, by slowest tier read.");
  for (const auto& [tier, hits] : engine.hits_by_tier) text.sample(count(hits), {{"tier", tier}});
  text.metric("droidspeak_share_fallbacks_total", Kind::kCounter,
              "Planned reuse that did not happen.");
  for (const auto& [reason, times] : engine.fallbacks)
    text.sample(count(times), {{"reason", reason}});
  text.metric("droidspeak_layers_recomputed_total", Kind::kCounter,
              "Layers recomputed for reused contexts.")
      .sample(count(engine.layers_recomputed));
  text.metric("droidspeak_looked_at_tokens_total", Kind::kCounter,
              "Tokens of reused contexts read through all layers.")
      .sample(count(engine.looked_at_tokens));
  text.metric("droidspeak_bytes_loaded_total", Kind::kCounter, "Bytes loaded from caches.")
      .sample(count(engine.bytes_loaded));
  text.metric("droidspeak_load_seconds_total", Kind::kCounter, "Time spent loading caches.")
      .sample(engine.load_seconds);
  text.metric("droidspeak_compute_seconds_total", Kind::kCounter, "Time spent computing.")
      .sample(engine.compute_seconds);
  text.metric("droidspeak_ttft_predicted_seconds_total", Kind::kCounter, "Sum of predicted TTFT.")
      .sample(engine.predicted_ttft_seconds);
  text.metric("droidspeak_ttft_measured_seconds_total", Kind::kCounter,
              "Sum of TTFT of the same requests.")
      .sample(engine.measured_ttft_seconds);
  text.metric("droidspeak_ttft_predictions_total", Kind::kCounter, "Requests with a prediction.")
      .sample(count(engine.predictions));
}

void write_server_metrics(PrometheusText& text, const Service& service) {
  text.metric("droidspeak_http_requests_total", Kind::kCounter,
              "Requests answered, by path and status.");
  for (const auto& [key, times] : service.request_counts()) {
    text.sample(count(times), {{"path", key.first}, {"status", std::to_string(key.second)}});
  }
  text.metric("droidspeak_http_connections", Kind::kGauge, "Open connections.")
      .sample(service.num_connections);
}

// Resident pages and processor time as the kernel counts them; what cannot be read is left out.
void write_process_metrics(PrometheusText& text, const Service& service) {
  text.metric("process_start_time_seconds", Kind::kGauge, "Start, in Unix time.")
      .sample(static_cast<double>(service.start_time()));
  long total_pages = 0;
  long resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> total_pages >> resident_pages) {
    text.metric("process_resident_memory_bytes", Kind::kGauge, "Resident memory.")
        .sample(static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
  text.metric("process_cpu_seconds_total", Kind::kCounter, "Processor time used.")
      .sample(static_cast<double>(clock()) / CLOCKS_PER_SEC);
  std::error_code error;
  auto files = std::filesystem::directory_iterator("/proc/self/fd", error);
  if (!error) {
    text.metric("process_open_fds", Kind::kGauge, "Open file descriptors.")
        .sample(static_cast<double>(std::distance(files, std::filesystem::directory_iterator())));
  }
}

}  // namespace

HttpResponse health(Service& service, HttpRequest& /*request*/) {
  if (!service.engine().is_healthy()) {
    return error_response(status_error(503, "The engine has failed; restart the server."));
  }
  HttpResponse response;
  response.body = R"({"status":"ok"})";
  return response;
}

HttpResponse metrics(Service& service, HttpRequest& /*request*/) {
  EngineMetrics engine = service.engine().metrics();
  std::string model = service.models().front().id;
  PrometheusText text({{"model_name", model}, {"engine", "0"}});
  write_vllm_metrics(text, engine);
  write_variant_metrics(text, counters_by_model(service, engine));
  PrometheusText rest({});
  write_sharing_metrics(rest, engine);
  write_store_metrics(rest, engine.store);
  write_server_metrics(rest, service);
  write_process_metrics(rest, service);
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = std::move(text).take() + std::move(rest).take();
  return response;
}

}  // namespace droidspeak
