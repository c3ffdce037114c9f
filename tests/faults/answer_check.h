// What must hold for an engine over a cache folder after any fault: every answer equals full
// prefill, or, where the report names a sender, the answer of a healthy engine with the same plan
// over as many tokens of that sender.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/engine_fixture.h"

namespace droidspeak {

class AnswerCheck {
 public:
  static constexpr int32_t kAnswer = 6;

  AnswerCheck() {
    for (const char* receiver : {"alpha", "beta"})
      family_.add_book("base", receiver, {{{0, 0, 0}, 0.995}, {{0, 2, 3}, 0.999}});
    for (uint32_t seed = 0; seed < 3; ++seed) prompts_.push_back(random_prompt(seed, 330));
  }

  TinyFamily& family() { return family_; }

  // Every fetch reads the disk.
  static EngineOptions options_for(const std::filesystem::path& folder) {
    EngineOptions options = tiny_options();
    options.store.host_bytes = 0;
    options.store.disk_folder = folder;
    options.checks = EngineOptions::Checks::kNone;
    return options;
  }

  // What the family's users ask: own prefixes, plans by name and whatever the engine chooses.
  std::vector<GenerationRequest> requests() const {
    std::vector<GenerationRequest> all;
    for (const std::vector<int32_t>& prompt : prompts_) {
      all.push_back({.model = "base", .prompt = prompt, .max_tokens = kAnswer});
      all.push_back(with_plan("alpha", prompt, "0,2,3"));
      all.push_back(with_plan("beta", prompt, "reuse"));
      all.push_back({.model = "alpha", .prompt = prompt, .max_tokens = kAnswer});
    }
    return all;
  }

  void expect_right_answers(Engine& engine) {
    for (const GenerationRequest& request : requests()) {
      Outcome outcome = generate(engine, request);
      EXPECT_FALSE(outcome.error.has_value());
      EXPECT_EQ(outcome.tokens, expected(request, outcome.report))
          << request.model << ", plan " << outcome.report.plan << " over "
          << outcome.report.reused_tokens << " tokens";
      num_shared_ += outcome.report.sender.empty() ? 0 : 1;
    }
  }

  // So that a test can tell that it tested something.
  int num_shared() const { return num_shared_; }

  // Computed now, so that a child process has them too.
  void prepare() {
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    Engine engine(family_.ops(), family_.file(), options);
    expect_right_answers(engine);
    num_shared_ = 0;
  }

 private:
  using Key = std::tuple<std::string, std::vector<int32_t>, std::string, int32_t>;

  static GenerationRequest with_plan(const std::string& model,
                                     const std::vector<int32_t>& prompt,
                                     const std::string& plan) {
    return {.model = model,
            .prompt = prompt,
            .max_tokens = kAnswer,
            .sharing = {SharingRequest::Mode::kExplicit, "base", plan}};
  }

  const std::vector<int32_t>& expected(const GenerationRequest& request,
                                       const PrefillReport& report) {
    std::string plan = report.sender.empty() ? "full" : report.plan;
    Key key{request.model, request.prompt, plan, report.reused_tokens};
    auto found = expected_.find(key);
    if (found != expected_.end()) return found->second;
    std::vector<int32_t> tokens =
        report.sender.empty() ? family_.reference_greedy(request.model, request.prompt, kAnswer)
                              : healthy_answer(request, report);
    return expected_.emplace(key, std::move(tokens)).first->second;
  }

  // An engine of its own on the same ops: the one under test is idle meanwhile.
  std::vector<int32_t> healthy_answer(const GenerationRequest& request,
                                      const PrefillReport& report) {
    EngineOptions options = tiny_options();
    options.checks = EngineOptions::Checks::kNone;
    Engine engine(family_.ops(), family_.file(), options);
    auto end = request.prompt->begin() + report.reused_tokens + 1;
    generate(engine, {.model = "base", .prompt = {request.prompt->begin(), end}, .max_tokens = 1});
    Outcome outcome = generate(engine, with_plan(request.model, request.prompt, report.plan));
    EXPECT_EQ(outcome.report.reused_tokens, report.reused_tokens);
    return outcome.tokens;
  }

  TinyFamily family_;
  std::vector<std::vector<int32_t>> prompts_;
  std::map<Key, std::vector<int32_t>> expected_;
  int num_shared_ = 0;
};

}  // namespace droidspeak
