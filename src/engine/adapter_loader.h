// Loads adapters while the engine goes on. Files are read and checked on a thread of their own;
// packing takes the engine thread for one layer between two steps, since only it may use the
// device; then the name changes hands. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "engine/adapter_registry.h"
#include "engine/inbox.h"
#include "model/adapter_files.h"
#include "model/family_tokenizer.h"
#include "sharing/transfer_threads.h"

namespace droidspeak {

class AdapterLoader {
 public:
  struct Options {
    Ops& ops;
    ModelConfig base;
    Precision precision;
    AdapterRegistry& registry;
    Inbox& inbox;
    ReadAdapter read;                    // empty: from the disk
    std::chrono::milliseconds patience;  // with a disk that hangs, when the loader is destroyed
  };

  static constexpr int kMaxLoads = 4;

  explicit AdapterLoader(Options options);
  // After stop() and the end of the engine thread; waits until nobody is in load() any more.
  ~AdapterLoader();
  AdapterLoader(const AdapterLoader&) = delete;
  AdapterLoader& operator=(const AdapterLoader&) = delete;

  // Returns when the adapter can be asked for. kExhausted when kMaxLoads are under way.
  Result<void> load(const std::string& name, const AdapterPath& path, IfTaken if_taken);
  // Loads that are waiting for the disk end with kUnavailable, now and from now on.
  void stop();

 private:
  using Files = std::shared_ptr<const AdapterFiles>;

  Result<void> begin();
  void end();
  Result<Files> read(const AdapterPath& path);
  Result<void> pack(const AdapterFiles& files, Adapter& adapter);

  const Options options_;

  // Shared with reads that are left behind.
  struct State {
    explicit State(const std::filesystem::path& base) : tokenizer(base) {}

    BaseTokenizer tokenizer;
    Mutex mutex;
    Condition changed;
    int num_loads GUARDED_BY(mutex) = 0;
    bool is_stopped GUARDED_BY(mutex) = false;
  };

  const std::shared_ptr<State> state_;
  TransferThreads readers_;
};

}  // namespace droidspeak
