// Closed-form fit of one low-rank correction: y - x is regressed on x, where x are rows of a
// sender's cache and y the receiver's rows for the same tokens. No data means no correction.
#pragma once

#include <cstdint>
#include <vector>

#include "profiler/linear_algebra.h"
#include "sharing/translation.h"

namespace droidspeak {

// Sums over rows x and d = y - x, [columns] each.
struct NormalEquations {
  int64_t columns = 0;
  double count = 0;
  std::vector<double> input_sum;       // sum x
  std::vector<double> difference_sum;  // sum d
  std::vector<float> products;         // [columns, 2 * columns]: sum x^T [x | d]

  NormalEquations() = default;
  explicit NormalEquations(int64_t n);
  void add(const NormalEquations& other);
};

// The fitted correction before it is cut to a rank.
class FittedCorrection {
 public:
  // Ridge regression with lambda times the inputs' variances, intercept free, then the directions
  // of the output that the correction moves most. Throws Failure when the sums are not finite.
  FittedCorrection(const NormalEquations& sums, double lambda, int32_t max_rank);

  // x += (x down^T) up^T + bias with `rank` directions (at most max_rank). The mean is always
  // corrected in full.
  LinearMap cut(int32_t rank) const;

 private:
  std::vector<double> input_mean_;
  std::vector<double> difference_mean_;
  Matrix down_;        // [max_rank, columns]: weights projected on each direction
  Matrix directions_;  // [max_rank, columns]
};

}  // namespace droidspeak
