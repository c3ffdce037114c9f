// A prompt's embedding on its way: the final hidden states of its tokens, summed as they come.
#pragma once

#include <span>
#include <vector>

#include "engine/request.h"

namespace droidspeak {

class EmbeddingPool {
 public:
  // One token's final state; all of a prompt's are of one size.
  void add(std::span<const float> state);

  bool is_finite() const;

  // Their mean, scaled to length 1; zeros stay zeros.
  Embedding result() const;

 private:
  std::vector<double> sum_;
};

}  // namespace droidspeak
