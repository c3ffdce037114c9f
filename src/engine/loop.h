// The engine thread and what it owns. One turn: take mail, drop what nobody waits for, admit, run
// one step. Everything below the mailbox belongs to the thread alone.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "engine/adapter_loader.h"
#include "engine/adapter_registry.h"
#include "engine/admission.h"
#include "engine/batch_runner.h"
#include "engine/cost_model.h"
#include "engine/engine.h"
#include "engine/inbox.h"
#include "engine/metrics_board.h"
#include "engine/prefill_chooser.h"
#include "engine/prompt_reader.h"
#include "engine/prompt_writer.h"
#include "engine/reading_once.h"
#include "engine/scheduler.h"
#include "kv/kv_cache.h"
#include "sharing/plan_books.h"

namespace droidspeak {

class Engine::Loop {
 public:
  Loop(Ops& ops, const FamilyFile& file, const EngineOptions& options);
  ~Loop();

  // Any thread.
  Result<std::shared_ptr<TokenStream>> submit(GenerationRequest request);
  Result<void> load_adapter(const std::string& name, const AdapterPath& path, IfTaken if_taken);
  Result<void> unload_adapter(const std::string& name);
  void drain(std::chrono::milliseconds limit);

  const ModelFamily& family() const { return family_; }

  int32_t max_model_len() const { return max_model_len_; }

  EngineState state() const;
  std::vector<PlanBook> plan_books() const;
  EngineMetrics metrics() const;

  bool is_healthy() const { return is_healthy_; }

 private:
  Result<void> validate(const GenerationRequest& request) const;

  // Engine thread.
  void run();
  bool turn();
  void drop_abandoned();
  void admit();
  Admit decide(Sequence& sequence);
  int32_t num_held_blocks(Sequence& sequence);
  void run_step();
  void run_batch(const Batch& batch);
  void follow(const Step::Work& work);
  void release_stored();
  void settle(const Batch& batch, BatchRunner::Sampled sampled);
  void judge_drafts(Sequence& sequence, int32_t num_right);
  void publish();
  void follow_variants();  // counts of those that are loaded are kept
  void end_all(const Error& waiting, const Error& running);

  Ops& ops_;
  const EngineOptions options_;
  ModelFamily family_;
  KvCache kv_;
  const std::shared_ptr<CacheStore> store_owner_;  // with its clock, and with loads that hang
  CacheStore& store_;
  PlanBooks books_;
  CostModel costs_;
  PrefillChooser chooser_;
  const int32_t num_blocks_;
  const int32_t max_model_len_;
  MetricsBoard metrics_;
  std::atomic<bool> is_healthy_ = true;
  Inbox inbox_;
  // Ended, or left behind with what they own, before all of the above. What is in host memory has
  // threads of its own, so that it never waits for a disk that hangs.
  TransferThreads host_transfers_;
  TransferThreads slow_transfers_;
  WriteBack write_back_;

  AdapterRegistry adapters_;
  AdapterLoader loader_;
  WaitingLine line_;
  Scheduler scheduler_;
  BatchRunner runner_;
  ReadingOnce reading_once_;
  PromptWriter writer_;
  PromptReader reader_;
  std::vector<const Sequence*> finished_;  // in this step
  // Ended, but their blocks are still being copied into the store.
  std::vector<std::unique_ptr<Sequence>> leaving_;
  bool is_waiting_for_loads_ = false;  // nobody could do anything else in the last step
  std::thread thread_;                 // last: starts when everything is there
};

}  // namespace droidspeak
