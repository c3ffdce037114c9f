// How long xgrammar may look for ways to read a text: in steps of its parser, which are the same on
// every machine, one to forty in a microsecond. cmake/build_xgrammar.cmake makes it count them.
#pragma once

#include <cstdint>

namespace xgrammar {

// For calls in this thread; the number before. A call that takes more ends with std::length_error.
int64_t SetStepsLeft(int64_t steps);

}  // namespace xgrammar

namespace droidspeak {

class StepLimit {
 public:
  explicit StepLimit(int64_t steps) : steps_(steps), before_(xgrammar::SetStepsLeft(steps)) {}

  ~StepLimit() { xgrammar::SetStepsLeft(before_); }

  StepLimit(const StepLimit&) = delete;
  StepLimit& operator=(const StepLimit&) = delete;

  int64_t num_taken() const {
    int64_t left = xgrammar::SetStepsLeft(0);
    xgrammar::SetStepsLeft(left);
    return steps_ - left;
  }

 private:
  const int64_t steps_;
  const int64_t before_;
};

}  // namespace droidspeak
