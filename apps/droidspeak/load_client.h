// Sends completion requests to an OpenAI server and takes the times of what comes back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace droidspeak {

// A server. Some take the adapter not by model name but by its number, as llama-server does.
struct LoadTarget {
  std::string url;                 // like http://127.0.0.1:8080
  std::vector<std::string> loras;  // adapters in the order of their numbers; empty: by model name
};

struct LoadRequest {
  std::string model;
  std::vector<int32_t> prompt;
  int32_t max_tokens = 16;
  std::string cache_salt = {};
};

struct LoadResult {
  int status = 0;  // of HTTP; 0: no answer
  bool is_complete = false;
  double ttft_ms = 0;
  double e2e_ms = 0;
  std::vector<double> gaps_ms;  // between one piece of text and the next
  int32_t tokens = 0;
  std::string text;
  std::string plan;  // what the server says it did; empty: nothing
};

// Throws Failure when `url` is not like http://127.0.0.1:8080.
void check_load_url(const std::string& url);

// Of a URL that has been checked. Waits for the whole answer; safe to call from many threads.
LoadResult run_load_request(const LoadTarget& target, const LoadRequest& request);

}  // namespace droidspeak
