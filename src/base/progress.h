// Progress of long work on stderr: a bar with time left on a terminal, a line now and then
// elsewhere. Says nothing about work that ends within two seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace droidspeak {

class Progress {
 public:
  Progress(std::string title, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(int64_t steps = 1);
  void note(std::string text);  // shown behind the bar

 private:
  void draw(bool is_final);

  std::string title_;
  std::string note_;
  int64_t total_;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point last_drawn_;
  bool is_terminal_;
  bool was_drawn_ = false;
};

}  // namespace droidspeak
