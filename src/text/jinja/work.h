// The allowance of one render: templates come from model files, so work and memory are counted and
// a template that wants too much fails with a clear message instead of hanging the server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace droidspeak::jinja {

// What went wrong inside a template; ChatTemplate adds the line and turns it into a Failure.
class TemplateError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Values may nest this deep (lists in lists); keeps every recursive walk and destructor shallow.
inline constexpr int kMaxValueDepth = 100;
// As in Jinja's sandbox.
inline constexpr int64_t kMaxRangeItems = 100000;

class Work {
 public:
  // Scales with the input, so that long conversations are never refused.
  explicit Work(size_t input_bytes)
      : steps_left_(2'000'000 + 16 * static_cast<uint64_t>(input_bytes)),
        bytes_left_((uint64_t{64} << 20) + 32 * static_cast<uint64_t>(input_bytes)) {}

  void step(uint64_t count = 1) {
    if (count > steps_left_)
      throw TemplateError("the template does too much work; is it in a loop?");
    steps_left_ -= count;
  }

  // Reading `bytes` of text.
  void scan(size_t bytes) { step(1 + bytes / 64); }

  // Call before allocating. Counts everything ever made in this render, freed or not.
  void allocate(uint64_t bytes) {
    if (bytes > bytes_left_)
      throw TemplateError("the template makes too much text or too many values");
    bytes_left_ -= bytes;
  }

 private:
  uint64_t steps_left_;
  uint64_t bytes_left_;
};

// What filters, tests, methods and functions may use of the render they run in.
struct Context {
  Work work;
  std::chrono::system_clock::time_point now;  // for strftime_now, shown in local time
};

// Text under construction, charged as it grows.
class TextBuilder {
 public:
  explicit TextBuilder(Work& work) : work_(work) {}

  void append(std::string_view text) {
    work_.allocate(text.size());
    text_.append(text);
  }

  void repeat(std::string_view text, uint64_t times) {
    work_.step(times);
    for (uint64_t i = 0; i < times; ++i) append(text);
  }

  const std::string& text() const { return text_; }

  std::string take() { return std::move(text_); }

 private:
  Work& work_;
  std::string text_;
};

}  // namespace droidspeak::jinja
