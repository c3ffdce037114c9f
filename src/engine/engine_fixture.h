// For tests: a tiny family on the CPU with an engine over it, and a slow reference without one.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.h"
#include "engine/engine.h"
#include "sharing/plan_books.h"
#include "support/tiny_model.h"

namespace droidspeak {

// Everything a stream gave until its end.
struct Outcome {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> sampled;
  PrefillReport report;
  PromptLogprobs prompt_logprobs;
  Embedding embedding;
  std::optional<Finished> finished;
  std::optional<Error> error;
};

inline Outcome collect(TokenStream& stream) {
  Outcome outcome;
  while (!outcome.finished && !outcome.error) {
    auto item = stream.next(std::chrono::seconds(60));
    if (!item) {
      ADD_FAILURE() << "the stream is stuck";
      return outcome;
    }
    if (auto* report = std::get_if<PrefillReport>(&*item)) outcome.report = *report;
    if (auto* logprobs = std::get_if<PromptLogprobs>(&*item)) outcome.prompt_logprobs = *logprobs;
    if (auto* embedding = std::get_if<Embedding>(&*item)) outcome.embedding = *embedding;
    if (auto* token = std::get_if<SampledToken>(&*item)) {
      outcome.tokens.push_back(token->token);
      outcome.sampled.push_back(*token);
    }
    if (auto* finished = std::get_if<Finished>(&*item)) outcome.finished = *finished;
    if (auto* error = std::get_if<Error>(&*item)) outcome.error = *error;
  }
  return outcome;
}

inline std::vector<int32_t> random_prompt(uint32_t seed, int32_t size) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(size));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

// A family in a folder of its own, and what a single request must give by definition.
class TinyFamily {
 public:
  TinyFamily() : device_(make_cpu_device()), ops_(make_cpu_ops(*device_, 1)) {
    file_ = read_family_file(write_tiny_family(folder_.path()));
    models_ = std::make_unique<ModelFamily>(*ops_, file_, exact());
  }

  static FamilyOptions exact() { return {.precision = Precision::kExact}; }

  Ops& ops() { return *ops_; }

  const FamilyFile& file() const { return file_; }

  const std::filesystem::path& folder() const { return folder_.path(); }

  const ModelFamily& models() const { return *models_; }

  // An activated LoRA of the base.
  void add_activated(const std::string& name, std::vector<int32_t> invocation, uint64_t seed) {
    std::filesystem::path folder = folder_.path() / "adapters" / name;
    write_tiny_adapter(folder, {}, {.seed = seed, .invocation = std::move(invocation)});
    models_->add_adapter(name, folder);
    file_.variants.push_back({.name = name, .path = {}, .adapter = folder});
  }

  // Declares a pair; plans as (plan, quality). With maps, all of them are translated.
  void add_book(const std::string& sender,
                const std::string& receiver,
                const std::vector<std::pair<ReusePlan, double>>& plans,
                const TranslationMaps& maps = {}) {
    bool has_maps = !maps.kv.empty() || !maps.inputs.empty();
    PlanBook book;
    set_pair(book, *models_->get(sender), *models_->get(receiver));
    book.num_layers = models_->config().num_layers;
    for (auto [plan, quality] : plans) {
      PlanEntry& entry = book.frontier.emplace_back();
      entry.plan = plan;
      entry.quality_index = quality;
      entry.translated = has_maps;
    }
    if (has_maps) {
      book.maps_file = folder_.path() / (sender + "-" + receiver + ".safetensors");
      save_translation(book.maps_file, maps);
    }
    std::filesystem::path path = folder_.path() / (sender + "-" + receiver + ".json");
    save_plan_book(path, book);
    file_.plan_books.push_back(path);
  }

  // Greedy continuation of one prompt, one row after the other, without batches, caches or
  // scheduler. What comes before an activated LoRA's invocation is read in a pass of its own,
  // without the adapter. No engine may be running on ops() meanwhile.
  std::vector<int32_t> reference_greedy(const Variant& variant,
                                        std::vector<int32_t> tokens,
                                        int32_t count) {
    SingleRun run(*this, variant, static_cast<int32_t>(tokens.size()) + count);
    std::vector<int32_t> output;
    std::vector<float> logits = run.read(tokens);
    while (static_cast<int32_t>(output.size()) < count) {
      output.push_back(
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      logits = run.forward({output.back()});
    }
    return output;
  }

  std::vector<int32_t> reference_greedy(const std::string& name,
                                        const std::vector<int32_t>& tokens,
                                        int32_t count) {
    return reference_greedy(*models_->get(name), tokens, count);
  }

  std::vector<float> reference_logits(const std::string& name, const std::vector<int32_t>& tokens) {
    return SingleRun(*this, *models_->get(name), static_cast<int32_t>(tokens.size())).read(tokens);
  }

 private:
  // One sequence with K/V memory of its own.
  class SingleRun {
   public:
    SingleRun(TinyFamily& family, const Variant& variant, int32_t max_tokens)
        : ops_(*family.ops_),
          variant_(variant),
          adapter_(variant.adapter.get()),
          kv_(*family.device_,
              layout(),
              layout().block_bytes() * static_cast<size_t>(blocks_for(max_tokens))) {
      EXPECT_TRUE(table_.reserve(kv_.pool(), max_tokens));
    }

    // Logits after the last token of a prompt.
    std::vector<float> read(const std::vector<int32_t>& prompt) {
      const Adapter* adapter = std::exchange(adapter_, nullptr);
      const size_t begin = adapter != nullptr ? first_adapted(adapter->invocation, prompt) : 0;
      if (begin > 0) {
        std::vector<float> logits =
            forward({prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(begin)});
        if (begin == prompt.size()) return logits;
      }
      adapter_ = adapter;
      return forward({prompt.begin() + static_cast<std::ptrdiff_t>(begin), prompt.end()});
    }

    // Logits after the last of the next tokens.
    std::vector<float> forward(const std::vector<int32_t>& tokens) {
      const ModelConfig& config = variant_.transformer->config();
      auto rows = static_cast<int32_t>(tokens.size());
      Tensor hidden(ops_.device(), ops_.activation_dtype(), rows, config.d_model);
      Tensor logits(ops_.device(), DType::kF32, 1, config.vocab_size);
      BatchSlice slice{{0, rows, position_, table_.blocks()}, adapter_};
      variant_.transformer->embed(tokens, hidden.view());
      variant_.transformer->forward_layers({0, config.num_layers}, std::span(&slice, 1), kv_,
                                           hidden.view());
      variant_.transformer->logits(hidden.view().row_range(rows - 1, rows), logits.view());
      position_ += rows;
      std::vector<float> values(static_cast<size_t>(config.vocab_size));
      ops_.device().to_host(values.data(), logits.view().data, values.size() * sizeof(float));
      return values;
    }

   private:
    // The last place of the invocation, or the prompt's end; all of it with a plain adapter.
    static size_t first_adapted(const std::vector<int32_t>& invocation,
                                const std::vector<int32_t>& prompt) {
      if (invocation.empty()) return 0;
      for (size_t end = prompt.size(); end >= invocation.size(); --end) {
        size_t begin = end - invocation.size();
        bool is_here = true;
        for (size_t i = 0; i < invocation.size(); ++i)
          is_here = is_here && prompt[begin + i] == invocation[i];
        if (is_here) return begin;
      }
      return prompt.size();
    }

    KvLayout layout() const { return variant_.transformer->config().kv_layout(DType::kF32); }

    Ops& ops_;
    const Variant& variant_;
    const Adapter* adapter_;
    KvCache kv_;
    BlockTable table_;
    int32_t position_ = 0;
  };

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  FamilyFile file_;
  std::unique_ptr<ModelFamily> models_;
};

// f32 caches, checked after each step, small memory; computing is slow and loading is not, so that
// choices do not depend on how busy the machine is.
inline EngineOptions tiny_options(int32_t num_blocks = 64) {
  EngineOptions options;
  options.family = TinyFamily::exact();
  options.kv_dtype = DType::kF32;
  options.kv_bytes =
      static_cast<uint64_t>(num_blocks) * KvLayout{4, 2, 16, DType::kF32}.block_bytes();
  options.store.host_bytes = uint64_t{64} << 20;
  options.chunk_tokens = 96;
  options.fixed_costs = CostCoefficients{.token_seconds = 1e-4,
                                         .attention_seconds = 1e-8,
                                         .output_seconds = 1e-4,
                                         .bandwidths = {4e9, 5e8}};
  options.checks = EngineOptions::Checks::kEachStep;
  return options;
}

inline Outcome generate(Engine& engine, GenerationRequest request) {
  auto stream = engine.submit(std::move(request));
  if (!stream) {
    Outcome outcome;
    outcome.error = stream.error();
    return outcome;
  }
  return collect(**stream);
}

}  // namespace droidspeak
