// For tests: operations of which every step of the engine takes some time, so that an answer of
// thousands of tokens outlasts the test on any machine.
#pragma once

#include <atomic>
#include <chrono>
#include <span>
#include <thread>

#include "support/forwarding_ops.h"

namespace droidspeak {

class SlowOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  // Of a step; with 20 ms an answer of 3000 tokens takes a minute.
  std::atomic<std::chrono::milliseconds> pause{};

  void embed(const WeightMatrix& table, std::span<const int32_t> tokens, TensorView out) override {
    std::this_thread::sleep_for(pause.load());
    ForwardingOps::embed(table, tokens, out);
  }
};

}  // namespace droidspeak
