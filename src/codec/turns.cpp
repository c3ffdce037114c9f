#include "codec/turns.h"

#include <cmath>

namespace droidspeak {

Turns::Turns(std::vector<float> frequencies) : frequencies_(std::move(frequencies)) {
  for (int token = 0; token < kBlockTokens; ++token) {
    for (float frequency : frequencies_)
      steps_.push_back(static_cast<float>(std::cos(token * double{frequency})));
    for (float frequency : frequencies_)
      steps_.push_back(static_cast<float>(std::sin(token * double{frequency})));
  }
}

void Turns::of_position(uint32_t position, std::span<float> turns) const {
  for (size_t i = 0; i < num_pairs(); ++i) {
    double angle = double{frequencies_[i]} * position;
    turns[i] = static_cast<float>(std::cos(angle));
    turns[num_pairs() + i] = static_cast<float>(std::sin(angle));
  }
}

void Turns::of_block(uint32_t first_position, std::vector<float>& turns) const {
  size_t pairs = num_pairs();
  turns.resize(steps_.size());
  std::vector<float> first(2 * pairs);
  of_position(first_position, first);
  for (size_t row = 0; row < steps_.size(); row += 2 * pairs) {
    for (size_t i = 0; i < pairs; ++i) {
      float c = steps_[row + i];
      float s = steps_[row + pairs + i];
      turns[row + i] = first[i] * c - first[pairs + i] * s;
      turns[row + pairs + i] = first[pairs + i] * c + first[i] * s;
    }
  }
}

RowTurn Turns::row(std::span<const float> turns, size_t token) const {
  size_t pairs = num_pairs();
  auto row = turns.subspan(token * 2 * pairs, 2 * pairs);
  return {row.first(pairs), row.subspan(pairs)};
}

}  // namespace droidspeak
