// Serves a family: continuous batching of all its variants with caches shared among them. One
// engine thread owns scheduler, block pool and sequences; submit() and the snapshots may be called
// from any thread.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/adapter_registry.h"
#include "engine/cost_model.h"
#include "engine/metrics.h"
#include "engine/request.h"
#include "model/adapter_files.h"
#include "model/family.h"
#include "sharing/plan_book.h"
#include "store/cache_store.h"

namespace droidspeak {

struct EngineOptions {
  FamilyOptions family;
  uint64_t kv_bytes = 0;  // paged K/V; 0: what kv_budget() finds right
  DType kv_dtype = DType::kF16;
  StoreOptions store;
  int32_t max_queue = 256;
  int32_t max_batch_sequences = 64;
  int32_t chunk_tokens = 0;   // prefill tokens per step; 0: as many as suit the device
  double ttft_slo_ms = 0;     // 0: none
  double min_quality = 0.99;  // floor for plans chosen under load
  int32_t max_adapters = 64;  // loaded at a time
  ReadAdapter read_adapter;   // in the place of the disk; for tests
  Speculation speculation = Speculation::kForced;
  double load_stall_ms = 2000;  // a load from which nothing arrives for so long is given up
  using Sharing = SharingMode;
  Sharing sharing = Sharing::kOn;
  // Instead of what is measured at start and learnt later; for tests.
  std::optional<CostCoefficients> fixed_costs = {};
  // Verifies scheduler, pool and store after every step and panics when they disagree; for tests.
  enum class Checks { kNone, kEachStep } checks = Checks::kNone;
};

struct VariantState {
  std::string name;
  std::string parent;
  std::string path;
  std::string digest;
  size_t bytes = 0;                          // of its own weights
  std::vector<int32_t> invocation = {};      // of an activated LoRA
  std::vector<std::string> takes_from = {};  // variants whose caches it can start from
};

struct EngineState {
  std::string family;
  std::string device;
  int32_t num_layers = 0;
  int32_t max_model_len = 0;
  std::vector<VariantState> variants;
  StoreCounters store;
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t kv_blocks_used = 0;
  int32_t kv_blocks_total = 0;
  bool is_healthy = true;
};

class Engine {
 public:
  // Loads the family and starts the engine thread. Throws Failure.
  Engine(Ops& ops, const FamilyFile& file, const EngineOptions& options);
  ~Engine();  // cancels what is running

  // Errors: kNotFound (model), kInvalidArgument (empty or too long prompt, bad plan or sender),
  // kExhausted (queue full), kUnavailable (draining or broken).
  Result<std::shared_ptr<TokenStream>> submit(GenerationRequest request);

  // Adapters at run time; requests in flight finish on what they began with, a replaced adapter's
  // caches die with it. Both wait until it is done, the engine goes on meanwhile. Errors of a load:
  // kInvalidArgument, kNotFound or kDataCorrupt (name, folder or files), kExhausted (too many loads
  // at a time), kUnavailable.
  Result<void> load_adapter(const std::string& name,
                            const AdapterPath& path,
                            IfTaken if_taken = IfTaken::kReplace);
  Result<void> unload_adapter(const std::string& name);  // kNotFound

  // No new requests; returns when the running ones are done or the time is up.
  void drain(std::chrono::milliseconds limit);

  const ModelConfig& config() const;
  int32_t max_model_len() const;
  std::vector<std::shared_ptr<const Variant>> variants() const;
  EngineState state() const;
  // All that the family names; they do not change.
  std::vector<PlanBook> plan_books() const;
  // False once the engine's thread has failed: nothing will be computed any more.
  bool is_healthy() const;
  EngineMetrics metrics() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace droidspeak
