// Looks for the highest rate at which a server still meets its target, from the outcome of one
// trial after another.
#pragma once

#include <optional>

namespace droidspeak {

class RateSearch {
 public:
  enum class Outcome { kMet, kMissed };

  // Begins at `first_rate`; ends when the answer is known to within a factor of `precision`.
  RateSearch(double first_rate, double precision);

  // The rate to try; nothing when the search is over.
  std::optional<double> next() const;
  void note(double rate, Outcome outcome);

  double best() const { return best_; }  // the highest rate that met the target; 0: none yet

 private:
  static constexpr double kStride = 1.7;     // between trials while one side is unknown
  static constexpr double kHopeless = 0.02;  // of the first rate: nothing below is tried

  double first_rate_;
  double precision_;
  double best_ = 0;
  double worst_ = 0;  // the lowest rate that missed it; 0: none yet
};

}  // namespace droidspeak
