// A row of logits or states against the one that was expected.
#pragma once

#include <vector>

#include <gtest/gtest.h>

namespace droidspeak {

template <class Number>
void expect_close(const std::vector<float>& ours,
                  const std::vector<Number>& expected,
                  double tolerance) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(ours[i]), static_cast<double>(expected[i]), tolerance)
        << "column " << i;
  }
}

}  // namespace droidspeak
