#include "load_client.h"

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace droidspeak {

namespace {

// Takes a stream of server-sent events apart as it arrives.
class EventReader {
 public:
  explicit EventReader(LoadResult& result) : result_(result) {}

  void add(const char* bytes, size_t size) {
    pending_.append(bytes, size);
    for (size_t end = pending_.find('\n'); end != std::string::npos; end = pending_.find('\n')) {
      read_line(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
  }

  void finish() {
    result_.e2e_ms = watch_.ms();
    if (result_.tokens > 1) result_.tbt_ms = (last_ms_ - result_.ttft_ms) / (result_.tokens - 1);
  }

 private:
  void read_line(const std::string& line) {
    if (!line.starts_with("data: ")) return;
    if (line.starts_with("data: [DONE]")) {
      result_.is_complete = true;
      return;
    }
    nlohmann::json event = nlohmann::json::parse(line.substr(6), nullptr, false);
    if (event.is_discarded()) return;
    if (event.contains("usage") && event["usage"].is_object()) {
      result_.tokens = event["usage"].value("completion_tokens", 0);
    }
    if (!event.contains("choices") || event["choices"].empty()) return;
    result_.text += event["choices"][0].value("text", "");
    last_ms_ = watch_.ms();
    if (result_.ttft_ms == 0) result_.ttft_ms = last_ms_;
  }

  LoadResult& result_;
  Stopwatch watch_;
  std::string pending_;
  double last_ms_ = 0;
};

std::string body_of(const LoadRequest& request) {
  nlohmann::json body = {{"model", request.model},
                         {"prompt", request.prompt},
                         {"max_tokens", request.max_tokens},
                         {"temperature", 0},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
  if (!request.cache_salt.empty()) body["cache_salt"] = request.cache_salt;
  return body.dump();
}

}  // namespace

LoadResult run_load_request(const std::string& url, const LoadRequest& request) {
  httplib::Client client(url);
  client.set_read_timeout(600);
  client.set_tcp_nodelay(true);
  LoadResult result;
  EventReader events(result);
  httplib::Request http;
  http.method = "POST";
  http.path = "/v1/completions";
  http.headers = {{"Content-Type", "application/json"}};
  http.body = body_of(request);
  http.content_receiver = [&](const char* bytes, size_t size, uint64_t, uint64_t) {
    events.add(bytes, size);
    return true;
  };
  auto response = client.send(http);
  if (response) result.status = response->status;
  events.finish();
  return result;
}

}  // namespace droidspeak
