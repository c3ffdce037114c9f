// Sends completion requests to an OpenAI server and takes the times of what comes back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace droidspeak {

struct LoadRequest {
  std::string model;
  std::vector<int32_t> prompt;
  int32_t max_tokens = 16;
  std::string cache_salt;
};

struct LoadResult {
  int status = 0;  // of HTTP; 0: no answer
  bool is_complete = false;
  double ttft_ms = 0;
  double tbt_ms = 0;  // mean time between tokens; 0 for fewer than two
  double e2e_ms = 0;
  int32_t tokens = 0;
  std::string text;
};

// `url` like http://127.0.0.1:8080. Waits for the whole answer; safe to call from many threads.
LoadResult run_load_request(const std::string& url, const LoadRequest& request);

}  // namespace droidspeak
