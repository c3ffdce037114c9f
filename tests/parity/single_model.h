// One model with everything it needs to run, for tests.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "kv/kv_cache.h"
#include "model/activation.h"
#include "model/adapter_files.h"
#include "model/adapter_opener.h"
#include "model/family.h"
#include "sharing/prompt_runner.h"
#include "store/cache_store.h"
#include "support/device_under_test.h"

namespace droidspeak {

class SingleModel {
 public:
  struct Options {
    DeviceKind device = DeviceKind::kCpu;
    Precision precision = Precision::kExact;
    DType kv_dtype = DType::kF32;
  };

  // `adapter` empty: the checkpoint alone.
  SingleModel(const std::filesystem::path& checkpoint,
              const std::filesystem::path& adapter,
              const Options& options)
      : device_(make_test_device(options.device)),
        ops_(make_test_ops(*device_, options.precision)) {
    auto weights = load_weights(*ops_, checkpoint, options.precision);
    auto variant = std::make_shared<Variant>();
    variant->model_digest = weights->digest;
    variant->transformer =
        std::make_shared<Transformer>(*ops_, weights, weights->config.max_positions);
    if (!adapter.empty()) {
      variant->adapter =
          AdapterFiles(AdapterOpener(adapter), weights->config, options.precision).pack(*ops_);
      variant->adapter_digest = variant->adapter->digest;
    }
    variant_ = variant;
    KvLayout layout = weights->config.kv_layout(options.kv_dtype);
    kv_ = std::make_unique<KvCache>(*device_, layout, 16 * layout.block_bytes());
    store_ = std::make_unique<CacheStore>(StoreOptions{}, clock_);
  }

  // Logits after every token, computed `chunk` rows at a time.
  std::vector<std::vector<float>> logits(const std::vector<int32_t>& tokens, int32_t chunk) {
    PromptRunner runner(*ops_, *kv_, *store_, chunk);
    PromptJob plan;
    plan.receiver = variant_;
    BlockTable table;
    std::vector<std::vector<float>> rows;
    int64_t vocabulary = variant_->transformer->config().vocab_size;
    runner.partial_prefill(tokens, plan, table, [&](int32_t, TensorView hidden) {
      Tensor out(*device_, DType::kF32, hidden.rows, vocabulary);
      variant_->transformer->logits(hidden, out.view());
      for (auto& row : read_rows(*device_, out.view())) rows.push_back(std::move(row));
    });
    return rows;
  }

  // The most likely tokens behind the prompt, decoded one by one.
  std::vector<int32_t> greedy(const std::vector<int32_t>& prompt, int32_t count) {
    PromptRunner runner(*ops_, *kv_, *store_);
    PromptJob plan;
    plan.receiver = variant_;
    auto answerer = answering(variant_, prompt);
    BlockTable table;
    Tensor logits(*device_, DType::kF32, 1, variant_->transformer->config().vocab_size);
    std::vector<int32_t> tokens;
    auto choose = [&](TensorView hidden) {
      variant_->transformer->logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits.view());
      greedy_tokens(*ops_, logits.view(), std::span(&tokens.emplace_back(), 1));
    };
    const auto total = static_cast<int32_t>(prompt.size());
    runner.partial_prefill(prompt, plan, table, [&](int32_t first, TensorView hidden) {
      if (first + hidden.rows == total) choose(hidden);
    });
    while (std::ssize(tokens) < count) {
      const int32_t position = total + static_cast<int32_t>(tokens.size()) - 1;
      choose(runner.decode(*answerer, tokens.back(), position, table));
    }
    return tokens;
  }

  Ops& ops() { return *ops_; }

  KvCache& kv() { return *kv_; }

  const Variant& variant() const { return *variant_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::shared_ptr<const Variant> variant_;
  std::unique_ptr<KvCache> kv_;
  SteadyClock clock_;
  std::unique_ptr<CacheStore> store_;
};

}  // namespace droidspeak
