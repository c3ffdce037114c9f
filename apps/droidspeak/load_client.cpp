#include "load_client.h"

#include <httplib.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;

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

  void finish() { result_.e2e_ms = watch_.ms(); }

 private:
  void read_line(const std::string& line) {
    if (!line.starts_with("data: ")) return;
    if (line.starts_with("data: [DONE]")) {
      result_.is_complete = true;
      return;
    }
    Json event = Json::parse(line.substr(6), nullptr, false);
    if (!event.is_object()) return;
    if (auto usage = event.find("usage"); usage != event.end() && usage->is_object())
      result_.tokens = usage->value("completion_tokens", 0);
    if (auto done = event.find("droidspeak"); done != event.end() && done->is_object())
      result_.plan = done->value("plan", "");
    if (auto choices = event.find("choices"); choices != event.end() && !choices->empty())
      note_text(choices->front().value("text", ""));
  }

  void note_text(const std::string& text) {
    result_.text += text;
    double now = watch_.ms();
    if (result_.ttft_ms == 0) {
      result_.ttft_ms = now;
    } else if (!text.empty()) {
      result_.gaps_ms.push_back(now - last_ms_);
    }
    last_ms_ = now;
  }

  LoadResult& result_;
  Stopwatch watch_;
  std::string pending_;
  double last_ms_ = 0;
};

std::string body_of(const LoadTarget& target, const LoadRequest& request) {
  Json body = {{"model", request.model},
               {"prompt", request.prompt},
               {"max_tokens", request.max_tokens},
               {"temperature", 0},
               {"stream", true},
               {"stream_options", {{"include_usage", true}}}};
  if (!request.cache_salt.empty()) body["cache_salt"] = request.cache_salt;
  for (size_t i = 0; i < target.loras.size(); ++i)
    body["lora"].push_back({{"id", i}, {"scale", target.loras[i] == request.model ? 1 : 0}});
  return body.dump();
}

}  // namespace

LoadResult run_load_request(const LoadTarget& target, const LoadRequest& request) {
  httplib::Client client(target.url);
  client.set_read_timeout(600);
  client.set_tcp_nodelay(true);
  httplib::Request http;
  http.method = "POST";
  http.path = "/v1/completions";
  http.headers = {{"Content-Type", "application/json"}};
  http.body = body_of(target, request);
  LoadResult result;
  EventReader events(result);
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
