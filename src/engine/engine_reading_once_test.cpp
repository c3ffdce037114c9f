// Requests of one variant on one context, of which the later ones come while the first is reading:
// through the whole engine.
#include <atomic>
#include <memory>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "engine/engine.h"
#include "engine/shared_family.h"
#include "support/forwarding_ops.h"

namespace droidspeak {
namespace {

// The next layer is computed when the gate is open.
class GatedOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  std::atomic<bool> is_open = true;
  std::atomic<int> num_held = 0;

  void rms_norm(TensorView in, const float* weight, float epsilon, TensorView out) override {
    if (!is_open) ++num_held;
    is_open.wait(false);
    ForwardingOps::rms_norm(in, weight, epsilon, out);
  }

  void set_open(bool to) {
    is_open = to;
    is_open.notify_all();
  }
};

class ReadingOnceInTheEngine : public testing::Test {
 protected:
  ReadingOnceInTheEngine() {
    EngineOptions options = tiny_options(256);
    options.checks = EngineOptions::Checks::kNone;
    // A layer of a token takes a second. With nobody behind it a request takes the best plan that
    // is within the target: not all of 1950 tokens, but three of four layers of them.
    options.fixed_costs =
        CostCoefficients{.token_seconds = 1, .output_seconds = 1, .bandwidths = {4e9, 5e8}};
    options.ttft_slo_ms = 7000e3;
    engine_ = std::make_unique<Engine>(ops_, family_.file(), options);
    generate(*engine_, {.model = "base", .prompt = question(0, 1920, 1), .max_tokens = 1});
  }

  ~ReadingOnceInTheEngine() override { ops_.set_open(true); }

  static GenerationRequest request(uint32_t seed) {
    return {.model = "alpha", .prompt = question(seed, 1920, 30), .max_tokens = 4};
  }

  SharedFamily family_;
  GatedOps ops_{family_.ops()};
  std::unique_ptr<Engine> engine_;
};

// Whether the second would follow the plan of the first depends on how many wait behind it: none,
// since it does not wait behind itself.
TEST_F(ReadingOnceInTheEngine, WhoComesAloneWaitsForThePlanOfWhoCameAlone) {
  ops_.set_open(false);
  auto first = std::move(engine_->submit(request(1))).take_or_throw();
  wait_until([&] { return ops_.num_held > 0; }, "the first is reading");
  auto second = std::move(engine_->submit(request(2))).take_or_throw();
  ops_.set_open(true);
  Outcome read = collect(*first);
  Outcome waited = collect(*second);
  EXPECT_EQ(read.report.plan, "0,1,4") << "the best one";
  EXPECT_GT(read.report.recomputed_layers, 0);
  EXPECT_EQ(waited.report.plan, "0,1,4");
  EXPECT_EQ(waited.report.recomputed_layers, 0) << "what the first has made";
}

}  // namespace
}  // namespace droidspeak
