// The codec tables of a family in the remote store: one sealed value under the name of the base
// model, its RoPE and the tables' version, which whoever has learned tables first writes and the
// others take. What is coded with other tables than are known here is a miss. A table that the
// server has lost is written anew by whoever has it. Thread-safe; written down in
// docs/store_format.md.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "codec/kv_codec.h"
#include "redis/connection.h"
#include "store/coded_model.h"
#include "store/tiers/remote_value.h"
#include "store/tiers/table_learner.h"

namespace droidspeak {

class RemoteTables {
 public:
  // Without a base model's digest nothing is ever coded. `seal` outlives this.
  RemoteTables(CodedModel model, const KvLayout& layout, const ValueSeal& seal);

  // The value's name; empty: there is nothing to exchange.
  const std::string& name() const { return name_; }

  // Those to write these blocks with; none until the server has them. Used by one thread.
  std::shared_ptr<const CodecTables> for_writing(
      std::span<const std::shared_ptr<PendingWrite>> batch);
  // Those that a piece names; none: they are looked for at the server soon.
  std::shared_ptr<const CodecTables> find(const TablesName& name);

  // Takes the server's tables, and gives it those that it lacks; a refusal is no error. By the one
  // thread that talks to the server of this name, now and then.
  Result<void> exchange(RedisConnection& connection);

  // Whether that should not wait: somebody looks for tables, or has learned some.
  bool has_news() const { return has_news_; }

 private:
  using Known = std::shared_ptr<const CodecTables>;

  Result<std::optional<std::vector<std::byte>>> get(RedisConnection& connection) const;
  enum class Replace { kNo, kYes };
  Result<void> put(RedisConnection& connection, const CodecTables& tables, Replace replace) const;
  // Whether the server has tables for this model.
  Result<bool> take(RedisConnection& connection);
  // Null: damaged, or not for this model.
  Known open(std::span<const std::byte> value) const;
  std::vector<std::byte> close(const CodecTables& tables) const;
  void learn();

  const CodedModel model_;
  const KvLayout layout_;
  const ValueSeal& seal_;
  std::string name_;
  TableLearner learner_;  // the writing thread's
  std::atomic<bool> has_news_ = false;

  mutable Mutex mutex_;
  std::map<TablesName, Known> known_ GUARDED_BY(mutex_);
  Known at_server_ GUARDED_BY(mutex_);   // or there once
  Known learned_ GUARDED_BY(mutex_);     // not there yet
  std::string seen_ GUARDED_BY(mutex_);  // how the value there began that was taken
};

}  // namespace droidspeak
