// Logits that another program computed for a model.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "parity/rows.h"
#include "parity/single_model.h"

namespace droidspeak {

struct Golden {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;  // of the last positions
  std::vector<int32_t> greedy;             // what follows the tokens; empty: not known
};

inline Golden read_golden(const std::filesystem::path& path) {
  nlohmann::json json = nlohmann::json::parse(read_file(path));
  return {json["tokens"].get<std::vector<int32_t>>(),
          json["logits"].get<std::vector<std::vector<float>>>(),
          json.value("greedy", std::vector<int32_t>())};
}

// A model's name and where it runs.
using GoldenCase = std::tuple<const char*, DeviceKind>;

inline std::string name_of_case(const testing::TestParamInfo<GoldenCase>& info) {
  std::string name = std::get<0>(info.param);
  std::ranges::replace(name, '-', '_');
  return name + "_" + device_name(std::get<1>(info.param));
}

inline std::filesystem::path golden_models() {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models";
}

inline float largest_logit(const Golden& golden) {
  float largest = 0;
  for (const auto& row : golden.logits) {
    for (float logit : row) largest = std::max(largest, std::abs(logit));
  }
  return largest;
}

// Root mean square over all logits.
inline double rms_difference(SingleModel& model, const Golden& golden, int32_t chunk) {
  std::vector<std::vector<float>> logits = model.logits(golden.tokens, chunk);
  size_t first = golden.tokens.size() - golden.logits.size();
  double sum = 0;
  double count = 0;
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    for (size_t j = 0; j < golden.logits[i].size(); ++j, ++count) {
      double difference = static_cast<double>(logits[first + i][j]) - golden.logits[i][j];
      sum += difference * difference;
    }
  }
  return std::sqrt(sum / count);
}

inline void expect_golden(SingleModel& model,
                          const Golden& golden,
                          int32_t chunk,
                          float tolerance) {
  std::vector<std::vector<float>> logits = model.logits(golden.tokens, chunk);
  size_t first = golden.tokens.size() - golden.logits.size();
  for (size_t i = 0; i < golden.logits.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "position " << first + i << " chunk " << chunk);
    expect_close(logits[first + i], golden.logits[i], tolerance);
  }
}

// Reads the tokens with their greedy answer and expects it to be ours, too.
inline void expect_greedy(SingleModel& model, const Golden& golden) {
  ASSERT_FALSE(golden.greedy.empty());
  std::vector<int32_t> tokens = golden.tokens;
  tokens.insert(tokens.end(), golden.greedy.begin(), golden.greedy.end());
  std::vector<std::vector<float>> logits = model.logits(tokens, 64);
  for (size_t i = 0; i < golden.greedy.size(); ++i) {
    const std::vector<float>& row = logits[golden.tokens.size() - 1 + i];
    EXPECT_EQ(std::ranges::max_element(row) - row.begin(), golden.greedy[i]) << "token " << i;
  }
}

}  // namespace droidspeak
